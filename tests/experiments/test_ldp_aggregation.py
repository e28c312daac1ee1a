"""The server's time to aggregate: both ways give one result, and intervals decide about times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from experiments import ldp_aggregation
from experiments.ldp_aggregation import Measurements, judged, measured


def times(at_once: Sequence[float], one_by_one: Sequence[float]) -> Measurements:
    return Measurements([*at_once], [*one_by_one], [0.0] * len(at_once))


def test_both_ways_give_the_same_values_in_every_repetition() -> None:
    found = measured(37, 5)
    assert {len(values) for values in vars(found).values()} == {ldp_aggregation._REPEATS}
    assert max(found.apart) < 1e-12
    assert min(*found.at_once, *found.one_by_one) > 0


@pytest.mark.parametrize(
    ("small", "large", "answers"),
    [
        (([1, 1, 1], [3, 4, 5]), ([2, 2, 2], [9, 8, 9]), ["agrees", "agrees"]),
        (([1, 1, 1], [0.5, 0.6, 0.7]), ([2, 2, 2], [9, 8, 9]), ["differs", "agrees"]),
        (([1, 1, 1], [0.8, 3, 0.9]), ([2, 2, 2], [9, 8, 9]), ["says nothing", "agrees"]),
        (([1, 1, 1], [9, 8, 9]), ([2, 2, 2], [4, 4, 5]), ["agrees", "differs"]),
        (([1, 1, 1], [9, 8, 9]), ([2, 2, 2], [4, 25, 9]), ["says nothing", "says nothing"]),
    ],
)
def test_times_decide_only_by_their_intervals(
    small: tuple[Sequence[float], ...], large: tuple[Sequence[float], ...], answers: list[str]
) -> None:
    faster, grows = judged([times(*small), times(*large)])
    assert [faster.answer, grows.answer] == answers


def test_a_verdict_shows_the_interval_of_every_size() -> None:
    faster, grows = judged([times([1, 1, 1], [3, 4, 5]), times([2, 2, 4], [9, 8, 9])])
    assert faster.ours == "4.0 [1.5, 6.5], 3.6 [0.6, 6.5]"
    assert grows.ours.startswith("3.0000 [")
    assert faster.answer == "says nothing"  # 0.6 to 6.5 contains 1
