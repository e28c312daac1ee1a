"""Each lower bound of a canary audit is computed from its own evidence, at its share of the error.

The evidence is made up, so that no two numbers are equal.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.engine.canary_bounds import (
    ALONE,
    BY_CALM,
    BY_CURVE,
    BY_LAG,
    BY_MOVE,
    BY_NOISE,
    BY_PAIRS,
    BY_SPARE,
    TURNED,
    Canvass,
)
from fedveil.engine.canary_evidence import WAYS
from fedveil.privacy.choice_audit import Choice, Counted, in_pairs, told_true
from fedveil.privacy.finding import BOUND, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.noise_audit import MeasuredNoise, moved_distance
from fedveil.privacy.one_run_audit import alone, audit_run, distance_of_epsilon, epsilon_of_distance

INCLUDED = np.array([True, False, True, True, False, False, True])
SIGNS = np.where(INCLUDED, 1.0, -1.0)
MOVED = 0.9


def noise(entries: int, releases: int, sigma: float) -> MeasuredNoise:
    """Return noise of about this sigma, which is a little smaller in the first release."""
    made = MeasuredNoise(entries)
    for number in range(releases):
        made.add(entries * sigma**2 * (0.98 if number == 0 else 1.0))
    return made


def figures(told: bool, claim: Figure) -> dict[str, Measured]:
    rng = np.random.default_rng(3)
    scores, others, turned = (SIGNS * 4 + rng.normal(0, 1.0, 7) for _ in range(3))
    turned[:3] *= -1  # which tells less of the coins
    tally = SimpleNamespace(choices=[], counts=[])
    reports: Any = SimpleNamespace(
        told=told, scores=scores, tally=tally, noise=noise(50, 28, 1.25), lag=noise(40, 14, 0.75),
        echo=noise(41, 21, 0.5), pairs=noise(38, 12, 0.625),
    )  # fmt: skip
    sums: Any = SimpleNamespace(
        scores=others, turned=turned, moves=True, noise=noise(45, 4, 1.5), lag=noise(64, 2, 0.875),
        echo=noise(64, 3, 1.75), calm=noise(52, 2, 0.8125), spare=noise(12, 4, 1.125),
    )  # fmt: skip
    canvass = Canvass(INCLUDED, reports, sums, MOVED, gaussian=True, measured=True)
    found = {figure.name: figure for figure in canvass.figures(claim)}
    error = 0.05 / (6 if told else 8)  # of two bounds by coins, and four or six others
    seen, count = (reports, 7) if told else (sums, 1)
    distances = {
        BY_NOISE: seen.noise.distance(MOVED, 4, error=error),
        BY_LAG: max(
            seen.lag.distance(1.0, 2, error=error / 2),
            seen.echo.distance_of_least(1.0, error=error / 2),
        ),
    }
    if told:
        distances[BY_PAIRS] = reports.pairs.distance(1.0, 4, error=error)
    else:
        distances[BY_SPARE] = sums.spare.distance(MOVED, 4, error=error)
        distances[BY_CALM] = sums.calm.distance(1.0, 2, error=error)
    claimed = distance_of_epsilon(claim)
    for name, distance in distances.items():
        value = epsilon_of_distance(distance, claim.delta)
        assert found[name].value == pytest.approx(value, rel=1e-12), name
        missed = epsilon_of_distance(claimed**2 / distance, claim.delta)
        expected = math.nan if value > claim.epsilon else missed
        assert found[name].unseen == pytest.approx(expected, nan_ok=True), name
    moves = SIGNS * seen.scores / 4
    distance, uncertain = moved_distance(moves, 4, seen.noise, error=error)
    moved = found[BY_MOVE]
    exactly = pytest.approx(epsilon_of_distance(distance, claim.delta), rel=1e-12)
    assert (moved.value, moved.cases) == (exactly, 7)
    if moved.value <= claim.epsilon:
        missed = epsilon_of_distance(claimed + uncertain, claim.delta)
        assert moved.unseen == pytest.approx(missed, rel=1e-12)
    audit = audit_run(seen.scores, INCLUDED, claim, gaussian=True, confidence=1 - 2 * error)
    assert (found[BY_CURVE].value, found[ALONE].value) == (audit.bound, audit.alone)
    if not told:
        by_coins = alone(turned, INCLUDED, claim, gaussian=True, confidence=1 - error)
        assert (found[TURNED].value, found[TURNED].cases) == (by_coins.bound, 7)
        assert found[TURNED].unseen == pytest.approx(by_coins.unseen, nan_ok=True)
    assert found[BY_NOISE].cases == 4 * count
    return found


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 50.0])
def test_every_bound_is_of_its_own_evidence(told: bool, epsilon: float) -> None:
    found = figures(told, Figure(epsilon, 1e-5))
    assert len([name for name in found if name.startswith(BOUND)]) == (6 if told else 8)
    refuted = [math.isnan(figure.unseen) for figure in found.values() if figure.is_bound]
    assert any(refuted) == (epsilon < 50)


def test_each_choice_is_judged_by_its_own_counts_and_a_pair_by_the_chance_of_two() -> None:
    """The first choice keeps its promise. The second one tells the truth too often."""
    counts = [
        [Counted(310, 500), Counted(90, 250), Counted(0, 0), Counted(70, 230)],
        [Counted(395, 400), Counted(190, 200), Counted(150, 160), Counted(120, 130)],
    ]
    choices = [Choice("bits", 1.5, told_true, 3), Choice("signs", 0.75, lambda e: 1 - 0.9**e, 2)]
    tally = SimpleNamespace(choices=choices, counts=counts)
    turned = np.linspace(1, 2, 60) * np.where(np.arange(60) % 3 == 1, 1.0, -1.0)
    included = turned > 0
    reports: Any = SimpleNamespace(told=False, tally=tally)
    calm = noise(52, 2, 0.8125)
    sums: Any = SimpleNamespace(
        scores=-turned, turned=turned, moves=True, noise=calm, lag=calm, echo=calm, calm=calm,
        spare=calm,
    )  # fmt: skip
    canvass = Canvass(included, reports, sums, MOVED, gaussian=True, measured=True)
    claim = Figure(0.5, 1e-5)
    found = {figure.name: figure for figure in canvass.figures(claim)}
    error = 0.05 / (2 + 6 + 8)
    for choice, ways in zip(choices, counts, strict=True):
        for way, counted in zip(WAYS, ways, strict=True):
            chance = choice.chance if way == "told true" else in_pairs(choice.chance)
            measured = found[f"{BOUND}, {choice.name} {way}"]
            assert (measured.cases, measured.epsilon) == (counted.tries, choice.claim)
            if not counted.tries:
                assert (measured.value, measured.unseen) == (0, math.inf)
                continue
            assert measured.value == counted.lower_bound(chance, error=error)
            missed = counted.unseen(chance, choice.claim, error=error)
            assert (measured.value > choice.claim) == (choice.name == "signs")
            expected = math.nan if choice.name == "signs" else missed
            assert measured.unseen == pytest.approx(expected, nan_ok=True)
    by_coins = alone(turned, included, claim, gaussian=True, confidence=1 - error)
    assert found[TURNED].value == by_coins.bound > 1


@pytest.mark.parametrize("gaussian", [True, False])
def test_a_bound_that_assumes_a_gaussian_curve_says_so_because_other_runs_exceed_it(
    gaussian: bool,
) -> None:
    """A run reveals 60 of 1,000 coins, chosen at random, with probability 0.2, else nothing.

    Each coin is revealed with probability 0.012, so epsilon is 0 at this delta. Here it does.
    """
    included = np.arange(1000) % 2 == 0
    scores = np.where(np.arange(1000) % 4 < 2, 1e-3, -1e-3)  # right for half of the coins
    scores[:60] = np.where(included[:60], 1.0, -1.0)
    nothing: Any = SimpleNamespace(choices=[], counts=[])
    reports: Any = SimpleNamespace(told=True, scores=scores, tally=nothing)
    canvass = Canvass(included, reports, reports, MOVED, gaussian=gaussian, measured=False)
    first = canvass.figures(Figure(2.0, 0.012))[0]
    assert first.name == (BY_CURVE if gaussian else BOUND)
    assert (first.value > 0) == gaussian
    without_delta = canvass.figures(Figure(2.0, 0.0))[0]
    assert without_delta.name == BOUND, "no Gaussian noise has a delta of 0"
