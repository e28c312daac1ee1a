"""Runs at chance level say nothing, and three seeds give an interval."""

from __future__ import annotations

import pytest
from scipy import stats

from experiments.evidence import Lost, idle, learnt, with_interval


@pytest.mark.parametrize(
    ("accuracy", "labels", "does"),
    [(0.1, 10, False), (0.199, 10, False), (0.2, 10, True), (0.12, 100, True), (0.05, 100, False)],
)
def test_a_run_at_chance_level_learnt_nothing(accuracy: float, labels: int, does: bool) -> None:
    assert learnt(accuracy, labels) is does
    assert bool(idle({"a": accuracy}, labels)) is not does


def test_an_idle_run_is_named_with_its_accuracy() -> None:
    said = idle({"good": 0.4, "flat": 0.051, "low": 0.07}, 20)
    assert said == "less than 0.1 above chance level (0.050) at the end: flat (0.051), low (0.070)"


def test_a_trend_begins_with_the_first_run_that_learnt() -> None:
    lost = Lost([0.8] * 5, [0.1, 0.12, 0.4, 0.1, 0.8], 10)
    assert lost.rates == pytest.approx([0.875, 0.85, 0.5, 0.875, 0.0])
    assert lost.trend == pytest.approx([0.5, 0.875, 0.0])  # an idle run in between counts
    assert not lost.nothing
    assert (
        Lost([0.8] * 3, [0.1, 0.1, 0.7], 10).nothing == "fewer than two runs end above chance level"
    )
    assert "without protection (0.110)" in Lost([0.8, 0.11], [0.7, 0.7], 10).nothing


def test_each_run_is_compared_with_its_own_run_without_protection() -> None:
    lost = Lost([0.8, 0.5, 0.0], [0.4, 0.4, 0.3], 10)
    assert lost.rates == pytest.approx([0.5, 0.2, 0.0])
    assert Lost([0.8, 0.5], [0.4, 0.1], 10).trend == pytest.approx([0.5, 0.8])


def test_three_seeds_have_students_interval() -> None:
    values = (0.9, 0.94, 0.95)
    low, high = stats.t.interval(0.95, 2, loc=0.93, scale=stats.sem(values))
    assert with_interval(values) == f"0.930 [{low:.3f}, {high:.3f}]"
    assert with_interval(values[:2], 2) == "0.92"
