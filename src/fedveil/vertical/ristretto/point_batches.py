"""Multiples and sums of many points of ristretto255 (RFC 9496), in rows of 32 bytes.

libsodium computes small batches, and native code large ones. A multiple is the same from both. A
sum is returned as one or more points that add up to it. The two return different points, with the
same sum. The time does not depend on a secret scalar. The native code gets such a scalar as masks:
16 for each digit, one for each possible value, and only the mask of the digit's value is set. No
instruction branches on a mask, and no address depends on one.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache, reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.errors import MissingExtra

#: One point or other byte string in each row.
Points: TypeAlias = npt.NDArray[np.uint8]
POINT_BYTES, HASH_BYTES = 32, 64
#: The smallest number of points for which native code is faster, including the time to load it.
LEAST = 256


class NoPoint(ValueError):
    """Raised if a row encodes no point, or the group's identity element."""


def raised(points: Points, scalar: bytes) -> Points:
    """Return each point times the scalar. Raises `NoPoint` for an invalid or identity point."""
    if (native := _native(len(points))) is not None:
        return _checked(native.raised(points, scalar))
    _refuse_high_bits(points)
    times = group().crypto_scalarmult_ristretto255
    try:
        return _rows(times(scalar, row.tobytes()) for row in points)
    except RuntimeError:
        raise NoPoint from None


def hashed(hashes: Points, scalar: bytes) -> Points:
    """Map each row of 64 bytes to a point, and return the points times the scalar."""
    if (native := _native(len(hashes))) is not None:
        made: Points = native.hashed(hashes, scalar)
        return made
    times = group().crypto_scalarmult_ristretto255
    point = group().crypto_core_ristretto255_from_hash
    return _rows(times(scalar, point(row.tobytes())) for row in hashes)


def summed(weights: Points, points: Points) -> Points:
    """Return one or more points that add up to Σ d_i P_i, for public weights d_i and points P_i.

    Weights have the highest byte first. Raises `NoPoint` for an invalid or identity point.
    """
    if (native := _native(len(points))) is not None:
        return _checked(native.summed(weights, points))
    _refuse_high_bits(points)
    times, filled = group().crypto_scalarmult_ristretto255, bytes(POINT_BYTES - weights.shape[1])
    try:
        return _rows(
            times(weight.tobytes()[::-1] + filled, row.tobytes())
            for weight, row in zip(weights, points, strict=True)
        )
    except RuntimeError:
        raise NoPoint from None


def total(points: Points) -> bytes:
    added: bytes = reduce(
        group().crypto_core_ristretto255_add, (row.tobytes() for row in points), bytes(POINT_BYTES)
    )
    return added


def _rows(made: Any) -> Points:
    return np.frombuffer(b"".join(made), np.uint8).reshape(-1, POINT_BYTES)


def _refuse_high_bits(points: Points) -> None:
    """Raise `NoPoint` if the highest bit of a row of `points` is set.

    The check is needed because some versions of libsodium ignore this bit.
    """
    if (points[:, -1] >= 128).any():
        raise NoPoint


def _checked(found: Points | None) -> Points:
    if found is None:
        raise NoPoint
    return found


def _native(count: int) -> Any:
    """Return the module of native code if it is faster for `count` points, otherwise None."""
    if count < LEAST or not HAVE_NUMBA:
        return None
    from fedveil.vertical.ristretto import native_points

    return native_points if native_points.can_run() else None


@cache
def group() -> Any:
    """Import rbcl, the library of ristretto255, and return it.

    rbcl leaves a temporary file, which is deleted. Raises MissingExtra if rbcl is not installed.
    """
    try:
        import rbcl
    except ImportError:
        raise MissingExtra("rbcl", "vertical", "alignment: intersection") from None
    with suppress(AttributeError, OSError):
        Path(rbcl._sodium._name).unlink()
    return rbcl
