"""Composition: the known figures, exact compositions of small mechanisms, and other accountants."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.errors import InvalidValue
from fedveil.privacy import pairwise_curve
from fedveil.privacy.compose import compose, plain_sum
from fedveil.privacy.loss import Gaussian, PrivacyLoss, format_epsilon
from fedveil.privacy.loss_distribution import LossDistribution

DELTA = 1e-5


def gaussian(ratio):
    """A Gaussian release; the statement beside it is far too weak to help."""
    return PrivacyLoss(1e6, 0.5, release=Gaussian(ratio))


def response_laws(eps):
    right, wrong = 1 / (1 + math.exp(-eps)), 1 / (1 + math.exp(eps))
    return [[right, wrong], [wrong, right]]


@cache
def unary_laws(kind, eps, cells):
    """The law of S = Σ v * bit v for every state, one bit after the other."""
    q, other = 1 / (1 + math.exp(eps)), 1 / (1 + math.exp(-eps))
    p = (other, q) if kind == "rr" else (0.5, 0.5)  # of a 1 and of a 0, each to full precision
    largest = cells * (cells + 1) // 2
    laws = np.zeros((2 * cells + 1, 2 * largest + 1))
    for state, law in zip(range(-cells, cells + 1), laws, strict=True):
        law[largest] = 1.0
        for v in range(-cells, cells + 1):
            one, zero = p if v == state else (q, other)
            law[:] = zero * law + one * np.roll(law, v)  # nothing reaches the ends
    return laws


def curve(p, q, eps):
    """delta(eps) of two laws, by its definition."""
    return float(np.maximum(np.asarray(p) - math.exp(eps) * np.asarray(q), 0).sum())


def exact_epsilon(curves, delta):
    """The least eps >= 0 at which every curve is at most delta."""
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if all(c(middle) <= delta for c in curves) else (middle, high)
    return high


# Known figures


@pytest.mark.parametrize(
    ("charges", "delta", "expected"),
    [
        ([(gaussian(5.0), 100)], DELTA, 9.99726),
        ([(PrivacyLoss(1.0), 100)], DELTA, 79.8413),
        ([(PrivacyLoss(0.1), 1000)], DELTA, 17.7871),
        ([(PrivacyLoss(0.5, per="bit"), 200)], DELTA, 51.966),
        ([(PrivacyLoss(0.5, per="bit"), 20_000)], DELTA, 2739.87),
        ([(PrivacyLoss(0.3), 7), (PrivacyLoss(0.1), 9)], 0.0, 3.0),
        ([(PrivacyLoss(1.0, 1e-6), 1)], 1e-6, 1.0),
        ([(PrivacyLoss(1.0, 1e-6), 3)], 3e-6, 3.0),
    ],
)
def test_known_figures(charges, delta, expected):
    assert compose(charges, delta) == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize(("count", "expected"), [(100, 8.327), (10_000, 221.27)])
def test_sums_cost_far_less_than_the_bits_they_are_made_of(count, expected):
    loss = PrivacyLoss.from_laws(unary_laws("rr", 0.5, 50), epsilon=1.0)
    assert loss.epsilon == 1.0
    assert compose([(loss, count)], DELTA) == pytest.approx(expected, rel=1e-4)


def test_poisson_sampled_gaussian():
    """z = 1, q = 0.01, 1,000 rounds; the curves of one round are dp-accounting's."""
    from dp_accounting.pld import privacy_loss_mechanism as mechanisms

    step, points = 1e-4, 1 << 17
    grid = step * np.arange(-points // 2, points // 2)

    def epsilon(adjacency):
        one = mechanisms.GaussianPrivacyLoss(1.0, sampling_prob=0.01, adjacency_type=adjacency)
        deltas = np.clip(one.get_delta_for_epsilon(grid), 0.0, 1.0)
        release = LossDistribution.from_curve(deltas, step, -points // 2)
        return compose([(PrivacyLoss(1e6, 0.5, release=release), 1000)], DELTA)

    adjacency = mechanisms.AdjacencyType
    added_or_removed = max(epsilon(adjacency.ADD), epsilon(adjacency.REMOVE))
    assert added_or_removed == pytest.approx(1.82824, rel=4e-6)
    assert epsilon(adjacency.REPLACE) == pytest.approx(2.84345, rel=4e-6)


# Exact compositions


@st.composite
def tables(draw, rows=3):
    """A few laws on a few outputs, some outputs impossible for some inputs."""
    outputs = draw(st.integers(2, 4))
    weights = draw(
        st.lists(
            st.lists(st.integers(0, 20), min_size=outputs, max_size=outputs).filter(any),
            min_size=rows, max_size=rows,
        )
    )  # fmt: skip
    table = np.array(weights, np.float64)
    return table / table.sum(axis=1, keepdims=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(tables(), min_size=1, max_size=3), st.sampled_from([1e-9, 1e-3, 0.1]))
def test_bounds_every_pair_of_inputs_of_a_composed_mechanism(mechanisms, delta):
    losses = [(PrivacyLoss.from_laws(table), 1) for table in mechanisms]
    epsilon = compose(losses, delta)
    inputs = list(itertools.product(range(3), repeat=len(mechanisms)))
    laws = []
    for states in inputs:
        law = np.ones(1)
        for table, state in zip(mechanisms, states, strict=True):
            law = np.multiply.outer(law, table[state]).ravel()
        laws.append(law)
    at = 600.0 if math.isinf(epsilon) else epsilon
    worst = max(curve(p, q, at) for p, q in itertools.permutations(laws, 2))
    if math.isinf(epsilon):
        assert worst > delta * (1 - 1e-9)
    else:
        assert worst <= delta * (1 + 1e-9) + 1e-15


@settings(max_examples=60, deadline=None)
@given(tables(rows=2), st.integers(1, 6), st.sampled_from([1e-6, 1e-3, 0.1]))
def test_tight_for_one_pair(table, count, delta):
    """A pair that costs the same in either order: the composed curve is exact, up to the grid."""
    pair = [np.concatenate([table[0], table[1]]) / 2, np.concatenate([table[1], table[0]]) / 2]
    p, q = np.ones(1), np.ones(1)
    for _ in range(count):
        p, q = np.multiply.outer(p, pair[0]).ravel(), np.multiply.outer(q, pair[1]).ravel()
    expected = exact_epsilon([lambda e: curve(p, q, e)], delta)
    found = compose([(PrivacyLoss.from_laws(pair), count)], delta)
    if curve(p, q, 99.0) > delta:
        assert math.isinf(found) or found > 90
    else:
        assert expected - 1e-9 <= found <= expected * 1.003 + 1e-4


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_different_losses_compose_together(delta):
    """The product of four different worst mechanisms, enumerated."""
    parts = [(0.7, 2), (1.3, 3), (0.2, 1), (2.0, 2)]
    p, q = np.ones(1), np.ones(1)
    for eps, count in parts:
        for _ in range(count):
            first, second = response_laws(eps)
            p, q = np.multiply.outer(p, first).ravel(), np.multiply.outer(q, second).ravel()
    expected = exact_epsilon([lambda e: curve(p, q, e)], delta)
    found = compose([(PrivacyLoss(eps), count) for eps, count in parts], delta)
    assert expected <= found <= expected * (1 + 1e-6)


@pytest.mark.parametrize("count", [1, 5, 64, 1000, 10**6, 10**9])
@pytest.mark.parametrize("eps", [0.01, 1.0, 20.0])
def test_a_grid_agrees_with_the_binomial_law(eps, count):
    """Randomised response twice: as a bare pure loss, in closed form, and from its table."""
    exact = compose([(PrivacyLoss(eps), count)], DELTA)
    found = compose([(PrivacyLoss.from_laws(response_laws(eps), epsilon=eps), count)], DELTA)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-4)


@pytest.mark.parametrize("delta", [1e-5, 1e-9])
@pytest.mark.parametrize(("eps", "most"), [(1e-5, 0.03), (1e-4, 0.005), (1e-3, 0.005), (1.0, 1e-5)])
def test_how_far_a_billion_releases_are_off(eps, most, delta):
    """Within the error that docs/privacy.md states. A Gaussian limit is a third result."""
    exact = compose([(PrivacyLoss(eps), 10**9)], delta)
    found = compose([(PrivacyLoss.from_laws(response_laws(eps), epsilon=eps), 10**9)], delta)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + most)
    if eps < 1e-2:
        normal = compose([(gaussian(1 / (2 * math.sqrt(10**9) * math.sinh(eps / 2))), 1)], delta)
        assert exact == pytest.approx(normal, rel=1e-3)


