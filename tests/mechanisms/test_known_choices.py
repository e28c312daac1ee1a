"""The choices of a code's report, told true as often as their chance says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from fedveil.entropy import Seeded
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.mechanisms.unary.known_choices import choices, truths

VALUES = np.tile(np.array([-3.0, -1.0, -0.43, 0.0, 0.61, 1.0, 7.0], np.float32), 300)


def encoding(kind: Any, report: Any, rounding: Any = "nearest", eps: float = 2.0) -> UnaryEncoding:
    return UnaryEncoding(kind, eps, 5, rounding, report, 1.0)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("report", ["bits", "sum"])
@pytest.mark.parametrize("kind", ["rr", "oue"])
def test_they_are_told_true_as_often_as_is_stated(kind: str, report: str, rounding: str) -> None:
    unary = encoding(kind, report, rounding)
    told = truths(unary, unary.perturb(VALUES, Seeded(1)), VALUES)
    stated = choices(unary, len(VALUES))
    assert [choice.count for choice in stated] == [len(truth) for truth in told]
    for choice, truth in zip(stated, told, strict=True):
        hits, tries = int((truth == 1).sum()), int((truth >= 0).sum())
        chance = choice.chance(choice.claim)
        assert tries >= 1000
        assert binom.cdf(hits, tries, chance) > 1e-6
        assert binom.sf(hits - 1, tries, chance) > 1e-6
        assert choice.chance(choice.claim + 1) > chance


def test_where_rounding_leaves_a_doubt_nothing_is_counted() -> None:
    unary = encoding("rr", "bits", "stochastic")
    (told,) = truths(unary, unary.perturb(VALUES, Seeded(1)), VALUES)
    unsure = (told.reshape(len(VALUES), -1) < 0).all(axis=1)
    assert np.array_equal(unsure, np.isin(VALUES, np.array([-0.43, 0.61], np.float32)))


def test_of_sums_only_the_outermost_states_are_counted() -> None:
    unary = encoding("rr", "sum")
    (told,) = truths(unary, unary.perturb(VALUES, Seeded(1)), VALUES)
    assert np.array_equal(told >= 0, np.abs(VALUES) >= 1)


def test_the_own_bit_of_oue_is_a_coin_that_must_tell_nothing() -> None:
    other, own = choices(encoding("oue", "bits"), 7)
    assert (other.claim, own.claim, own.chance(0.0)) == (2.0, 0.0, 0.5)


def test_of_long_sums_nothing_is_said() -> None:
    unary = UnaryEncoding("rr", 2.0, 128)
    assert choices(unary, 3) == []
    assert truths(unary, unary.perturb(VALUES, Seeded(1)), VALUES) == []
