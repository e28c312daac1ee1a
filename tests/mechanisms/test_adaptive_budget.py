"""The adaptive budget: algorithm 2 of the source, and where it has no answer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.errors import InvalidValue
from fedveil.mechanisms.adaptive_budget import AdaptiveBudget


@pytest.mark.parametrize(
    ("previous", "new", "similarity"),
    [
        ([1.0, 0.0], [0.0, 2.0], 1 / 2),
        ([1.0, 0.0], [1.0, 1.0], 3 / 4),
        ([2.0, 0.0], [1.0, math.sqrt(3)], 2 / 3),
        ([1.0, 0.0], [-1.0, 1.0], 1 / 4),
    ],
)
def test_known_angles(previous: list[float], new: list[float], similarity: float) -> None:
    assert AdaptiveBudget(0.6).next(previous, new) == pytest.approx(0.6 / similarity, rel=1e-14)


vectors = st.lists(
    st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=8
).map(lambda pairs: np.array(pairs).T)


@given(vectors, st.floats(0.01, 100))
def test_is_algorithm_2(models: np.ndarray, eps: float) -> None:
    previous, new = models
    if np.abs(models).max(axis=1).min() < 1e-3:
        return
    cosine = previous @ new / (np.linalg.norm(previous) * np.linalg.norm(new))
    similarity = 1 - np.arccos(np.clip(cosine, -1, 1)) / math.pi
    if similarity < 1e-3:
        return
    got = AdaptiveBudget(eps).next(previous, new)
    # arccos of a rounded cosine is good to the root of the rounding only.
    assert got == pytest.approx(eps / similarity, rel=1e-4)
    assert got >= eps


def test_an_unchanged_or_scaled_model_keeps_epsilon() -> None:
    model = np.linspace(-1, 1, 1001).astype(np.float32)
    assert AdaptiveBudget(0.3).next(model, model) == 0.3
    assert AdaptiveBudget(0.3).next(model, 4 * model) == 0.3


def test_never_compounded() -> None:
    budget = AdaptiveBudget(0.5)
    for _ in range(3):
        assert budget.next([1.0, 0.0], [0.0, 1.0]) == 1.0
    assert budget.eps == 0.5


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1.0, 1e30, 1e200])
def test_scale_neither_overflows_nor_underflows(scale: float) -> None:
    near = np.array([1.0, 0.1]) * scale
    assert AdaptiveBudget(1.0).next(near, [1.0, 0.1]) == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize(
    ("previous", "new", "sentence"),
    [
        ([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], "A_s is 0"),
        ([0.1, 0.2, 0.7], [-0.3, -0.6, -2.1], "A_s is 0"),
        ([0.0, 0.0], [1.0, 0.0], "previous_model is zero everywhere"),
        ([1.0, 0.0], [0.0, 0.0], "new_model is zero everywhere"),
        ([1.0, np.nan], [1.0, 0.0], "previous_model holds NaN or infinity"),
        ([1.0], [1.0, 0.0], "new_model has 2 parameters, previous_model has 1"),
    ],
)
def test_no_answer(previous: list[float], new: list[float], sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        AdaptiveBudget(1.0).next(previous, new)


def test_epsilon_is_checked() -> None:
    with pytest.raises(InvalidValue, match=r"eps = -1 is outside \(0, inf\)"):
        AdaptiveBudget(-1)
