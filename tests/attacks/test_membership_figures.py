"""The figures of membership attacks: by hand, by other means, and how often intervals hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from fedveil.attacks.roc import area, balanced_accuracy, best_threshold, figures, true_positives
from fedveil.privacy.intervals import share


def test_by_hand() -> None:
    members, others = np.array([0.9, 0.8, 0.4, 0.3]), np.array([0.7, 0.3, 0.2, 0.1])
    # There are 16 pairs: 0.9 and 0.8 win 4 each, 0.4 wins 3, 0.3 wins 2 and draws 1.
    assert area("auc", members, others).value == 13.5 / 16
    at = balanced_accuracy("", members, others, 0.5)
    assert (at.value, at.guess, at.cases) == ((2 / 4 + 3 / 4) / 2, 0.5, 8)
    # The second highest of four others is passed by one more of them in 2 of 5 cases.
    assert true_positives("", members, others, 0.4).value == 3 / 4
    assert true_positives("", members, others, 0.2).value == 2 / 4
    assert math.isnan(true_positives("", members, others, 0.19).value)


def test_the_best_threshold_lies_in_the_gap_that_it_separates() -> None:
    assert best_threshold(np.array([3.0, 4.0, 1.0]), np.array([0.0, 1.0, 2.0])) == 2.5
    assert best_threshold(np.ones(3), np.ones(4)) == math.inf
    assert best_threshold(np.zeros(3), np.ones(4)) == math.inf
    apart = best_threshold(np.array([2.0]), np.array([1.0]))
    assert balanced_accuracy("", np.array([2.0]), np.array([1.0]), apart).value == 1


def test_ties_win_nothing() -> None:
    """Scores that are all equal are a guess, whichever way a threshold falls."""
    found = figures("nothing", np.zeros(2000), np.zeros(3000), math.inf)
    assert [figure.value for figure in found] == [0.5, 0.5, 0.0, 0.0]
    assert [figure.guess for figure in found] == [0.5, 0.5, 0.01, 0.001]
    assert found[1].low < 0.5 < found[1].high


def test_the_area_is_the_reference_libraries() -> None:
    generator = np.random.default_rng(1)
    members, others = generator.normal(1, 1, 130).round(1), generator.normal(0, 2, 70).round(1)
    truth = np.repeat([1, 0], [130, 70])
    value = roc_auc_score(truth, np.concatenate([members, others]))
    assert area("", members, others).value == pytest.approx(value, abs=1e-12)


def test_delongs_variance_is_that_of_the_covariances_of_placements() -> None:
    """By pairs, as the formula of DeLong et al. is written."""
    generator = np.random.default_rng(2)
    members, others = generator.normal(0.7, 1, 80), generator.normal(0, 1, 60)
    psi = (members[:, None] > others[None]).astype(float)
    value = psi.mean()
    variance = psi.mean(1).var(ddof=1) / 80 + psi.mean(0).var(ddof=1) / 60
    odds = math.log(value / (1 - value))
    reach = stats.norm.ppf(0.975) * math.sqrt(variance) / (value * (1 - value))
    found = area("", members, others)
    assert found.low == pytest.approx(1 / (1 + math.exp(reach - odds)), rel=1e-9)
    assert found.high == pytest.approx(1 / (1 + math.exp(-reach - odds)), rel=1e-9)


def test_perfect_separation_is_known_as_well_as_disjoint_pairs_tell() -> None:
    found = area("", np.arange(10.0) + 100, np.arange(20.0))
    assert (found.value, found.high) == (1, 1)
    assert found.low == pytest.approx(0.025 ** (1 / 10))


def test_a_few_scores_that_lie_close_together_are_no_evidence() -> None:
    """DeLong's variance of two such scores is nearly 0, and says nothing of a third."""
    others = np.linspace(0, 1, 200)
    found = area("", np.array([0.801, 0.812]), others)
    assert found.value == pytest.approx(0.81, abs=0.01)
    assert found.low < 0.5
    assert area("", np.linspace(0.7, 0.9, 10), others).low > 0.5


@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_intervals_cover(shift: float) -> None:
    """For normal scores every figure is known: at most 5% miss, up to the chance of 400 trials."""
    generator, tenth = np.random.default_rng(3), stats.norm.isf(0.1)
    missed = np.zeros(3, int)
    for _ in range(400):
        members, others = generator.normal(shift, 1, 150), generator.normal(0, 1, 120)
        known = [
            (balanced_accuracy("", members, others, shift / 2), stats.norm.cdf(shift / 2)),
            (area("", members, others), stats.norm.cdf(shift / math.sqrt(2))),
            (true_positives("", members, others, 0.1), stats.norm.sf(tenth - shift)),
        ]
        missed += [not found.low <= truth <= found.high for found, truth in known]
    assert (missed <= stats.binom.ppf(1 - 1e-4, 400, 0.05)).all(), missed