@pytest.mark.parametrize("delta", [0.3, 1e-4, 1e-15, 1e-100, 1e-280])
def test_binomial_law_by_exact_rationals(delta):
    eps, count = 0.4, 60
    odds = Fraction(math.exp(eps))
    masses = [math.comb(count, j) * odds**j / (1 + odds) ** count for j in range(count + 1)]

    def exactly(at):
        return float(
            sum(
                m * (1 - Fraction(math.exp(at)) / odds ** (2 * j - count))
                for j, m in enumerate(masses)
                if odds ** (2 * j - count) > Fraction(math.exp(at))
            )
        )

    expected = exact_epsilon([exactly], delta)
    found = compose([(PrivacyLoss(eps), count)], delta)
    assert expected * (1 - 1e-9) <= found <= expected * (1 + 1e-6)


def test_gaussians_are_one_gaussian():
    several = compose([(gaussian(3.0), 9), (gaussian(4.0), 16)], DELTA)
    assert several == pytest.approx(compose([(gaussian(math.sqrt(0.5)), 1)], DELTA), rel=1e-9)


@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_a_gaussian_beside_another_loss(delta):
    """A loss that is nearly nothing leaves the Gaussian's exact curve; and on a grid."""
    alone = compose([(gaussian(1.5), 1)], delta)
    beside = compose([(gaussian(1.5), 1), (PrivacyLoss(1e-6), 1)], delta)
    assert alone <= beside <= alone * (1 + 1e-4) + 2e-6


