"""Intervals of attacks' figures miss as rarely as they say, and are no wider than needed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest, norm, t

from fedveil.entropy import Seeded
from fedveil.privacy.intervals import area, chance_of_ranks, median, share, share_of_groups


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("n", [1, 4, 6, 7, 30, 61])
def test_the_interval_of_a_median_is_the_narrowest_of_its_confidence(
    n: int, confidence: float
) -> None:
    values = np.arange(n, dtype=float)
    found = median("m", values[::-1], confidence=confidence)
    assert found.value == (n - 1) / 2
    misses = [2 * binom.cdf(k, n, 0.5) for k in range(n)]  # of values k to n - 1 - k
    if misses[0] > 1 - confidence:
        assert np.isnan([found.low, found.high]).all()
        return
    k = int(found.low)
    assert found.high == n - 1 - k
    assert misses[k] <= 1 - confidence < misses[k + 1]


@pytest.mark.parametrize(("hits", "cases"), [(0, 7), (7, 7), (3, 7), (61, 200)])
@pytest.mark.parametrize("confidence", [0.8, 0.99])
def test_the_interval_of_a_share_is_clopper_and_pearsons(
    hits: int, cases: int, confidence: float
) -> None:
    found = share("s", hits, cases, guess=0.25, confidence=confidence)
    exact = binomtest(hits, cases).proportion_ci(confidence, "exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
    assert (found.name, found.value, found.guess, found.cases) == ("s", hits / cases, 0.25, cases)


def test_the_interval_of_a_share_of_groups_covers_although_cases_depend_on_each_other() -> None:
    """Most groups of five are right or wrong together. Single cases would miss far too often."""
    draw, true = Seeded(2, "groups").generator(), 0.6
    missed = {"groups": 0, "cases": 0}
    for _ in range(400):
        together = draw.random((25, 1)) < true
        alone = draw.random((25, 5)) < true
        right = np.where(draw.random((25, 1)) < 0.8, together, alone)
        for how, found in (
            ("groups", share_of_groups("s", right.sum(1), [5] * 25)),
            ("cases", share("s", int(right.sum()), 125)),
        ):
            missed[how] += not found.low <= true <= found.high
    assert missed["groups"] <= 0.05 * 400 + 3 * np.sqrt(0.05 * 0.95 * 400)
    assert missed["cases"] > 60


def test_a_share_of_groups_has_the_interval_of_its_effective_number_of_cases() -> None:
    found = share_of_groups("s", [3, 0, 4, 2], [3, 2, 5, 6], guess=0.2, confidence=0.9)
    share_, total = 9 / 16, 16
    residuals = np.array([3, 0, 4, 2]) - share_ * np.array([3, 2, 5, 6])
    variance = 4 / 3 * (residuals**2).sum() / total**2
    number = share_ * (1 - share_) / variance * (t.ppf(0.95, 15) / t.ppf(0.95, 3)) ** 2
    ends = [
        beta.ppf(0.05, share_ * number, number - share_ * number + 1),
        beta.ppf(0.95, share_ * number + 1, number - share_ * number),
    ]
    assert (found.low, found.high) == pytest.approx(ends)
    assert (found.name, found.value, found.guess, found.cases) == ("s", share_, 0.2, 16)
    # All right, or no difference between groups: as many cases as groups. One group is one case.
    for hits, cases, alike in (
        ([2, 5], [2, 5], (2, 2)),
        ([1, 2], [2, 4], (1, 2)),
        ([3], [3], (1, 1)),
    ):
        same = share("s", *alike)
        found = share_of_groups("s", hits, cases)
        assert (found.low, found.high) == pytest.approx((same.low, same.high))


def pairs_won(members: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return 1, 1/2 or 0 for each pair of a member and another."""
    return (np.sign(members[:, None] - others) + 1) / 2


def test_the_area_is_the_share_of_pairs_with_delongs_interval() -> None:
    """Fifty-one members and eighty others, with ties."""
    draw = Seeded(1, "scores").generator()
    members, others = draw.integers(3, 12, 51).astype(float), draw.integers(0, 9, 80).astype(float)
    won = pairs_won(members, others)
    assert 51 * (1 - won.mean()) > 10
    found = area("a", members, others, confidence=0.9)
    assert (found.value, found.guess, found.cases) == (pytest.approx(won.mean()), 0.5, 131)
    variance = won.mean(1).var(ddof=1) / 51 + won.mean(0).var(ddof=1) / 80
    odds = won.mean() / (1 - won.mean())
    reach = norm.ppf(0.95) * np.sqrt(variance) / (won.mean() * (1 - won.mean()))
    ends = [odds * np.exp(side * reach) for side in (-1, 1)]
    assert (found.low, found.high) == pytest.approx([end / (1 + end) for end in ends])


