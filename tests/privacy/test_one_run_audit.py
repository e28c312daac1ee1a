"""The bounds from one run: those of others on the same scores, known laws, and faults."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.privacy.choice_audit import told_true
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.one_run_audit import (
    OneRunAudit,
    audit_run,
    distance_of_epsilon,
    epsilon_of_distance,
    expected_share,
    gaussian_lower_bound,
    independent_lower_bound,
    lower_bound,
    p_value,
    planned,
    right_guesses,
    surest,
)

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/one_run_audit.json").read_text())
DELTA = 1e-5


def coins(count: int, *path: int | str) -> np.ndarray:
    return Seeded(0, "coins", *path).bernoulli(0.5, count)


def gaussian_scores(included: np.ndarray, mu: float, *path: int | str) -> np.ndarray:
    """Log-likelihood ratios of N(±mu / 2, 1)."""
    noise = Seeded(1, "scores", *path).generator().standard_normal(len(included))
    return mu * (np.where(included, mu / 2, -mu / 2) + noise)


def distance(eps: float) -> float:
    return 1 / analytic_sigma(eps, DELTA, 1.0)


@pytest.mark.parametrize("held", VECTORS["sets"], ids=lambda held: str(len(held["in"])))
def test_it_agrees_with_jax_privacy_on_the_same_scores(held: dict[str, list]) -> None:
    ins, outs = np.array(held["in"]), np.array(held["out"])
    scores, included = np.append(ins, outs), np.arange(len(ins) + len(outs)) < len(ins)
    for threshold, delta, significance, one_run, one_run_fdp in held["cases"]:
        guesses = int((scores >= threshold).sum())
        right = right_guesses(scores, included, guesses, 0)
        given = {"delta": delta, "confidence": 1 - significance}
        found = lower_bound(len(scores), guesses, right, **given)
        assert found == pytest.approx(one_run, abs=1e-6)
        found = gaussian_lower_bound(len(scores), guesses, right, **given)
        assert found == pytest.approx(one_run_fdp, abs=1e-6)


@pytest.mark.parametrize(("m", "r", "v"), [(10, 10, 7), (40, 12, 12), (40, 30, 1), (5, 5, 0)])
def test_the_p_value_is_the_theorem_s(m: int, r: int, v: int) -> None:
    eps, delta = 0.7, 0.01
    tail = [float(stats.binom.sf(k - 1, r, math.exp(eps) / (1 + math.exp(eps)))) for k in range(v)]
    last = float(stats.binom.sf(v - 1, r, math.exp(eps) / (1 + math.exp(eps))))
    most = max(((tail[v - i] - last) / i for i in range(1, v + 1)), default=0.0)
    assert p_value(m, r, v, eps, delta) == pytest.approx(min(1, last + 2 * m * delta * most))
    assert p_value(m, r, v, eps, 0.0) == pytest.approx(last)


def test_all_of_k_right_is_a_power_of_one_chance() -> None:
    """q^k = 1 - confidence."""
    chance = 0.05 ** (1 / 20)
    assert lower_bound(30, 20, 20, delta=0.0) == pytest.approx(math.log(chance / (1 - chance)))
    assert lower_bound(30, 20, 10, delta=0.0) == 0.0
    assert lower_bound(30, 0, 0, delta=0.0) == 0.0


def test_the_highest_are_said_to_be_in_and_the_lowest_to_be_out() -> None:
    scores = np.array([3.0, -4.0, 0.5, -0.1, 2.0])
    included = np.array([True, True, False, False, True])
    assert surest(scores, 3) == (2, 1)
    assert right_guesses(scores, included, 2, 1) == 2
    assert right_guesses(scores, included, 3, 2) == 3
    assert right_guesses(scores, ~included, 3, 2) == 2
    assert right_guesses(scores, included, 0, 2) == 1


def test_randomised_response_is_exceeded_as_often_as_is_allowed() -> None:
    """Coins told with probability e^eps / (1 + e^eps): the law for which the theorem is exact."""
    eps, m, runs = 1.5, 60, 400
    over = 0
    for run in range(runs):
        included = coins(m, "rr", run)
        lie = Seeded(2, "lie", run).bernoulli(1 / (1 + math.exp(eps)), m)
        scores = np.where(included ^ lie, 1.0, -1.0)
        audit = audit_run(scores, included, Figure(eps, 0.0))
        assert audit.guesses == m
        over += audit.refuted
    # 0.05 in truth, less what is lost to whole numbers.
    assert 1 <= over <= 0.05 * runs


@pytest.mark.parametrize("eps", [1.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_a_true_gaussian_claim_is_exceeded_in_at_most_one_run_of_twenty(eps: float) -> None:
    runs, m = 60, 80
    over = 0
    for run in range(runs):
        included = coins(m, "gauss", run)
        scores = gaussian_scores(included, distance(eps), run)
        audit = audit_run(scores, included, Figure(eps, DELTA), gaussian=True)
        over += audit.refuted
        assert audit.bound <= eps
    assert over <= 0.05 * runs


@pytest.mark.parametrize(("eps", "m"), [(1.0, 4000), (2.0, 1000), (4.0, 500), (8.0, 300)])
def test_it_reaches_a_third_of_an_exact_gaussian_claim(eps: float, m: int) -> None:
    included = coins(m, "third", int(eps))
    scores = gaussian_scores(included, distance(eps), int(eps))
    audit = audit_run(scores, included, Figure(eps, DELTA), gaussian=True)
    assert eps / 3 < audit.bound <= eps
    assert eps / 3 < audit.alone <= eps
    plain = audit_run(scores, included, Figure(eps, DELTA))
    assert plain.bound < audit.bound
    assert plain.guesses < m
    most = (m, plain.guesses, plain.guesses)
    assert plain.reachable == lower_bound(*most, delta=DELTA, confidence=0.975)


def test_half_the_noise_is_refuted() -> None:
    for eps, m in ((4.0, 1500), (8.0, 100)):
        included = coins(m, "half")
        scores = gaussian_scores(included, 2 * distance(eps), "half")
        audit = audit_run(scores, included, Figure(eps, DELTA), gaussian=True)
        assert audit.refuted
        assert (audit.bound > eps) == (m == 1500)
        assert audit.alone > eps


def test_the_first_bound_holds_where_canaries_share_one_outcome() -> None:
    """A run that tells all coins with probability 0.04 and none otherwise is (0, 0.04)-private."""
    included = coins(100, "shared")
    claim = Figure(0.1, 0.04)
    told = audit_run(np.where(included, 1.0, -1.0), included, claim)
    assert told.bound <= 0.1 < told.alone


def test_two_bounds_share_one_error() -> None:
    """Each holds at a confidence at which both do."""
    included = coins(300, "shared")
    scores = gaussian_scores(included, 1.5, "shared")
    for gaussian in (True, False):
        told = audit_run(scores, included, Figure(2.0, DELTA), gaussian=gaussian, confidence=0.9)
        right = right_guesses(scores, included, *surest(scores, 300))
        each = {"delta": DELTA, "gaussian": gaussian, "confidence": 0.95}
        assert told.alone == independent_lower_bound(300, right, **each)


def test_the_plan_asks_the_claim_alone_and_guesses_fewer_where_noise_is_strong() -> None:
    for gaussian in (True, False):
        assert planned(100, Figure(math.inf, 0.0), gaussian=gaussian, confidence=0.95) == 100
        assert planned(100, Figure(3.0, 0.0), gaussian=gaussian, confidence=0.95) == 100
        guesses = planned(1000, Figure(4.0, DELTA), gaussian=gaussian, confidence=0.95)
        assert 8 <= guesses < 1000
        claim = Figure(1.0, DELTA)
        bold, sure = (planned(999, claim, gaussian=gaussian, confidence=c) for c in (0.6, 0.999))
        assert bold < sure


def test_independent_outcomes_are_bounded_by_clopper_and_pearson() -> None:
    least = stats.beta.ppf(0.05, 70, 31)
    found = independent_lower_bound(100, 70, delta=0.0, gaussian=False)
    assert found == pytest.approx(math.log(least / (1 - least)))
    found = independent_lower_bound(100, 70, delta=DELTA, gaussian=True)
    assert distance(found) == pytest.approx(2 * stats.norm.ppf(least))
    assert independent_lower_bound(100, 50, delta=DELTA, gaussian=True) == 0
    assert independent_lower_bound(100, 0, delta=0.0, gaussian=False) == 0
    found = independent_lower_bound(100, 70, delta=0.1, gaussian=False)
    assert found == pytest.approx(math.log((least - 0.1) / (1 - least)))


def test_the_epsilon_of_a_distance_is_rounded_down_and_ends_with_the_search() -> None:
    for epsilon in (1e-6, 0.3, 7.0, 900.0):
        found = epsilon_of_distance(distance_of_epsilon(Figure(epsilon, 1e-5)), 1e-5)
        assert (1 - 3e-8) * epsilon < found < epsilon
    found = [epsilon_of_distance(mu, 1e-5) for mu in (-1.0, 0.0, 2e-5, math.inf)]
    assert found == [0, 0, 0, 2.0**20]  # delta alone excuses a distance of 2e-5


def test_what_is_no_audit_is_refused() -> None:
    included = coins(4)
    with pytest.raises(InvalidValue, match="scores holds NaN"):
        audit_run(np.full(4, math.nan), included, Figure(1.0, DELTA))
    with pytest.raises(InvalidValue, match="a bit a score is due"):
        audit_run(np.zeros(4), included[:3], Figure(1.0, DELTA))
    with pytest.raises(InvalidValue, match="right = 5 is outside"):
        lower_bound(4, 4, 5, delta=0.0)
    with pytest.raises(InvalidValue, match="right = 5 is outside"):
        lower_bound(9, 4, 5, delta=0.0)
    with pytest.raises(InvalidValue, match="guesses = 5 is outside"):
        gaussian_lower_bound(4, 5, 2, delta=DELTA)
    with pytest.raises(InvalidValue, match=r"included is int64 \(4,\), a bit a score is due"):
        audit_run(np.zeros(4), included.astype(np.int64), Figure(1.0, DELTA))
    with pytest.raises(InvalidValue, match="delta = 0 is promised by no Gaussian noise"):
        gaussian_lower_bound(4, 4, 4, delta=0.0)


@pytest.mark.parametrize(("mu", "share"), [(0.7, 1.0), (0.7, 0.2), (2.5, 0.05)])
def test_the_surest_guesses_are_right_more_often(mu: float, share: float) -> None:
    """Scores of N(mu²/2, mu²) or its mirror image, of which the farthest from 0 are guessed."""

    def beyond(threshold: float) -> tuple[float, float]:
        law = stats.norm(mu**2 / 2, mu)
        return float(law.sf(threshold)), float(law.cdf(-threshold))

    threshold = optimize.brentq(lambda t: sum(beyond(t)) - share, 0.0, 60.0)
    right, wrong = beyond(threshold)
    assert expected_share(mu, share) == pytest.approx(right / (right + wrong), rel=1e-6)
    if share == 1:
        assert expected_share(mu, share) == pytest.approx(stats.norm.cdf(mu / 2))


def test_what_is_unseen_is_the_epsilon_whose_expected_guesses_just_refute() -> None:
    scores = np.linspace(-1, 2, 40)
    included, claim = scores > 0.3, Figure(0.5, 0.0)
    audit = audit_run(scores, included, claim, confidence=0.9)
    assert (audit.guesses, audit.canaries) == (40, 40)
    hits = [n for n in range(41) if p_value(40, 40, n, 0.5, 0.0) <= 0.05]
    assert told_true(audit.unseen) * 40 == pytest.approx(hits[0], rel=1e-6)
    found = independent_lower_bound
    alone = [n for n in range(41)
             if found(40, n, delta=0.0, gaussian=False, confidence=0.95) > 0.5]  # fmt: skip
    assert told_true(audit.unseen_alone) * 40 == pytest.approx(alone[0], rel=1e-6)
    assert audit.reachable == lower_bound(40, 40, 40, delta=0.0, confidence=0.95)
    blind = audit_run(scores[:3], included[:3], claim, confidence=0.9)
    assert blind.unseen == blind.unseen_alone == math.inf


def test_a_pure_claim_is_about_no_gaussian_noise() -> None:
    included = coins(70, "pure")
    scores, claim = gaussian_scores(included, 1.5, "pure"), Figure(0.75, 0.0)
    assert audit_run(scores, included, claim, gaussian=True) == audit_run(scores, included, claim)


def test_what_is_unseen_under_gaussian_noise_follows_from_its_distance() -> None:
    m, claim = 900, Figure(2.0, DELTA)
    included = coins(m, "unseen")
    audit = audit_run(gaussian_scores(included, 2.0), included, claim, gaussian=True)
    known = {"delta": DELTA, "confidence": 0.975}

    def first(bound: Callable[[int], float], most: int) -> int:
        return bisect_left(range(most + 1), True, key=lambda right: bound(right) > claim.epsilon)

    assert audit.guesses < m
    hits = first(lambda n: gaussian_lower_bound(m, audit.guesses, n, **known), audit.guesses)
    share = expected_share(distance(audit.unseen), audit.guesses / m)
    assert share * audit.guesses == pytest.approx(hits, rel=1e-6)
    alone = first(lambda n: independent_lower_bound(m, n, gaussian=True, **known), m)
    mu = distance(audit.unseen_alone)
    assert stats.norm.cdf(mu / 2) * m == pytest.approx(alone, rel=1e-6)


def test_an_audit_tells_each_of_its_numbers() -> None:
    audit = OneRunAudit(Figure(3.0, 1e-5), 60, 40, 30, 45, 1.26, 2.37, 4.48, confidence=0.9)
    assert str(audit) == (
        "epsilon at least 1.26 at confidence 0.9 (60 canaries can show at most 4.48), 2.37 if "
        "canaries reveal nothing about each other"
    )
    assert not audit.refuted
    assert replace(audit, alone=3.1).refuted
    assert replace(audit, bound=3.1).refuted


def test_the_bound_that_assumes_nothing_survives_a_rare_failure_that_the_gaussian_does_not() -> (
    None
):
    """The example of docs/audits/bounds.md: epsilon is 0 at delta 1e-5."""
    assert lower_bound(1_000_000, 100, 75, delta=1e-5) == 0.0
    assert gaussian_lower_bound(1_000_000, 100, 75, delta=1e-5) > 0.55
