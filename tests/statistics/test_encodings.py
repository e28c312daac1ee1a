"""No row, and no choice of rows, takes a client's vector out of its ball."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.statistics.encodings import (
    Bins,
    Categories,
    Cells,
    Encoding,
    Ends,
    Grouped,
    Moments,
    Scaled,
)
from fedveil.statistics.plan import Layout
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Schedule, Step
from fedveil.statistics.tables import ArrayTable
from statistics_parts import people

# The corners of both ranges, the middle, numbers beyond them, and a missing number.
VALUES = [-3.0, 2.0, 4.5, 7.0, 90.0, float("nan")]
TABLE = ArrayTable(
    "corners",
    {
        "a": [a for a, _ in product(VALUES, VALUES)],
        "b": [b for _, b in product(VALUES, VALUES)],
        "g": ["u", "v", "w"] * 12,
    },
)
A, B = Scaled("a", [2.0, 7.0]), Scaled("b", [2.0, 7.0])
GROUPS = Categories("g", ["u", "w"])
CASES: dict[str, Encoding] = {
    "one cell": Cells(),
    "two cells": Cells(Bins("a", [2, 4, 7])),
    "groups of cells": Cells(GROUPS, Bins("a", [2, 3, 5, 7], clamp=True)),
    "mean": Moments([A], squares=False),
    "variance": Moments([A], squares=True),
    "correlation": Moments([A, B], squares=True),
    "ends": Ends([A], 1),
    "ends of two columns": Ends([A, B], 2),
    "groups of means": Grouped(Moments([A], squares=True), GROUPS),
    "groups of correlations": Grouped(Moments([A, B], squares=True), GROUPS),
}


def vectors(encoding: Encoding) -> Any:
    rows = encoding.rows(TABLE, Seeded(3))
    single = [rows.total(np.array([row])) for row in range(len(TABLE))]
    return np.array([*single, np.zeros(encoding.width)])  # the last: a row that does not count


@pytest.mark.parametrize("name", CASES)
def test_every_row_lies_in_the_ball_and_the_ball_is_tight(name: str) -> None:
    encoding = CASES[name]
    found = vectors(encoding)
    distance = np.linalg.norm(found - encoding.centre, axis=1)
    assert distance.max() <= encoding.radius * (1 + 1e-12)
    assert distance.max() >= encoding.radius * (1 - 1e-12), "the ball is larger than it need be"
    assert np.linalg.norm(found, axis=1).max() <= encoding.reach * (1 + 1e-12)


@pytest.mark.parametrize("unit", ["client", "row"])
def test_a_client_s_joint_vector_is_no_longer_than_one(unit: str) -> None:
    file = QuestionFile(
        protection={"name": "distributed_dp"}, epsilon=2.0, client="town", unit=unit,
        rows=3 if unit == "client" else None,
        questions={
            "n": {"ask": "count", "weight": 5.0, "where": "age > 40"},
            "h": {"ask": "histogram", "column": "age", "edges": [18.0, 50.0, 70.0]},
            "m": {"ask": "mean", "column": "income", "range": [0.0, 9000.0]},
            "c": {
                "ask": "correlation", "column": "age", "other": "income",
                "range": [20.0, 60.0], "other_range": [0.0, 9000.0],
            },
            "q": {"ask": "quantiles", "column": "age", "range": [0.0, 90.0], "at": [0.5]},
        },
    )  # fmt: skip
    layout: Layout = Schedule(file).layout(Step(1))
    table = ArrayTable("people", people())
    rows = [part.encoding.rows(table, Seeded(1)) for part in layout.parts]
    numbers = range(300)
    # Under unit: row a report is a sum of single rows, each of which is bounded.
    most = 3 if unit == "client" else 1
    norms = [np.linalg.norm(layout.vector(rows, np.arange(n, n + most))) for n in numbers]
    assert 0.5 < max(norms) <= 1 + 1e-12


def test_cells_include_their_lower_edge_and_the_last_one_both() -> None:
    table = ArrayTable("t", {"x": [1.0, 1.99, 2.0, 5.0, 5.01, 0.99, np.nan]})
    cells, moved = Bins("x", [1, 2, 5]).cells(table)
    assert cells.tolist() == [0, 0, 1, 1, -1, -1, -1]
    assert not moved.any()
    cells, moved = Bins("x", [1, 2, 5], clamp=True).cells(table)
    assert cells.tolist() == [0, 0, 1, 1, 1, 0, -1]
    assert moved.tolist() == [False] * 4 + [True, True, False]


def test_ends_are_unbiased_and_depend_on_the_number_alone() -> None:
    table = ArrayTable("t", {"x": np.full(20_011, 3.0)})
    rows = Ends([Scaled("x", [2.0, 7.0])], 1).rows(table, Seeded(5))
    low, high = rows.total(np.arange(20_011))
    # 3 is a fifth of the way up: binomial, five deviations.
    assert abs(high - 20_011 / 5) < 5 * np.sqrt(20_011 * 0.16)
    assert low + high == 20_011


def test_the_draws_of_a_row_are_independent() -> None:
    """Three sums of two draws a column: their cells are products of binomials."""
    table = ArrayTable("t", {"x": np.full(30_011, 3.0), "y": np.full(30_011, 6.5)})
    columns = [Scaled("x", [2.0, 7.0]), Scaled("y", [2.0, 7.0])]
    found = Ends(columns, 2).rows(table, Seeded(5)).total(np.arange(30_011))
    up, over = np.array([0.64, 0.32, 0.04]), np.array([0.01, 0.18, 0.81])
    expected = 30_011 * np.outer(up, over).ravel()
    assert (abs(found - expected) < 5 * np.sqrt(expected)).all()
