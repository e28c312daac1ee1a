"""Shamir's secret sharing over the prime field of 2^61 - 1, for many secrets at a time.

A 256-bit secret is cut into five limbs of 52 bits. Each limb is the constant term of a polynomial
of degree threshold - 1, whose other coefficients are uniform in the field. A share is the values of
the five polynomials at one point other than zero, in forty bytes (eight each, little endian). Fewer
shares than the threshold reveal nothing: they are uniform, whatever the secret is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Bools, Uint64s
from fedveil.base.kernels import compiled
from fedveil.base.validate import integer
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.secagg.secret import SECRET_BYTES, Secret

PRIME = (1 << 61) - 1
LIMBS = 5
SHARE_BYTES = 8 * LIMBS
MAX_POINTS = 1 << 20

Field: TypeAlias = Uint64s

_LIMB_BITS = 52
_P = np.uint64(PRIME)
_29, _32, _61 = np.uint64(29), np.uint64(32), np.uint64(61)
_LOW29, _LOW32 = np.uint64((1 << 29) - 1), np.uint64((1 << 32) - 1)
_ELEMENTS_AT_ONCE = 1 << 18


def split(secrets: Sequence[Secret], threshold: int, points: int, entropy: Entropy) -> Field:
    """Return shares of every secret at the points 1..points: an array [points, secrets, 5].

    A share is five field elements. Any `threshold` shares of a secret reconstruct it.
    """
    integer("points", points, 1, MAX_POINTS)
    integer("threshold", threshold, 1, points)
    columns = len(secrets) * LIMBS
    coefficients = np.empty((threshold, columns), np.uint64)
    coefficients[0] = np.concatenate([_limbs(secret) for secret in secrets])
    drawn = entropy.integers(PRIME, (threshold - 1) * columns)
    coefficients[1:] = drawn.astype(np.uint64).reshape(threshold - 1, columns)
    values = np.empty((points, columns), np.uint64)
    _evaluate(coefficients, values)
    return values.reshape(points, len(secrets), LIMBS)


def join(points: npt.NDArray[np.integer], shares: Field) -> list[Secret | None]:
    """Reconstruct secrets from shares. None stands for shares that fit no secret.

    `shares` has the shape (secrets, shares of each secret, 5), as a share is five field elements.
    `points` has the points of a secret's shares: one vector for all secrets, or a row for each
    secret. A secret needs at least as many shares as the `threshold` with which `split` made them.
    """
    secrets, count, _ = shares.shape
    points = np.atleast_2d(points)
    if (points == points[0]).all():  # the complete graph: compute the weights once
        points = points[:1]
    weights = _lagrange_at_zero(points.astype(np.uint64))
    limbs: Field = np.empty((secrets, LIMBS), np.uint64)
    step = max(1, _ELEMENTS_AT_ONCE // (count * LIMBS))
    for start in range(0, secrets, step):
        part = slice(start, start + step)
        weight = weights if len(weights) == 1 else weights[part]
        limbs[part] = _sum(_times(shares[part], weight[:, :, None]))
    return [_secret(row) for row in limbs]


def encode_shares(shares: Field) -> bytes:
    """Encode shares as bytes, forty bytes for each share."""
    return shares.astype("<u8").tobytes()


def decode_shares(data: bytes) -> Field:
    """Convert bytes from `encode_shares` to an array of shares, [shares, 5].

    A share is five field elements. A dealer that lies can encode numbers outside the field (see
    `in_field`).
    """
    if len(data) % SHARE_BYTES:
        raise InvalidValue("a share has the wrong length")
    shares: Field = np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, LIMBS)
    return shares


def in_field(shares: Field) -> Bools:
    """Return a mask: True for each share whose five numbers are all in the field."""
    inside: Bools = np.all(shares < _P, axis=1)
    return inside


def _limbs(secret: Secret) -> Field:
    number = int.from_bytes(secret.reveal(), "little")
    low = (1 << _LIMB_BITS) - 1
    return np.array([(number >> (_LIMB_BITS * i)) & low for i in range(LIMBS)], np.uint64)


def _secret(limbs: Field) -> Secret | None:
    values = [int(limb) for limb in limbs]
    number = sum(value << (_LIMB_BITS * i) for i, value in enumerate(values))
    if max(values) >> _LIMB_BITS or number >> (8 * SECRET_BYTES):
        return None
    return Secret(number.to_bytes(SECRET_BYTES, "little"))


def _evaluate_numpy(coefficients: Field, values: Field) -> None:
    at = np.arange(1, len(values) + 1, dtype=np.uint64)[:, None]
    values[:] = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        values[:] = _reduced(_times_small(values, at) + coefficient)


@compiled(_evaluate_numpy)
def _evaluate(coefficients: Field, values: Field) -> None:
    """Write the values of several polynomials to `values`: row i has the values at the point i + 1.

    Each column is one polynomial, and `coefficients` begins with the row of constant terms.
    """
    points, columns = values.shape
    degree = len(coefficients) - 1
    for row in range(points):
        at = np.uint64(row + 1)
        for column in range(columns):
            value = coefficients[degree, column]
            for k in range(degree - 1, -1, -1):  # as `_times_small` and `_reduced`
                high, low = (value >> _32) * at, (value & _LOW32) * at
                value = (high >> _29) + ((high & _LOW29) << _32) + low + coefficients[k, column]
                value = (value & _P) + (value >> _61)
                value = value - _P if value >= _P else value
            values[row, column] = value


def _reduced(value: Field) -> Field:
    """Return `value`, which is below 2^64, modulo p = 2^61 - 1."""
    value = (value & _P) + (value >> _61)
    return np.where(value >= _P, value - _P, value)


def _times_small(value: Field, factor: Field) -> Field:
    """Return a number below 2^62 that equals value * factor modulo 2^61 - 1.

    Requires value < 2^61 and factor <= 2^20.
    """
    high = (value >> _32) * factor
    low = (value & _LOW32) * factor
    # high * 2^32 = (high's bits from 29 on) * 2^61 + (its lower 29) * 2^32, and 2^61 = 1.
    product: Field = (high >> _29) + ((high & _LOW29) << _32) + low
    return product


def _times(one: Field, other: Field) -> Field:
    a1, a0 = one >> _32, one & _LOW32
    b1, b0 = other >> _32, other & _LOW32
    middle = a1 * b0 + a0 * b1  # below 2^62
    low = a0 * b0
    # a1 * b1 * 2^64 = a1 * b1 * 8; the middle as in `_times_small`.
    high = (a1 * b1) << np.uint64(3)
    total = high + (middle >> _29) + ((middle & _LOW29) << _32)
    return _reduced(_reduced(total) + _reduced(low))


def _sum(values: Field) -> Field:
    """Return the sums of field elements over the second axis, with at most 2^31 terms."""
    high = _reduced((values >> _32).sum(axis=1, dtype=np.uint64))
    low = _reduced((values & _LOW32).sum(axis=1, dtype=np.uint64))
    return _reduced(_times(high, np.full_like(high, 1 << 32)) + low)


def _lagrange_at_zero(points: Field) -> Field:
    """Return the weights that give a polynomial's value at 0 from its values at `points`.

    `points` has a row for each polynomial, and so has the result.
    """
    numerator, denominator = np.ones_like(points), np.ones_like(points)
    for j in range(points.shape[1]):
        other = points[:, j : j + 1]
        difference = np.where(other >= points, other - points, other + _P - points)
        itself = np.arange(points.shape[1]) == j
        denominator = _times(denominator, np.where(itself, np.uint64(1), difference))
        numerator = _times(numerator, np.where(itself, np.uint64(1), other))
    return _times(numerator, _inverse(denominator))


def _inverse(value: Field) -> Field:
    result = np.ones_like(value)
    for bit in bin(PRIME - 2)[2:]:
        result = _times(result, result)
        if bit == "1":
            result = _times(result, value)
    return result
