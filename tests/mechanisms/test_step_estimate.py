"""MagRR's table of transitions, the global step, and how well the estimate follows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.randomized_response import BinaryRandomizedResponse
from fedveil.mechanisms.signds.step_estimate import LEAST, MOST, MagnitudeEstimator

EPS = 2.0


def moved(phase: str, bits: list[int], growth: float = 2.0) -> tuple[str, float]:
    estimator = MagnitudeEstimator(0.5, growth, phase=phase)
    estimator.update(bits, EPS)
    return estimator.phase, estimator.estimate


def test_it_starts_as_the_source_does() -> None:
    estimator = MagnitudeEstimator()
    assert estimator.estimate == math.exp(-5)
    assert estimator.phase == "growth"


@pytest.mark.parametrize(
    ("phase", "magnitude", "bit"),
    [
        ("growth", 0.0, 1),
        ("growth", math.nextafter(1.0, 0), 1),
        ("growth", 1.0, 0),
        ("growth", math.inf, 0),
        ("shrink", math.nextafter(0.5, 0), 1),
        ("shrink", 0.5, 0),
        ("shrink", 0.7, 0),
    ],
)
def test_a_clients_bit(phase: str, magnitude: float, bit: int) -> None:
    assert MagnitudeEstimator(0.5, phase=phase).bit(magnitude) == bit


@pytest.mark.parametrize(
    ("phase", "bits", "after"),
    [
        ("growth", [0, 0, 1], ("growth", 1.0)),
        ("growth", [0, 1, 1], ("shrink", 0.5)),
        ("growth", [0, 1], ("growth", 1.0)),  # a tie is no majority
        ("growth", [], ("growth", 0.5)),
        ("shrink", [0, 0, 1], ("shrink", 0.5)),
        ("shrink", [0, 1, 1], ("shrink", 0.25)),
        ("shrink", [1, 0], ("shrink", 0.5)),
        ("shrink", [], ("shrink", 0.5)),
    ],
)
def test_one_round(phase: str, bits: list[int], after: tuple[str, float]) -> None:
    assert moved(phase, bits) == after


def test_growth_multiplies_by_its_factor() -> None:
    assert moved("growth", [0], growth=1.5) == ("growth", 0.75)


def test_the_first_one_ends_the_growth_for_good() -> None:
    estimator = MagnitudeEstimator(0.5)
    for bits in ([1], *[[0]] * 50):
        estimator.update(bits, EPS)
    assert (estimator.phase, estimator.estimate) == ("shrink", 0.5)


def test_regrow_waits_for_five_zeros_in_a_row() -> None:
    estimator = MagnitudeEstimator(0.5, regrow=True, phase="shrink")
    for bits in (*[[0]] * 4, [1], *[[0]] * 4):
        estimator.update(bits, EPS)
    assert (estimator.phase, estimator.estimate) == ("shrink", 0.25)
    estimator.update([0], EPS)
    assert (estimator.phase, estimator.estimate) == ("growth", 0.25)
    estimator.update([0], EPS)
    assert (estimator.phase, estimator.estimate) == ("growth", 0.5)
    estimator.update([1], EPS)
    assert (estimator.phase, estimator.estimate, estimator.zeros) == ("shrink", 0.5, 0)


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(1e-6, 100))
def test_the_majority_of_the_restored_count_is_that_of_the_reported_one(
    zeros: int, ones: int, eps: float
) -> None:
    by_bits, by_counts = MagnitudeEstimator(0.5, phase="shrink"), MagnitudeEstimator(0.5)
    by_bits.update(np.repeat([0, 1], [zeros, ones]), eps)
    by_counts.update_counts(ones, zeros + ones, eps)
    assert (by_bits.estimate == 0.25) == (ones > zeros)
    assert (by_counts.phase == "shrink") == (ones > zeros)


@pytest.mark.parametrize(
    ("reporters", "participants", "step"),
    [
        (3, 3, 2 * 0.5 * 3),
        (5, 100, 2 * 0.5 * 100),  # five percent are enough
        (4, 100, 7.0),
        (0, 1, 7.0),
        (1, 20, 2 * 0.5 * 20),
        (1, 21, 7.0),
    ],
)
def test_the_global_step(reporters: int, participants: int, step: float) -> None:
    assert MagnitudeEstimator(0.5).global_step(7.0, reporters, participants) == step


def follow(magnitudes: np.ndarray, *, regrow: bool, eps: float, clients: int) -> np.ndarray:
    """The estimate after each round, every client's magnitude scattered around the round's."""
    entropy = Seeded(9, "follow")
    response = BinaryRandomizedResponse(eps)
    estimator = MagnitudeEstimator(regrow=regrow)
    scatter = np.linspace(0.8, 1.2, clients)
    path = []
    for magnitude in magnitudes:
        bits = [estimator.bit(float(r)) for r in magnitude * scatter]
        estimator.update(response.perturb(bits, entropy), eps)
        path.append(estimator.estimate)
    return np.array(path)


def test_the_estimate_reaches_and_follows_a_falling_magnitude() -> None:
    magnitudes = np.geomspace(0.2, 0.01, 60)
    path = follow(magnitudes, regrow=False, eps=EPS, clients=200)
    settled = path[8:] / magnitudes[8:]
    assert settled.max() <= 2.0
    assert settled.min() >= 0.4


def test_without_regrow_it_sticks_below_a_magnitude_that_rises_again() -> None:
    magnitudes = np.concatenate([np.full(15, 0.02), np.full(60, 0.5)])
    stuck = follow(magnitudes, regrow=False, eps=EPS, clients=200)[-1]
    grown = follow(magnitudes, regrow=True, eps=EPS, clients=200)[-1]
    assert stuck < 0.05 < 0.2 < grown <= 0.5 * 1.2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"initial": 0.0}, "initial = 0.0"),
        ({"initial": math.inf}, "initial = inf"),
        ({"growth": 1.0}, "growth = 1.0"),
        ({"phase": "fast"}, "phase = 'fast'"),
        ({"zeros": -1}, "zeros = -1"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        MagnitudeEstimator(**arguments)  # type: ignore[arg-type]


def test_what_cannot_be_a_magnitude_or_a_bit_is_refused() -> None:
    estimator = MagnitudeEstimator()
    for magnitude in (math.nan, -1.0):
        with pytest.raises(InvalidValue, match="magnitude = "):
            estimator.bit(magnitude)
    with pytest.raises(InvalidValue, match="reported_bits"):
        estimator.update([0, 2], EPS)
    with pytest.raises(InvalidValue, match="participants = 0"):
        estimator.global_step(1.0, 0, 0)


@pytest.mark.parametrize("regrow", [False, True])
@pytest.mark.parametrize(
    "bits",
    [
        lambda round: [0],
        lambda round: [1],
        lambda round: [round < 3_000],
        lambda round: [round % 2],
        lambda round: [round % 7 == 0] * 3,
        lambda round: [1] if round < 2_500 else [0],
    ],
    ids=["growing", "shrinking", "down and up", "in turn", "rarely", "down and out"],
)
def test_the_estimate_stays_in_its_domain_for_ever(bits: Any, regrow: bool) -> None:
    """After each of very many rounds the next process makes the estimator again, and a client."""
    estimator = MagnitudeEstimator(regrow=regrow)
    for round in range(6_000):
        estimator.update(bits(round), EPS)
        assert LEAST <= estimator.estimate <= MOST
        estimator = MagnitudeEstimator(
            estimator.estimate, regrow=regrow, phase=estimator.phase, zeros=estimator.zeros
        )
        assert math.isfinite(estimator.global_step(1.0, 1, 1))


@pytest.mark.parametrize("estimate", [0.0, -1.0, LEAST / 2, MOST * 2, math.inf, math.nan])
def test_an_estimate_outside_its_domain_is_refused(estimate: float) -> None:
    with pytest.raises(InvalidValue, match="initial = "):
        MagnitudeEstimator(estimate)
