"""Differences of settings: every key of either side, in words."""

from __future__ import annotations

from typing import Any

import pytest

from fedveil.federated.job import Job
from fedveil.settings.differences import differences


@pytest.mark.parametrize(
    ("these", "those", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, [("b", "2", "nothing")]),
        ({"a": 1}, {"a": 1, "b": 2}, [("b", "nothing", "2")]),
        ({"a": {"x": 1, "y": 3}}, {"a": {"x": 1}}, [("a.y", "3", "nothing")]),
        ({"a": {"x": 1}}, {"a": 4}, [("a", "{'x': 1}", "4")]),
        ({"a": {"x": 1}, "c": 5}, {"c": 5, "a": {"x": 1}}, []),
    ],
)
def test_a_key_of_one_side_differs_from_nothing(
    these: Any, those: Any, expected: list[tuple[str, str, str]]
) -> None:
    assert [*differences(these, those)] == expected


@pytest.mark.parametrize(
    ("these", "those", "expected"),
    [
        ({"a": {"x": -0.0}}, {"a": {"x": 0.0}}, [("a.x", "-0.0", "0.0")]),
        ({"a": True, "b": 1}, {"a": 1, "b": 1.0}, [("a", "true", "1"), ("b", "1", "1.0")]),
        ({"a": [3, -0.0]}, {"a": [3, 0.0]}, [("a", "[3, -0.0]", "[3, 0.0]")]),
        ({"a": [{"x": 1, "y": 2}]}, {"a": [{"y": 2, "x": 1}]},
         [("a", "[{'x': 1, 'y': 2}]", "[{'y': 2, 'x': 1}]")]),
        ({"a": {"x": 1, "y": 2, "z": 4}}, {"a": {"z": 4, "x": 1, "y": 2}},
         [("a", "in the order ['x', 'y', 'z']", "in the order ['z', 'x', 'y']")]),
        ({"a": {"x": 1, "y": 3}}, {"a": {"y": 2, "x": 1}},
         [("a", "in the order ['x', 'y']", "in the order ['y', 'x']"), ("a.y", "3", "2")]),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2}}, [("a.x", "1", "nothing")]),
        ({"a": {"x": 1, "y": [2.5]}}, {"a": {"x": 1, "y": [2.5]}}, []),
    ],
)  # fmt: skip
def test_an_exact_comparison_sees_every_change_that_changes_a_digest(
    these: Any, those: Any, expected: list[tuple[str, str, str]]
) -> None:
    assert [*differences(these, those, exact=True)] == expected


def test_a_dropout_that_was_added_to_a_job_is_a_change() -> None:
    """Otherwise a run would resume under another job."""
    before = Job.load(None, ["protection=pw_encrypt"])
    after = before.with_({"simulation.dropouts": {"masked": 0.25}})
    assert [change.split(" ")[0] for change in after.changes(before)] == [
        "simulation.dropouts.masked"
    ]
    assert before.changes(after)