@pytest.mark.parametrize("delta", [0.0, DELTA])
def test_losses_of_one_epsilon_about_different_things_both_count(delta):
    """The selection and the magnitude bit of one report, stated apart."""
    selection, bit = PrivacyLoss(1.0, per="update"), PrivacyLoss(1.0, per="example")
    both = compose([(selection, 3), (bit, 2)], delta)
    assert both == compose([(selection, 5)], delta) > compose([(selection, 3)], delta)


def test_equal_distributions_that_are_stated_differently_all_count():
    """Stated per update, per parameter, with a larger epsilon, and not yet worked out."""
    release = LossDistribution.from_laws(unary_laws("oue", 1.0, 3), 1.0)

    class Described:
        def distribution(self):
            return replace(release)

    charges = [
        (PrivacyLoss(1.0, release=release), 70),
        (PrivacyLoss(1.0, per="parameter", release=release), 40),
        (PrivacyLoss(1.5, release=release), 90),
        (PrivacyLoss(1.0, release=Described()), 60),
    ]
    assert compose(charges, DELTA) == compose([(charges[0][0], 260)], DELTA) < 200


def test_failing_completely_takes_its_share_of_delta():
    """(eps, delta') releases: the part of delta that is left serves the pure part."""
    failing = 1 - (1 - 1e-6) ** 5
    expected = compose([(PrivacyLoss(1.0), 5)], (DELTA - failing) / (1 - failing))
    assert compose([(PrivacyLoss(1.0, 1e-6), 5)], DELTA) == pytest.approx(expected, rel=1e-9)
    assert math.isinf(compose([(PrivacyLoss(1.0, 1e-6), 11)], DELTA))
    masses = LossDistribution.from_laws(response_laws(1.0), 1.0)
    fails = replace(masses, masses=masses.masses * (1 - 1e-6), infinite=1e-6)
    found = compose([(PrivacyLoss.of_release(fails), 5)], DELTA)
    assert found == pytest.approx(expected, rel=1e-4)
    assert math.isinf(compose([(PrivacyLoss.of_release(fails), 11)], DELTA))


