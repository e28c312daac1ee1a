"""Random choices that are counted: never more epsilon than there is, and nearly all there is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.privacy.choice_audit import Counted, in_pairs, told_true

EPS, TRIES = 3.0, 400


def test_randomised_response_is_exceeded_as_rarely_as_the_error_says() -> None:
    draw = Seeded(0, "choices").generator()
    hits = draw.binomial(TRIES, told_true(EPS), 400)
    found = [Counted(int(k), TRIES).lower_bound(told_true, error=0.05) for k in hits]
    assert np.mean(np.array(found) > EPS) <= 0.05 + 4 * math.sqrt(0.05 / 400)
    assert np.median(found) > 0.8 * EPS


def test_it_is_the_bound_of_clopper_and_pearson() -> None:
    bound = Counted(390, TRIES).lower_bound(told_true, error=0.01)
    assert binom.sf(389, TRIES, told_true(bound)) == pytest.approx(0.01, rel=1e-6)
    assert Counted(0, TRIES).lower_bound(told_true, error=0.01) == 0
    assert Counted(150, TRIES).lower_bound(told_true, error=0.01) == 0  # it lies more than it tells


def test_two_independent_choices_are_both_told_true_by_the_square() -> None:
    chance = in_pairs(told_true)
    assert chance(EPS) == told_true(EPS) ** 2
    draw = Seeded(1, "choices").generator()
    first, second = draw.random((2, 5000)) < told_true(EPS)
    apart, twice = int((first & second).sum()), int((first & first).sum())
    assert Counted(apart, 5000).lower_bound(chance, error=1e-4) <= EPS
    assert Counted(twice, 5000).lower_bound(chance, error=1e-4) > 1.1 * EPS


def test_what_is_unseen_is_what_would_just_be_refuted() -> None:
    counted = Counted(0, TRIES)
    unseen = counted.unseen(told_true, EPS, error=0.01)
    expected = TRIES * told_true(unseen)
    assert Counted(math.ceil(expected), TRIES).lower_bound(told_true, error=0.01) > EPS
    assert Counted(math.ceil(expected) - 1, TRIES).lower_bound(told_true, error=0.01) <= EPS
    assert Counted(0, 20).unseen(told_true, EPS, error=0.01) == math.inf
    assert Counted(0, 10**6).unseen(told_true, EPS, error=0.01) < 1.01 * EPS


def test_an_error_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue, match="error = 0 is outside"):
        Counted(1, 2).lower_bound(told_true, error=0)
