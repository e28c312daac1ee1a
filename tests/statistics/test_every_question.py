"""Every kind of question obeys its condition, and its interval has the unit of its column."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.statistics.clients import load
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.question_settings import Kind
from fedveil.statistics.schedule import Schedule, Step
from statistics_parts import asked, only, people

AGE = {"column": "age", "range": [18.0, 93.0]}
QUESTIONS: dict[str, dict[str, Any]] = {
    "count": {},
    "histogram": {"column": "age", "edges": [18.0, 31.0, 93.0], "by": "sex", "groups": ["m", "f"]},
    "mean": {**AGE, "by": "sex", "groups": ["m", "f"]},
    "variance": AGE,
    "quantiles": {**AGE, "at": [0.2, 0.7], "cells": 64},
    "correlation": {**AGE, "other": "income", "other_range": [0.0, 80000.0]},
    "heavy_hitters": {"column": "sex", "length": 3, "alphabet": "fmxyz"},
    "contingency": {"column": "sex", "categories": ["m", "f"], "other": "age",
                    "other_edges": [18.0, 50.0, 93.0]},
}  # fmt: skip


@pytest.mark.parametrize("place", ["question", "file"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_rows_that_do_not_meet_a_condition_do_not_count(kind: str, place: str) -> None:
    data = people()
    question = {"ask": kind, **QUESTIONS[kind]}
    kept = (data["town"] > 3) & (data["income"] < 40000)
    rest = {name: column[kept] for name, column in data.items()}
    conditions = {"town": "town > 3", "income": "income < 40000"}
    if place == "question":
        both = " and ".join(conditions.values())
        found = only({**question, "where": both}, data)
    else:
        found = only({**question, "where": conditions["town"]}, data, where=conditions["income"])
    expected = [(e.label, pytest.approx(e.value, rel=1e-5)) for e in only(question, rest)]
    assert [(e.label, e.value) for e in found] == expected
    assert [e.value for e in found] != [e.value for e in only(question, data)]


@pytest.mark.parametrize(("kind", "power"), [("mean", 1), ("variance", 2), ("quantiles", 1)])
def test_another_unit_of_a_column_scales_the_answer_and_its_interval(kind: str, power: int) -> None:
    data, more = people(), {"protection": "central_gaussian", "epsilon": 40.0}
    question = {"ask": kind, **QUESTIONS[kind]}
    months = {**question, "range": [12 * end for end in question["range"]]}
    for in_years, in_months in zip(
        only(question, data, **more), only(months, {**data, "age": 12 * data["age"]}, **more),
        strict=True,
    ):  # fmt: skip
        for part in ("value", "low", "high", "noise", "sampling"):
            expected = getattr(in_years, part) * 12**power
            assert getattr(in_months, part) == pytest.approx(expected, rel=1e-6), part


@pytest.mark.parametrize(("kind", "low", "high"), [("mean", 40.0, 60.0), ("variance", 0.0, 300.0)])
def test_few_equal_rows_at_an_end_have_an_interval_with_a_width(
    kind: str, low: float, high: float
) -> None:
    question = {"ask": kind, "column": "x", "range": [20.0, 60.0]}
    (one,) = only(question, {"x": [60.0]})
    assert one.low <= low
    assert one.high >= high
    widths = [e.high - e.low for n in (3, 40) for e in only(question, {"x": [60.0] * n})]
    assert widths[0] > widths[1] > 0


def test_a_stated_sampling_error_is_that_of_the_population() -> None:
    """On columns at the ends of their range, where the bounds are equalities but for 4 rows."""
    ends = np.repeat([20.0, 60.0], [41, 123])
    data, n = {"age": ends}, len(ends)
    column = {"column": "age", "range": [20.0, 60.0]}
    answers = asked(
        {"m": {"ask": "mean", **column}, "n": {"ask": "count", "where": "age > 30"}}, data
    )
    shrunk = (123 - 41) / (n + 4)
    expected = 20 * np.sqrt((1 - shrunk**2) / n)
    assert answers["m"].estimates[0].sampling == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(np.sqrt(ends.var() / n), rel=0.01)
    assert answers["n"].estimates[0].sampling == pytest.approx(
        np.sqrt(123 * 41 / n + 1.95996**2),
        rel=1e-4,  # one client more than were seen, z² times
    )


def test_a_search_and_frequent_words_obey_both_conditions() -> None:
    """Rows of no condition are not counted, as the quantile searched for is next to 0."""
    search = {"ask": "quantiles", "column": "x", "range": [0.0, 8.0], "at": [1e-9], "cells": 4}
    words = {"ask": "heavy_hitters", "column": "w", "alphabet": "ab", "length": 1}
    keys = {"protection": "oue", "epsilon": 2.0, "where": "a < 5"}
    data = {"x": [0.5] * 4, "w": ["b"] * 4, "a": [1.0, 9.0, 1.0, 9.0], "b": [3.0, 3.0, 0.0, 0.0]}
    for question, step in ((search, Step(1, edge=2)), (words, Step(1, {"q": [[""]]}))):
        file = QuestionFile.read({**keys, "questions": {"q": {**question, "where": "b > 2"}}}, [])
        (part,) = Schedule(file).parts(step)
        cells = part.rows(load(file, data), Seeded(3)).cells
        assert cells is not None
        assert (cells >= 0).tolist() == [True, False, False, False]


def test_values_outside_the_edges_of_either_column_are_in_no_cell() -> None:
    edges = {"edges": [0.0, 2.0, 5.0], "other_edges": [1.0, 3.0, 4.0]}
    data = {"x": [1.0, 5.5, 3.0, 3.0, -1.0], "y": [3.5, 2.0, 4.5, 1.0, 0.5]}
    found = only({"ask": "contingency", "column": "x", "other": "y", **edges}, data)
    assert [e.value for e in found] == [0, 1, 1, 0]


def test_a_table_of_numbers_by_words_reads_each_column_in_its_own_kind() -> None:
    question = {
        "ask": "contingency", "column": "age", "edges": [18.0, 50.0, 93.0],
        "other": "town", "other_categories": ["v", "u"],
    }  # fmt: skip
    found = only(question, {"age": [20, 70, 30, 60, 25, 61], "town": list("uvvvuw")})
    assert [e.value for e in found] == [1, 2, 2, 0]
    assert found[1].label == {"age": "[18, 50)", "town": "u"}