def test_the_deltas_of_different_losses_all_take_their_share_of_delta():
    large, small = PrivacyLoss(0.5, 1e-7), PrivacyLoss(0.3, 5e-8)
    failing = -math.expm1(30 * math.log1p(-1e-7) + 40 * math.log1p(-5e-8))
    pure = [(PrivacyLoss(0.5), 30), (PrivacyLoss(0.3), 40)]
    expected = compose(pure, (DELTA - failing) / (1 - failing))
    assert compose([(large, 30), (small, 40)], DELTA) == pytest.approx(expected, rel=1e-9)
    assert compose([(large, 60), (small, 70)], DELTA) < 60 * 0.5 + 70 * 0.3
    assert math.isinf(compose([(large, 60), (small, 90)], DELTA))


def test_a_sampled_tail_that_dips_below_floating_point():
    """delta far below 1e-16 is resolved: the tilt moves the tail into the middle."""
    loss = PrivacyLoss.from_laws(unary_laws("rr", 0.5, 10), epsilon=1.0)
    found = [compose([(loss, 2000)], 10.0**-k) for k in (5, 15, 30, 100, 250)]
    assert found == sorted(found)
    normal = LossDistribution.from_laws(unary_laws("rr", 0.5, 10), 1.0)
    mean = float((normal.masses * normal.losses).sum())
    square = float((normal.masses * normal.losses**2).sum()) - mean**2
    for k, value in zip((5, 15), found, strict=False):  # near its centre the sum is nearly normal
        about = 2000 * mean + math.sqrt(2000 * square) * math.sqrt(2 * k * math.log(10))
        assert value == pytest.approx(about, rel=0.1)


# Other accountants


@pytest.mark.parametrize(("eps", "count"), [(1.0, 1), (1.0, 10), (1.0, 100), (0.1, 1000)])
def test_agrees_with_dp_accounting_on_pure_losses(eps, count):
    """Composed by hand: its accountant ignores the count of a randomised-response event."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    one = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(eps), value_discretization_interval=eps / 8
    )
    theirs = one.self_compose(count).get_epsilon_for_delta(DELTA)
    assert compose([(PrivacyLoss(eps), count)], DELTA) == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("count", [1, 10, 100])
def test_agrees_with_dp_accounting_on_a_table(count):
    from dp_accounting.pld import privacy_loss_distribution as pld

    laws = unary_laws("oue", 1.0, 8)
    lower, upper = ({o: math.log(x) for o, x in enumerate(laws[i])} for i in (-1, 0))
    one = pld.from_two_probability_mass_functions(lower, upper, value_discretization_interval=1e-4)
    theirs = one.self_compose(count).get_epsilon_for_delta(DELTA)
    ours = compose([(PrivacyLoss.from_laws(laws, epsilon=1.0), count)], DELTA)
    # Its grid rounds every release up by half a step; ours errs by the square of one.
    assert theirs - 1e-4 * count <= ours <= theirs * (1 + 1e-4)


@pytest.mark.parametrize("count", [1, 30])
def test_agrees_with_dp_accounting_on_a_mixture(count):
    """Selection, a magnitude bit and noise in one account."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    step = 1e-4
    pure = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(0.5), value_discretization_interval=step
    )
    bit = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(0.3), value_discretization_interval=step
    )
    noise = pld.from_gaussian_mechanism(4.0, value_discretization_interval=step)
    theirs = (
        pure.self_compose(count)
        .compose(bit.self_compose(count))
        .compose(noise.self_compose(count))
        .get_epsilon_for_delta(DELTA)
    )
    ours = compose(
        [(PrivacyLoss(0.5), count), (PrivacyLoss(0.3, per="bit"), count), (gaussian(4.0), count)],
        DELTA,
    )
    assert ours == pytest.approx(theirs, rel=2e-4)


# Properties that must hold without exception


@pytest.mark.parametrize("kind", ["rr", "oue"])
@pytest.mark.parametrize(("eps", "cells"), [(0.1, 3), (0.5, 20), (2.0, 6), (30.0, 4)])
def test_a_table_s_distribution_dominates_every_pair(kind, eps, cells):
    laws = unary_laws(kind, eps, cells)
    most = 2 * eps if kind == "rr" else eps
    release = LossDistribution.from_laws(laws, most)
    grid = np.linspace(-most, most, 37)
    for at in grid:
        above = release.losses > at
        bound = float((release.masses[above] * -np.expm1(at - release.losses[above])).sum())
        worst = max(curve(p, q, at) for p, q in itertools.permutations(laws, 2))
        assert worst <= bound * (1 + 1e-9) + 1e-15
        assert bound <= worst * 1.02 + 1e-4
    assert release.largest == pytest.approx(most, rel=1e-12)