def test_guessing_reaches_no_more_than_the_rate() -> None:
    """A member that is like the others passes the threshold in at most that share of cases."""
    generator = np.random.default_rng(4)
    hits = sum(
        true_positives("", generator.random(1), generator.random(199), 0.01).value == 1
        for _ in range(4000)
    )
    assert hits <= stats.binom.ppf(1 - 1e-4, 4000, 0.01)


@pytest.mark.parametrize(
    ("members", "others", "rate"), [(1000, 1000, 0.001), (20_000, 1500, 0.01), (600, 130, 0.01)]
)
def test_scores_that_say_nothing_seldom_beat_the_rate(
    members: int, others: int, rate: float
) -> None:
    """The threshold is one of the others, so its true rate may be several times as high."""
    generator = np.random.default_rng(5)
    beats = 0
    for _ in range(600):
        scores = generator.random(members + others)
        beats += true_positives("x", scores[:members], scores[members:], rate).beats_guessing
    assert beats <= stats.binom.ppf(1 - 1e-4, 600, 0.025)


def test_many_members_above_all_others_beat_the_lowest_rate() -> None:
    """80 of 1,000 members are above all 1,000 others, whose highest may be exceeded by 0.44%."""
    members = np.concatenate([np.full(80, 2.0), np.zeros(920)])
    found = true_positives("x", members, np.linspace(0.1, 1, 1000), 0.001)
    assert found.value == 0.08
    # 0.9875 = (1 - f)^1000 is the chance that the highest of the others is exceeded by less.
    rate, least = 1 - 0.0125 ** (1 / 1000), stats.beta.ppf(0.0125, 80, 921)
    assert found.low == pytest.approx(least * 0.001 / rate)
    assert found.beats_guessing
    assert found.high == pytest.approx(stats.beta.ppf(0.9875, 81, 920))


def test_the_upper_end_is_at_a_threshold_that_others_surely_pass_often_enough() -> None:
    """A tie with that threshold counts. With too few others there is no such threshold."""
    others = np.arange(50.0)
    # The eleventh highest of 50 others is the first whose rate is at least 0.1 with 98.75%.
    assert stats.beta.sf(0.1, 10, 41) < 0.9875 < stats.beta.sf(0.1, 11, 40)
    members = np.repeat([50.0, 40.0, 39.0, 38.0], [9, 7, 4, 13])
    found = true_positives("x", members, others, 0.1)
    assert found.value == 9 / 33
    assert found.high == pytest.approx(stats.beta.ppf(0.9875, 21, 13))
    assert true_positives("x", members, others[:3], 0.4).high == 1.0


def test_an_area_without_a_pair_is_unknown() -> None:
    measured = area("x", np.empty(0), np.array([1.0, 2.0]))
    assert (measured.value, measured.low, measured.high) == (0.5, 0.0, 1.0)


def test_unequal_numbers_of_scores_weigh_as_much_and_a_tie_is_no_member() -> None:
    members, others = np.array([1.0, 2.0, 3.0, 0.0, 5.0]), np.array([2.0, 0.0, 7.0])
    at = balanced_accuracy("", members, others, 2.0)
    each = [share("", hits, of, confidence=math.sqrt(0.95)) for hits, of in ((2, 5), (2, 3))]
    for part in ("value", "low", "high"):
        assert getattr(at, part) == sum(getattr(rate, part) for rate in each) / 2
    assert at.cases == 8
    # 2 of 2 members and 1 of 4 others are above 2.5, and 1 of 2 and none above 6.5.
    assert best_threshold(np.array([3.0, 9.0]), np.array([0.0, 1.0, 2.0, 4.0])) == 2.5


def test_low_rates_are_named_and_count_members() -> None:
    *_, hundredth, thousandth = figures("x", np.arange(5.0), np.arange(300.0), 1.0)
    assert hundredth.name == "x TPR at 1.0% FPR"
    assert thousandth.name == "x TPR at 0.1% FPR"
    assert (hundredth.value, thousandth.cases) == (0.0, 5)
    assert math.isnan(thousandth.value)
    assert math.isnan(thousandth.low)
    assert str(thousandth) == (
        "x TPR at 0.1% FPR not measured: needs 999 others, and there are 300"
    )
    assert not figures("x", np.arange(5.0), np.arange(999.0), 1.0)[-1].unmeasured
    assert figures("x", np.arange(5.0), np.arange(998.0), 1.0)[-1].unmeasured
