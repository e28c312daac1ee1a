"""Runs at chance level say nothing, three seeds give an interval, one seed decides little."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scipy import stats

from experiments.evidence import SLACK, Lost, decided, falls, idle, learnt, with_interval, within


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


def lost(plain: Sequence[float], noisy: Sequence[float]) -> Lost:
    """Runs of one seed, with ten labels."""
    return Lost([[each] for each in plain], [[each] for each in noisy], 10)


def test_a_trend_begins_with_the_first_run_that_learnt() -> None:
    runs = lost([0.8] * 5, [0.1, 0.12, 0.4, 0.1, 0.8])
    assert runs.rates == pytest.approx([0.875, 0.85, 0.5, 0.875, 0.0])
    # an idle run in between counts
    assert [rate for (rate,) in runs.trend] == pytest.approx([0.5, 0.875, 0.0])
    assert not runs.nothing
    assert runs.start == "from the first run above chance level on"
    assert "without protection (0.110)" in lost([0.8, 0.11], [0.7, 0.7]).nothing


def test_a_single_run_that_learnt_shows_a_trend_only_if_it_has_the_least_noise() -> None:
    few = "fewer than two runs end above chance level"
    last = lost([0.8] * 3, [0.1, 0.12, 0.6])
    assert [rate for (rate,) in last.trend] == pytest.approx([0.85, 0.25])
    assert last.start == "from the last run at chance level to the only one above it"
    assert (last.nothing, last.few) == ("", few)  # it is one model, but a fall
    for others in ([0.1, 0.6, 0.12], [0.1, 0.12, 0.1], [0.6]):
        assert lost([0.8] * len(others), others).nothing == few


def test_each_run_is_compared_with_its_own_run_without_protection() -> None:
    runs = lost([0.8, 0.5, 0.0], [0.4, 0.4, 0.3])
    assert runs.rates == pytest.approx([0.5, 0.2, 0.0])
    assert [rate for (rate,) in lost([0.8, 0.5], [0.4, 0.1]).trend] == pytest.approx([0.5, 0.8])


def test_the_mean_of_all_seeds_decides_if_a_setting_learnt() -> None:
    runs = Lost([[0.8], [0.8, 0.5]], [[0.1], [0.1, 0.6]], 10)
    assert runs.learnt == [False, True]
    assert runs.by_seed[1] == pytest.approx([0.875, -0.2])
    assert runs.rates == pytest.approx([0.875, 0.3375])
    assert "without protection (0.150)" in Lost([[0.8, 0.15]], [[0.7, 0.7]], 10).nothing


def test_three_seeds_have_students_interval() -> None:
    values = (0.9, 0.94, 0.95)
    low, high = stats.t.interval(0.95, 2, loc=0.93, scale=stats.sem(values))
    assert with_interval(values) == f"0.930 [{low:.3f}, {high:.3f}]"
    assert with_interval(values[:2], 2) == "0.92"


@pytest.mark.parametrize(
    ("apart", "answer"),
    [
        ((0.025,), True), ((-0.025,), False), ((0.015,), None), ((-0.015,), None), ((0.0,), None),
        ((0.01, 0.04), True),  # two seeds have no interval
        ((0.01, 0.012, 0.013), True),  # three do: it lies above 0
        ((0.004, -0.002, 0.001), False),  # it ends below what counts
        ((0.05, -0.01, 0.02), None),
    ],
)  # fmt: skip
def test_one_seed_decides_only_about_large_differences(
    apart: tuple[float, ...], answer: bool | None
) -> None:
    agrees, nothing = decided(apart)
    assert (agrees, bool(nothing)) == (answer is True, answer is None)
    if len(apart) == 1 and nothing:
        assert nothing == f"a difference of {apart[0]:+.3f} may be chance with 1 seed"
    assert SLACK == 0.02


def test_a_difference_may_have_another_slack() -> None:
    assert decided([0.004], 0.003) == (True, "")
    assert decided([0.025], 0.03)[1] == "a difference of +0.025 may be chance with 1 seed"
    assert decided([0.03, 0.029, -0.004], 0.08) == (False, "")


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([0.9, 0.5, 0.1], True),
        ([0.9, 0.5, 0.525, 0.1], True),  # within the slack of a step
        ([0.9, 0.5, 0.6, 0.1], False),
        ([0.5, 0.52, 0.54], False),  # in small steps, but far
        ([0.5, 0.5, 0.5], None),
        ([0.5, 0.49], None),
        ([0.5, 0.51], None),
        ([0.5, 0.475], True),
    ],
)
def test_what_falls(values: list[float], answer: bool | None) -> None:
    falling, nothing = falls([[value] for value in values], 0.03)
    assert (falling, bool(nothing)) == (answer is True, answer is None)


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        ([0.3, 0.31, 0.29], True),
        ([0.3], True),  # the first seed alone, far enough
        ([0.39], None),
        ([0.39, 0.3, 0.1], None),  # the mean alone would fall
        ([0.4, 0.411, 0.39], False),
        ([0.4, 0.5, 0.46], False),  # their mean rises
    ],
)
def test_what_falls_seed_by_seed(last: list[float], answer: bool | None) -> None:
    falling, nothing = falls([[0.4, 0.41, 0.39], last], 0.03)
    assert (falling, bool(nothing)) == (answer is True, answer is None)


@pytest.mark.parametrize(
    ("apart", "answer"),
    [
        ((0.0, 0.0, 0.0), True),
        ((0.001, -0.001, 0.0005), True),
        ((0.02, 0.021, 0.022), False),
        ((-0.02, -0.021, -0.022), False),
        ((0.006, 0.002, 0.004), None),  # the interval reaches beyond the bound
        ((-0.006, -0.002, -0.004), None),
        ((0.0, 0.0), None),  # no interval
    ],
)
def test_seeds_decide_whether_a_difference_is_within_a_bound(
    apart: tuple[float, ...], answer: bool | None
) -> None:
    inside, nothing = within(apart, 0.005)
    assert (inside, bool(nothing)) == (answer is True, answer is None)