def test_never_above_the_plain_sum_and_never_below_a_single_release():
    for charges in ([(PrivacyLoss(2.0), 4)], [(PrivacyLoss(1.0, 1e-7), 9)]):
        values = [compose(charges, d) for d in (1e-3, 1e-5, 1e-6)]
        assert values == sorted(values)
        assert values[-1] <= plain_sum((loss.epsilon, n) for loss, n in charges)


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(1, 9)), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_more_releases_cost_more(terms):
    less = compose([(PrivacyLoss(e), n) for e, n in terms], DELTA)
    more = compose([(PrivacyLoss(e), n + 1) for e, n in terms], DELTA)
    assert less <= more * (1 + 1e-6)


@pytest.mark.parametrize("delta", [0.0, DELTA])
@pytest.mark.parametrize("loss", [gaussian(1.0), PrivacyLoss.of_release(Gaussian(1.0))])
def test_no_release_costs_nothing(loss, delta):
    assert compose([(loss, 0)], delta) == 0.0
    one = compose([(PrivacyLoss(0.5), 1)], delta)
    assert compose([(loss, 0), (PrivacyLoss(0.5), 1)], delta) == one


def test_nothing_promised_stays_infinite():
    assert math.isinf(compose([(PrivacyLoss(math.inf), 1)], 0.5))
    assert math.isinf(compose([(PrivacyLoss(1.0), 1), (PrivacyLoss(math.inf), 1)], 0.1))
    assert math.isinf(compose([(gaussian(5.0), 1)], 0.0))
    assert math.isinf(compose([(PrivacyLoss(1.0, 1.0), 1)], 0.1))
    assert compose([], DELTA) == 0.0
    assert compose([(PrivacyLoss(0.0), 10**9)], DELTA) == 0.0


def test_adaptive_losses_add_plainly():
    charges = [(PrivacyLoss(0.5), 40), (PrivacyLoss(0.25, 1e-6), 4)]
    assert compose(charges, DELTA, adaptive=True) == 21.0
    assert math.isinf(compose(charges, 1e-6, adaptive=True))
    assert compose(charges, DELTA) < 21.0


def test_more_releases_than_a_grid_is_asked_for(monkeypatch):
    monkeypatch.setitem(compose.__globals__, "_MAX_COUNT", 10**8)
    few = compose([(PrivacyLoss(1e-4), 10**8)], DELTA)
    many = compose([(PrivacyLoss(1e-4), 10**8 + 1)], DELTA)
    assert few < many < few * 1.1


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.3, 1.7, 1e-9, 250.0]), st.integers(1, 10**6))))
def test_plain_sums_are_exact_in_decimals(terms):
    exact = sum((Fraction(repr(value)) * count for value, count in terms), Fraction(0))
    found = plain_sum(terms)
    assert Fraction(repr(found)) >= exact
    assert found <= float(exact) * (1 + 3e-16)


def test_three_tenths_are_three_tenths():
    assert plain_sum([(0.1, 3)]) == 0.3


@given(st.floats(0, 1e300), st.integers(1, 17))
def test_printed_figures_are_never_below(value, digits):
    text = format_epsilon(value, digits).replace(",", "")
    shown = Fraction(text)
    assert shown >= Fraction(repr(value))
    assert len(text.strip("0.").replace(".", "")) <= 320
    if value >= 1e-290:
        assert float(shown) <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2"), (9.9972561, "10"), (1.88002, "1.89"), (79.8413, "79.9"), (math.inf, "inf"),
     (0.0, "0"), (1e-7, "0.0000001"), (123456789.0, "124,000,000"), (0.1, "0.1")],
)  # fmt: skip
def test_printed_figures(value, text):
    assert format_epsilon(value) == text


