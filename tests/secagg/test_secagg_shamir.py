"""Shamir's sharing against the plainest one there is, and what too few shares say."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.secagg import shamir
from fedveil.secagg.secret import Secret

P = 2**61 - 1
elements = st.one_of(st.integers(0, P - 1), st.sampled_from([0, 1, P - 1, P - 2, 2**32, 2**60]))


def plain_join(points: list[int], values: list[int]) -> int:
    """Lagrange's formula at zero, with Python's own numbers."""
    total = 0
    for i, x in enumerate(points):
        weight = 1
        for j, other in enumerate(points):
            if i != j:
                weight = weight * other * pow(other - x, -1, P) % P
        total += weight * values[i]
    return total % P


def plain_value(coefficients: list[int], x: int) -> int:
    return sum(c * x**i for i, c in enumerate(coefficients)) % P


def limbs(secret: bytes) -> list[int]:
    number = int.from_bytes(secret, "little")
    return [(number >> (52 * i)) % 2**52 for i in range(5)]


def join(points: Any, shares: np.ndarray) -> Secret | None:
    return shamir.join(np.asarray(points), shares[None])[0]


@given(st.lists(st.tuples(elements, elements), min_size=1, max_size=20))
def test_the_field_multiplies_and_inverts(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    assert shamir._times(a, b).tolist() == [x * y % P for x, y in pairs]
    nonzero = np.where(a == 0, np.uint64(1), a)
    assert shamir._inverse(nonzero).tolist() == [pow(int(x), -1, P) for x in nonzero]


@given(elements, st.integers(1, shamir.MAX_POINTS), elements)
def test_the_field_multiplies_by_points(value: int, point: int, add: int) -> None:
    one = np.array([value], np.uint64)
    product = shamir._times_small(one, np.array([point], np.uint64)) + np.uint64(add)
    assert int(shamir._reduced(product)[0]) == (value * point + add) % P


@given(st.lists(st.lists(elements, min_size=1, max_size=30), min_size=1, max_size=3))
def test_the_field_adds(rows: list[list[int]]) -> None:
    for row in rows:
        assert shamir._sum(np.array([row], np.uint64)[:, :, None])[0, 0] == sum(row) % P


@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_threshold_many_shares_join_as_the_plain_formula_says(
    secret: bytes, n: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, n))
    shares = shamir.split([Secret(secret)], threshold, n, Seeded(n, threshold))[:, 0]
    chosen = data.draw(st.permutations(range(n)))[:threshold]
    points = [place + 1 for place in chosen]
    assert join(points, shares[chosen]) == Secret(secret)
    values = [[int(shares[place, limb]) for place in chosen] for limb in range(5)]
    assert [plain_join(points, some) for some in values] == limbs(secret)


def test_every_threshold_up_to_all() -> None:
    n, secret = 9, Secret(bytes(range(200, 232)))
    for threshold in range(1, n + 1):
        shares = shamir.split([secret], threshold, n, Seeded(1))[:, 0]
        chosen = np.array(list(itertools.combinations(range(n), threshold)))
        assert shamir.join(chosen + 1, shares[chosen]) == [secret] * len(chosen)


def test_shares_lie_on_one_polynomial_of_the_threshold_degree() -> None:
    threshold, n, seed = 4, 9, Seeded(5)
    secrets = [Secret(bytes([i]) * 32) for i in range(2)]
    shares = shamir.split(secrets, threshold, n, seed)
    drawn = Seeded(5).integers(P, (threshold - 1) * 10).reshape(threshold - 1, 10)
    for column, (which, limb) in enumerate(itertools.product(range(2), range(5))):
        coefficients = [limbs(secrets[which].reveal())[limb], *map(int, drawn[:, column])]
        expected = [plain_value(coefficients, x) for x in range(1, n + 1)]
        assert shares[:, which, limb].tolist() == expected


def test_many_secrets_each_from_its_own_points() -> None:
    secrets = [Secret(bytes([i]) * 32) for i in range(40)]
    shares = shamir.split(secrets, 3, 7, Seeded(2))
    rows = [Seeded(3, i).permutation(7)[:3] for i in range(40)]
    some = np.stack([shares[row, i] for i, row in enumerate(rows)])
    assert shamir.join(np.stack(rows) + 1, some) == secrets
    same = np.ascontiguousarray(shares[2:5].transpose(1, 0, 2))
    assert shamir.join(np.array([3, 4, 5]), same) == secrets


def test_parts_of_many_secrets_each_have_their_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last secret have equal points, and those between have others."""
    monkeypatch.setattr(shamir, "_ELEMENTS_AT_ONCE", 2 * 3 * 5 + 1)  # two secrets at a time
    secrets = [Secret(bytes([i, 7]) * 16) for i in range(5)]
    shares = shamir.split(secrets, 3, 7, Seeded(4))
    points = np.array([[1, 2, 3], [2, 3, 4], [4, 5, 6], [7, 2, 1], [1, 2, 3]])
    some = np.stack([shares[row - 1, i] for i, row in enumerate(points)])
    assert shamir.join(points, some) == secrets


def test_encoding_has_constant_length_and_shows_what_is_no_element() -> None:
    for value in (0, 1, P - 1):
        assert len(shamir.encode_shares(np.full((1, 5), value, np.uint64))) == 40
    shares = shamir.split([Secret(bytes(32))], 2, 3, Seeded(0))[:, 0]
    assert (shamir.decode_shares(shamir.encode_shares(shares)) == shares).all()
    rows = np.stack([np.full(5, P - 1, np.uint64), np.array([0, 0, 0, 0, P], np.uint64)])
    assert shamir.in_field(shamir.decode_shares(shamir.encode_shares(rows))).tolist() == [1, 0]
    with pytest.raises(InvalidValue, match="length"):
        shamir.decode_shares(bytes(41))


def test_shares_of_nothing_are_recognised() -> None:
    shares = shamir.split([Secret(bytes(32))], 3, 5, Seeded(0))[:, 0]
    shares[1, 2] ^= np.uint64(1)
    assert join([1, 2, 3], shares[:3]) is None
    beyond = np.array([[0, 0, 0, 0, 1 << 48]], np.uint64)  # 2^256, whose limbs are all in range
    assert join([1], beyond) is None
    beyond -= np.array([[0, 0, 0, 0, 1]], np.uint64)
    assert join([1], beyond) == Secret(bytes(26) + b"\xff" * 6)


@pytest.mark.parametrize(("threshold", "points"), [(0, 3), (4, 3), (1, 0), (1, 2**20 + 1)])
def test_thresholds_outside_their_range(threshold: int, points: int) -> None:
    with pytest.raises(InvalidValue):
        shamir.split([Secret(bytes(32))], threshold, points, Seeded(0))


def test_one_share_too_few_says_nothing() -> None:
    """The top bits of two of three shares, jointly, over many sharings of one secret."""
    secrets = [Secret(b"\xff" * 32)] * 20_000
    one, other = shamir.split(secrets, 3, 3, Seeded(0, "too few"))[1:, :, 4] >> np.uint64(57)
    counts = np.bincount((16 * one + other).astype(np.int64), minlength=256)
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert statistic < chi2.isf(1e-6, 255)
