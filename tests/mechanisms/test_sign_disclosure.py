"""The probability that one selection reveals the sign of a weight's change, beside simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.signds.dimension_selection import SignDS
from fedveil.mechanisms.signds.sign_disclosure import sign_told

pytestmark = pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")


@pytest.mark.parametrize("eps", [1.0, 6.0])
def test_signs_of_the_selected_and_of_the_others(eps: float) -> None:
    dim, rounds = 60, 4000
    mechanism = SignDS(0.1, eps, dim_out=6)
    told = sign_told(mechanism.plan(dim), dim, eps)
    draw, entropy = Seeded(4).generator(), Seeded(4, "selections")
    hits = np.zeros(2)
    for update in draw.normal(size=(rounds, dim)).astype(np.float32):
        selection = mechanism.select(update, entropy)
        same = np.sign(update) == selection.sign
        inside = np.zeros(dim, bool)
        inside[selection.indices] = True
        hits += [same[inside].mean() / rounds, same[~inside].mean() / rounds]
    for found, ideal, count in zip(hits, told[:2], (6, 54), strict=True):
        assert found == pytest.approx(ideal, abs=5 * math.sqrt(0.25 / (count * rounds)))


def test_by_hand() -> None:
    """One of eight selected, of a set of two, in the set with probability R = e / (e + 3)."""
    told = sign_told(SignDS(0.25, 1.0, dim_out=1).plan(8), 8, 1.0)
    ratio = math.e / (math.e + 3)
    assert told.selected == pytest.approx(ratio + (1 - ratio) / 3)
    own, other = ratio / 4 + (1 - ratio) / 12, (1 - ratio) / 6
    assert told.log_ratio == pytest.approx(math.log(own / other))
    assert told.passed == pytest.approx((1 - own) / (2 - own - other))
    assert told.worst == 1.0


@given(st.integers(8, 400), st.floats(0.05, 20), st.integers(1, 6))
def test_never_more_than_the_claim(dim: int, eps: float, dim_out: int) -> None:
    told = sign_told(SignDS(0.2, eps, dim_out=dim_out).plan(dim), dim, eps)
    assert 0.5 <= told.selected < 1
    assert told.passed <= 0.5
    assert told.log_ratio <= eps * (1 + 1e-9)
    odds = math.log(told.selected / (1 - told.selected))
    assert odds <= told.log_ratio * (1 + 1e-9)


def test_a_set_of_more_than_half_is_refused() -> None:
    with pytest.raises(InvalidValue, match="the top-k set has 6 of 10 dimensions, half of them"):
        sign_told(SignDS(0.6, 1.0, dim_out=2).plan(10), 10, 1.0)


def test_a_set_of_half_is_taken_and_a_weight_that_is_left_out_may_tell_most() -> None:
    """Five of eight are selected, four of which can be in the set."""
    plan = SignDS(0.5, 3.0, dim_out=5).plan(8)
    told, ratio = sign_told(plan, 8, 3.0), plan.expected_ratio
    own, other = 5 * ratio / 4, 5 * (1 - ratio) / 4
    assert told.selected == pytest.approx(ratio)
    assert told.log_ratio == pytest.approx(math.log((1 - other) / (1 - own)))
    assert told.log_ratio > math.log(own / other)


@pytest.mark.parametrize("eps", [50.0, 2000.0])
def test_a_selection_that_is_nearly_certain_reveals_no_more_than_the_claim(eps: float) -> None:
    """The share of the set among the selected is rounded to 1."""
    plan = SignDS(0.25, eps, dim_out=2).plan(8)
    assert plan.expected_ratio == 1
    assert 0.9 * eps < sign_told(plan, 8, eps).log_ratio <= eps
