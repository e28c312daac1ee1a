"""The bound on epsilon from the noise of releases: valid, and nearly tight."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2, t

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.privacy.noise_audit import MeasuredNoise, moved_distance

DELTA, EPS, ROUNDS = 1e-5, 8.0, 4
#: Of one release of a client that moves it by 2.
SIGMA = 2 * math.sqrt(ROUNDS) * analytic_sigma(EPS, DELTA, 1.0)


def measured(entries: int, squares: np.ndarray) -> MeasuredNoise:
    noise = MeasuredNoise(entries)
    for value in squares:
        noise.add(float(value))
    return noise


def bound(noise: MeasuredNoise, error: float = 0.05, rounds: int = ROUNDS) -> float:
    """Return the bound from `rounds` rounds. In them, a client's moves cost EPS in total."""
    moved = 2 * math.sqrt(ROUNDS / rounds)
    return noise.lower_bound(moved, rounds, delta=DELTA, error=error)


def runs(count: int, entries: int, releases: int) -> np.ndarray:
    draw = Seeded(0, "noise").generator()
    return SIGMA**2 * draw.chisquare(entries, (count, releases))


@pytest.mark.parametrize("rounds", [ROUNDS, 1])
def test_true_noise_is_exceeded_as_rarely_as_the_error_says(rounds: int) -> None:
    """If there is one round, a single client's noise is as informative as that of all clients."""
    found = [bound(measured(50, squares), rounds=rounds) for squares in runs(300, 50, 2 * ROUNDS)]
    assert np.mean(np.array(found) > EPS) <= 0.05
    assert max(found) > EPS  # it is no empty statement
    assert np.median(found) > 0.8 * EPS


def test_what_else_is_in_releases_only_lowers_it() -> None:
    squares = runs(1, 50, ROUNDS)[0]
    assert bound(measured(50, squares + 1.0)) < bound(measured(50, squares))


@pytest.mark.parametrize(("share", "releases"), [(0.25, ROUNDS), (0.9, 400)])
def test_less_noise_than_claimed_is_found(share: float, releases: int) -> None:
    squares = share * runs(1, 2000, releases)[0]
    assert bound(measured(2000, squares), 0.001) > EPS


def test_a_single_release_without_noise_is_found_among_many() -> None:
    squares = runs(1, 50, 200)[0]
    assert bound(measured(50, squares), 0.001) < EPS
    squares[17] = 0.0
    assert bound(measured(50, squares), 0.001) > 1000


def test_nothing_seen_says_nothing() -> None:
    assert bound(MeasuredNoise(10)) == 0
    with pytest.raises(InvalidValue, match="error = 0 is outside"):
        bound(measured(10, np.ones(3)), 0)
    with pytest.raises(InvalidValue, match=r"error = 1\.0 is outside"):
        measured(10, np.ones(3)).distance_of_least(2.0, error=1.0)


def test_it_goes_on_from_a_checkpoint() -> None:
    whole, taken = measured(9, np.array([3.0, 2.0])), MeasuredNoise(9)
    taken.restore(MeasuredNoise(9).state())
    assert taken == MeasuredNoise(9)
    taken.restore(measured(9, np.array([3.0])).state())
    taken.add(2.0)
    assert taken == whole
    for name in ("releases", "squares", "fewest"):
        state = whole.state()
        with pytest.raises(ValueError, match=f"{name} = -2"):
            MeasuredNoise(9).restore({**state, name: type(state[name])(-2)})


def moved(draw: np.random.Generator, clip: float, clients: int) -> tuple[float, float]:
    """Clients that move ROUNDS releases by `clip` each way, under noise for a clip of 1."""
    noise = measured(500, SIGMA**2 * draw.chisquare(500, ROUNDS))
    moves = clip + SIGMA / math.sqrt(ROUNDS) * draw.normal(size=clients)
    return moved_distance(moves, ROUNDS, noise, error=0.05)


def test_how_far_clients_move_it_is_measured_and_not_believed() -> None:
    draw = Seeded(1, "noise").generator()
    true = 2 * math.sqrt(ROUNDS) / SIGMA
    found = np.array([moved(draw, 1.0, 300)[0] for _ in range(300)])
    assert np.mean(found > true) <= 0.05
    assert np.median(found) > 0.7 * true
    wide, uncertain = moved(draw, 2.0, 300)
    assert wide > 1.5 * true
    assert 0 < uncertain < 0.3 * true


def test_half_of_the_error_is_the_means_and_half_the_noises() -> None:
    moves, noise = np.array([3.0, 4.5, 2.5, 5.0]), measured(3, np.array([40.0, 9.0]))
    found, uncertain = moved_distance(moves, 5, noise, error=0.1)
    sigma = math.sqrt(49.0 / chi2.ppf(0.05, 6))
    reach = t.ppf(0.95, 3) * moves.std(ddof=1) / 2
    scale = 2 * math.sqrt(5) / sigma
    assert (found, uncertain) == pytest.approx((scale * (moves.mean() - reach), scale * reach))


def test_of_one_client_nobody_can_say_how_far_it_moves() -> None:
    assert moved(Seeded(1, "noise").generator(), 1.0, 1) == (0.0, math.inf)
    assert moved_distance(np.ones(5), 1, MeasuredNoise(3), error=0.05) == (0.0, math.inf)
    inward = moved_distance(-np.arange(1.0, 6.0), 1, measured(9, np.ones(2)), error=0.05)
    assert inward[0] == 0.0


def test_the_least_noisy_of_releases_that_depend_on_each_other_has_all_of_the_error() -> None:
    noise = measured(3, np.array([40.0, 9.0, 25.0]))
    # Fewer than one in 100 releases of a true sigma has a sum of squares as small as this.
    sigma = math.sqrt(9.0 / chi2.ppf(0.03 / 3, 3))
    assert noise.distance_of_least(2.0, error=0.03) == pytest.approx(2.0 / sigma)
    assert MeasuredNoise(3).distance_of_least(2.0, error=0.03) == 0.0
    together = math.sqrt(74.0 / chi2.ppf(0.01, 9))
    assert noise.sigma(0.01) == pytest.approx(together)
    each = math.sqrt(9.0 / chi2.ppf(0.02 / 2 / 3, 3))
    expected = max(2.0 * math.sqrt(5) / together, 2.0 / each)
    assert noise.distance(2.0, 5, error=0.02) == pytest.approx(expected)


def test_the_distance_is_the_larger_of_all_releases_and_of_the_least_noisy() -> None:
    for least in (16.0, 0.01):
        noise = measured(3, np.array([40.0, least, 25.0]))
        together = math.sqrt((65 + least) / chi2.ppf(0.015, 9)) / math.sqrt(5)
        alone = math.sqrt(least / chi2.ppf(0.015 / 3, 3))  # a single release, so no rounds
        assert (alone < together) == (least == 0.01)
        found = noise.distance(2.0, 5, error=0.03)
        assert found == pytest.approx(2.0 / min(together, alone))
