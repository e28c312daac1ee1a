"""Charges that follow from earlier results: each rule of their sum, with counts above one."""

from __future__ import annotations

import math

import pytest

from fedveil.privacy import Figure, Gaussian, Ledger, PrivacyLoss
from fedveil.privacy.adaptive_sum import AdaptiveSum
from fedveil.privacy.compose import compose, cost
from renyi_sum import filtered_epsilon

DELTA = 1e-6
COIN, BIT = PrivacyLoss(0.25), PrivacyLoss(0.125, per="bit")
FAILING = PrivacyLoss(0.5, 1e-7)
WIDE, NARROW = (PrivacyLoss.of_release(Gaussian(ratio)) for ratio in (9.0, 4.0))


def total(*added: tuple[tuple[tuple[PrivacyLoss, int], ...], int]) -> AdaptiveSum:
    made = AdaptiveSum()
    for kind, times in added:
        made.add(kind, times)
    return made


def test_equal_charges_are_composed_as_any_others() -> None:
    found = total((((COIN, 3), (BIT, 2)), 30), (((COIN, 3), (BIT, 2)), 10))
    assert found.figure(DELTA) == Figure(compose([(COIN, 120), (BIT, 80)], DELTA), DELTA)
    assert found.figure(0.0) == Figure(120 * 0.25 + 80 * 0.125, 0.0)
    assert found.kinds == {((COIN, 3), (BIT, 2)): 40}


def test_noise_of_several_ratios_is_that_of_one() -> None:
    found = total((((WIDE, 2),), 5), (((NARROW, 1),), 3))
    ratio = (10 / 81 + 3 / 16) ** -0.5
    figure = found.figure(DELTA)
    assert figure.epsilon == pytest.approx(
        cost([(PrivacyLoss.of_release(Gaussian(ratio)), 1)], DELTA)
    )
    assert figure.delta == DELTA
    assert found.figure(0.0).epsilon == math.inf


def test_different_charges_cost_the_smaller_of_their_sum_and_a_renyi_filter() -> None:
    few = total((((COIN, 2),), 1), (((BIT, 4),), 3))
    assert few.figure(DELTA) == Figure(0.5 + 12 * 0.125, 0.0)
    many = total((((COIN, 5),), 40), (((WIDE, 1),), 7))
    expected = filtered_epsilon([(COIN, 200), (WIDE, 7)], DELTA)
    assert many.figure(DELTA).epsilon == pytest.approx(expected, rel=1e-9)
    assert expected < 200 * 0.25


def test_deltas_add_up_and_are_held_against_the_stated_one() -> None:
    found = total((((FAILING, 2),), 4), (((COIN, 1),), 1))
    assert found.figure(8e-7) == Figure(8 * 0.5 + 0.25, 8e-7)
    assert found.figure(7e-7).epsilon == math.inf


def test_a_charge_far_below_the_others_still_counts() -> None:
    """An epsilon of 1e-30 raises the sum to the next number, and a delta of 1e-36 exceeds it."""
    whole, nearly_nothing = PrivacyLoss(1.0), PrivacyLoss(1e-30)
    found = total((((whole, 1),), 1), (((nearly_nothing, 1),), 1))
    assert found.figure(0.0).epsilon == math.nextafter(1.0, math.inf)
    failing = total((((FAILING, 1),), 1), (((PrivacyLoss(0.25, 1e-36), 1),), 1))
    assert failing.figure(1e-7).epsilon == math.inf


def test_a_copy_goes_on_by_itself_and_a_sum_of_nothing_costs_nothing() -> None:
    first = total((((COIN, 2),), 3))
    second = first.copy()
    second.add(((COIN, 2),), 1)
    second.add(((BIT, 1),))
    assert (first.figure(0.0).epsilon, second.figure(0.0).epsilon) == (1.5, 2.125)
    assert first.kinds == {((COIN, 2),): 3}
    assert AdaptiveSum().figure(DELTA) == Figure(0.0, 0.0)


@pytest.mark.parametrize(
    "kinds",
    [
        [((COIN, 400),), ((BIT, 300),)],  # a Rényi filter
        [((COIN, 2),), ((FAILING, 3),)],  # added epsilons and deltas
        [((WIDE, 2),), ((NARROW, 1),)],  # one Gaussian
    ],
)
def test_what_is_charged_to_a_copy_leaves_the_original(
    kinds: list[tuple[tuple[PrivacyLoss, int], ...]],
) -> None:
    first = total(*((kind, 2) for kind in kinds))
    before = first.figure(DELTA), first.figure(0.0)
    second = first.copy()
    second.add(kinds[1], 3)
    charged = second.figure(DELTA), second.figure(0.0)
    assert (first.figure(DELTA), first.figure(0.0)) == before
    first.add(kinds[0], 1)
    assert first.figure(DELTA).epsilon > before[0].epsilon
    assert (second.figure(DELTA), second.figure(0.0)) == charged
    assert charged[0].epsilon > before[0].epsilon


def test_a_ledgers_rounds_are_all_added() -> None:
    ledger = Ledger()
    for number, loss in enumerate((COIN, BIT, COIN), start=1):
        ledger.record_many([(loss, 3)], round=number, clients=[0])
    assert AdaptiveSum.of(ledger).kinds == {((COIN, 3),): 2, ((BIT, 3),): 1}