@pytest.mark.parametrize(("m", "n", "side"), [(13, 29, 1), (29, 13, 1), (13, 29, -1)])
def test_an_area_with_few_wrong_pairs_has_the_interval_of_its_effective_number_of_cases(
    m: int, n: int, side: int
) -> None:
    """Hanley and McNeil's variance, of the likelier end, is a floor under DeLong's."""
    draw = Seeded(4, "scores", m).generator()
    members, others = draw.normal(1.2 * side, 1, m), draw.normal(0, 1, n)
    won = pairs_won(members, others)
    value = won.mean()
    parts = won.mean(1).var(ddof=1) / m, won.mean(0).var(ddof=1) / n
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (m - 1) + parts[1] ** 2 / (n - 1))
    floors = []
    for one in (value, 1 - value):
        pair, other = one / (2 - one) - one**2, 2 * one**2 / (1 + one) - one**2
        floors.append((one * (1 - one) + (m - 1) * pair + (n - 1) * other) / (m * n))
    variance = max(sum(parts), *floors)
    number = value * (1 - value) / variance * (norm.ppf(0.95) / t.ppf(0.95, freedom)) ** 2
    ends = [
        beta.ppf(0.05, value * number, number - value * number + 1),
        beta.ppf(0.95, value * number + 1, number - value * number),
    ]
    found = area("a", members, others, confidence=0.9)
    assert (found.low, found.high) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("m", "n", "true", "members_spread"),
    [(10, 2000, 0.95, 3.0), (2000, 10, 0.95, 1.0), (40, 2000, 0.99, 3.0), (12, 300, 0.5, 1.0)],
)
def test_the_interval_of_an_area_covers_although_one_side_is_small(
    m: int, n: int, true: float, members_spread: float
) -> None:
    """DeLong's interval alone would lie above the true area in up to a third of these cases."""
    draw = Seeded(5, "scores", m, n).generator()
    shift = norm.ppf(true) * np.hypot(1, members_spread)
    found = [
        area("a", draw.normal(shift, members_spread, m), draw.normal(0, 1, n)) for _ in range(400)
    ]
    most = binom.ppf(1 - 1e-4, 400, 0.025)
    assert sum(one.low > true for one in found) <= most
    assert sum(one.high < true for one in found) <= most


def test_the_area_of_few_or_of_parted_scores_has_an_exact_interval() -> None:
    few, many = np.array([5.0, 1.0, 3.0]), np.arange(0.0, 4.0, 0.25)
    found, wins = area("a", few, many, confidence=0.9), pairs_won(few, many).mean()
    assert 2 / 3 < wins < 1
    assert found.low == share("s", 2, 3, confidence=0.9).low
    assert (found.value, found.high, found.cases) == (wins, 1.0, 19)
    parted = area("a", many + 100, many, confidence=0.9)
    assert (parted.value, parted.high) == (1.0, 1.0)
    assert parted.low == share("s", 16, 16, confidence=0.9).low
    members, others = np.array([0.0, 4, 3, 1]), np.array([0.0, 3, 1, 4, 1, 3])
    found, half = area("a", members, others, confidence=0.9), share("s", 2, 4, confidence=0.9)
    assert 1.999 < 4 * found.value < 2  # the share of pairs is a half, up to rounding
    assert (found.low, found.high) == (half.low, half.high)
    none = area("a", few, few[:0])
    assert (none.value, none.low, none.high, none.cases) == (0.5, 0.0, 1.0, 3)


def test_the_chance_of_ranks_is_the_share_of_orders_that_are_as_good() -> None:
    """Two of three others are at least as high as the lower of two members."""
    members, others = np.array([2.0, 5.0]), np.array([2.0, 3.0, 1.0])
    found = chance_of_ranks(members, others)
    as_good = [min(places) >= 1 for places in combinations(range(5), 2)]
    assert found == pytest.approx(np.mean(as_good))
    assert chance_of_ranks(members[:0], others) == chance_of_ranks(members, others[:0]) == 1.0