def test_compiled_and_plain_curves_are_the_same_bytes():
    cases = [(unary_laws("rr", 0.5, 7), 1.0), (unary_laws("oue", 3.0, 3), 3.0)]
    cases.append((np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5], [0.1, 0.0, 0.9]]), None))
    for laws, epsilon in cases:
        args = (laws, pairwise_curve.ordered_pairs(laws), epsilon or 1.0, 300, 2e-12)
        both = []
        for plain in (False, True):
            kernel, numpy_path = pairwise_curve._raise, pairwise_curve._raise_numpy
            try:
                pairwise_curve._raise = numpy_path if plain else kernel
                both.append(pairwise_curve.largest_curve(*args, infinite=epsilon is None).tobytes())
            finally:
                pairwise_curve._raise = kernel
        assert both[0] == both[1]


def test_the_plain_path_leaves_out_no_pair():
    """Each pair alone has a curve of its own, and none is that of another pair."""
    laws = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.45, 0.5, 0.05]])
    found = []
    for pair in itertools.permutations(range(3), 2):
        one = np.array([pair])
        expected = pairwise_curve.largest_curve(laws, one, 2.5, 60, 0.0, infinite=False)
        with pytest.MonkeyPatch.context() as plain:
            plain.setattr(pairwise_curve, "_raise", pairwise_curve._raise_numpy)
            plain.setattr(pairwise_curve, "_BATCH", 1)
            found.append(pairwise_curve.largest_curve(laws, one, 2.5, 60, 0.0, infinite=False))
        np.testing.assert_allclose(found[-1], expected, rtol=1e-12)
        assert found[-1][0] > 0
    assert len({curve.tobytes() for curve in found}) == 6


def test_the_plain_path_takes_the_largest_of_all_batches():
    """The largest curve is that of a pair in the first batch or in the last, in turn."""
    laws = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.45, 0.5, 0.05]])
    pairs = np.array(list(itertools.permutations(range(3), 2)))
    expected = pairwise_curve.largest_curve(laws, pairs, 2.5, 60, 0.0, infinite=False)
    for turned in (pairs, pairs[::-1]):
        with pytest.MonkeyPatch.context() as plain:
            plain.setattr(pairwise_curve, "_raise", pairwise_curve._raise_numpy)
            plain.setattr(pairwise_curve, "_BATCH", 2 * laws.shape[1])  # two pairs
            found = pairwise_curve.largest_curve(laws, turned, 2.5, 60, 0.0, infinite=False)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_mirrored_pairs_are_left_out_without_loss():
    laws = unary_laws("rr", 0.5, 6)
    laws = (laws + laws[::-1, ::-1]) / 2  # a mirror image to the last bit
    count = len(laws)
    every = np.array(list(itertools.permutations(range(count), 2)))
    half = pairwise_curve.ordered_pairs(laws)
    assert len(half) < len(every)
    curves = [
        pairwise_curve.largest_curve(laws, p, 1.0, 200, 0.0, infinite=False) for p in (half, every)
    ]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-12)


def test_no_pair_is_left_out_of_a_table_that_is_not_its_mirror_image():
    """Its first and last row hold the same values, forwards, or in another order."""
    every = set(itertools.permutations(range(3), 2))
    for last in ([0.5, 0.3, 0.2], [0.3, 0.5, 0.2]):
        table = np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], last])
        assert {tuple(pair) for pair in pairwise_curve.ordered_pairs(table).tolist()} == every


def test_a_described_release_is_worked_out_when_it_is_composed():
    class Coin:
        asked = 0

        def distribution(self):
            self.asked += 1
            return LossDistribution.from_laws(response_laws(1.0), 1.0)

    coin = Coin()
    loss = PrivacyLoss(1.0, per="parameter", release=coin)
    assert coin.asked == 0
    assert compose([(loss, 50)], DELTA) == pytest.approx(compose([(PrivacyLoss(1.0), 50)], DELTA))
    assert coin.asked == 1
    assert loss.resolved() == replace(loss, release=coin.distribution())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PrivacyLoss(1.0, release=Gaussian(2.0)), "never pure"),
        (lambda: Gaussian(0.0), "ratio = 0.0 is outside"),
        (lambda: PrivacyLoss.from_laws([[0.5, 0.5], [0.9, 0.1]], epsilon=1.0), "epsilon = 1.0 is"),
        (lambda: PrivacyLoss.from_laws([[0.5, 0.4], [0.9, 0.1]]), "sums to 0.9"),
        (lambda: PrivacyLoss.from_laws([[0.5, 0.5]]), "two rows"),
        (lambda: LossDistribution(0.1, 0, np.array([0.5])), "sum to 0.5"),
        (lambda: LossDistribution(0.1, 0, np.array([1.5, -0.5])), "probabilities"),
        (lambda: LossDistribution.from_curve([0.5, 2.0], 0.1, 0), r"in \[0, 1\]"),
        (
            lambda: PrivacyLoss(0.5, release=LossDistribution(1.0, 1, np.ones(1))),
            "below the release's own largest loss, 1.0",
        ),
        (lambda: PrivacyLoss(1.0, per="bit", part=PrivacyLoss(1.0, per="bit")), "not smaller"),
        (lambda: compose([], 1.0), "delta = 1.0 is outside"),
        (lambda: compose([(PrivacyLoss(1.0), -2)]), r"count = -2 is outside \[0, inf\)"),
        (lambda: compose([(PrivacyLoss(1.0), 2.5)]), r"count = 2\.5 is not a whole number"),
        (lambda: PrivacyLoss(-0.5), r"epsilon = -0\.5 is outside"),
        (lambda: PrivacyLoss(math.nan), "epsilon = nan is outside"),
        (lambda: PrivacyLoss(None), "epsilon = None is not a number"),
        (lambda: PrivacyLoss("1"), "epsilon = '1' is not a number"),
        (lambda: PrivacyLoss(True), "epsilon = True is not a number"),
        (lambda: compose(None), r"charges = None is not a list of pairs \(loss, count\)"),
        (lambda: compose([PrivacyLoss(1.0)]), r"is not a pair of a PrivacyLoss and a count$"),
        (lambda: compose([(1.0, 2)]), r"charge \(1\.0, 2\) is not a pair of a PrivacyLoss"),
        (lambda: PrivacyLoss(0.5, 1.5), r"delta = 1\.5 is outside"),
        (lambda: PrivacyLoss(0.5, per="week"), "per = 'week' is not one of bit"),
        (lambda: PrivacyLoss(0.5, neighbours="add"), "neighbours = 'add' is not 'replace'"),
        (lambda: LossDistribution(0.1, 0, np.array([0.75, 0.5])), r"sum to 1\.25"),
        (lambda: PrivacyLoss.from_laws([[0.5, 0.75], [0.9, 0.1]]), r"sums to 1\.25"),
    ],
)
def test_bad_input_gets_a_sentence(make, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        make()


def test_importing_is_cheap():
    code = (
        "import sys, fedveil.privacy\n"
        "slow = {'dp_accounting', 'scipy', 'numba', 'torch', 'pydantic'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("ratio", [1e-7, 1e-10, 1e-14, 1e-16, 1e-100])
def test_an_epsilon_is_never_too_small_however_little_noise_there_is(ratio: float) -> None:
    """Far from 0, the loss is normal: epsilon is mu² / 2 + z · mu, with delta = Phi(-z)."""
    z, mu = Decimal("4.753424308822898"), 1 / Decimal(ratio)
    exact = mu * mu / 2 + z * mu
    found = compose([(PrivacyLoss.of_release(Gaussian(ratio)), 1)], 1e-6)
    assert exact <= Decimal(found) <= exact * Decimal(1 + 2e-8)


@pytest.mark.parametrize("beside", [PrivacyLoss(1.0), PrivacyLoss.of_release(Gaussian(1.0))])
@pytest.mark.parametrize("epsilon", [1e99, 1e160, 1e300])
def test_epsilons_too_large_to_square_are_bounded(epsilon: float, beside: PrivacyLoss) -> None:
    found = compose([(PrivacyLoss(epsilon), 3), (beside, 2)], DELTA)
    assert 3 * epsilon * (1 - 1e-12) <= found <= 3 * epsilon * (1 + 1e-12)


def test_noise_too_small_to_square_has_no_epsilon() -> None:
    for ratio, least in ((1e-150, 1e300), (1e-160, math.inf), (1e-200, math.inf)):
        small = PrivacyLoss.of_release(Gaussian(ratio)), 2
        for other in ((PrivacyLoss(0.5), 0), (PrivacyLoss(0.5), 3)):
            assert least <= compose([small, other], 1e-6) <= least * 1.001
