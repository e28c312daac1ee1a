"""No two rows, and no two choices of rows, lie further apart than an encoding states."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.mechanisms.unclipped_sum import GaussianSum
from fedveil.privacy.gaussian_curve import ratio_for
from fedveil.privacy.grid_sensitivity import MOST, grid_step, to_grid
from fedveil.privacy.ledger import Ledger
from fedveil.protections.distributed_dp import DistributedDP
from fedveil.protections.dp_encrypt import DPEncrypt
from fedveil.protections.pw_encrypt import PWEncrypt
from fedveil.statistics.carriage import (
    Carriage,
    Participants,
    _gaussian,
    _noise_variance,
    make_protection,
)
from fedveil.statistics.clients import Clients
from fedveil.statistics.encodings import (
    Below,
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
from statistics_parts import only, people

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
def test_no_two_rows_lie_further_apart_than_stated_and_some_lie_as_far(name: str) -> None:
    encoding = CASES[name]
    found = vectors(encoding)
    apart = np.linalg.norm(found[:, None] - found[None], axis=2)
    assert apart.max() == pytest.approx(2 * encoding.half, rel=1e-12)
    centred = np.linalg.norm(found - encoding.centre, axis=1)
    assert centred.max() <= math.sqrt(2) * encoding.half * (1 + 1e-12)


@pytest.mark.parametrize("columns", [[A], [A, B]])
def test_no_pair_of_numbers_between_the_corners_lies_further_apart(columns: list[Scaled]) -> None:
    """A search from random pairs, each of which moves to the furthest of its neighbours."""
    encoding, rng = Moments(columns, squares=True), np.random.default_rng(4)
    pairs = rng.uniform(2, 7, (400, 2, 2))
    best = np.zeros(400)
    for step in (2.5, 1.0, 0.4, 0.15, 0.05) * 3:
        for _ in range(6):
            tried = np.clip(pairs + rng.normal(0, step, pairs.shape), 2, 7)
            table = ArrayTable("t", {"a": tried[..., 0].ravel(), "b": tried[..., 1].ravel()})
            rows = encoding.rows(table, Seeded(1)).values.reshape(400, 2, -1)
            apart = np.linalg.norm(rows[:, 0] - rows[:, 1], axis=1)
            pairs[apart > best], best = tried[apart > best], np.maximum(apart, best)
    assert best.max() <= 2 * encoding.half
    assert best.max() > 1.99 * encoding.half


def joint(protection: str, unit: str = "client") -> Any:
    """Return the protection of several questions, its carriage, and vectors of one client.

    With the unit client, the client has three rows or fewer, and else a thousand or one less.
    """
    file = QuestionFile(
        protection={"name": protection}, epsilon=2.0, client="town", unit=unit, masks=False,
        rows=3 if unit == "client" else None, randomness="seeded",
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
    made = make_protection(file, layout.dimension, 1, Participants(5))
    corners = {
        "age": [20.0, 60.0, 18.0, 49.0, np.nan],
        "income": [0.0, 9000.0, 9000.0, 4000.0, 1.0],
    }
    table = ArrayTable("corners", corners)
    rows = [part.rows(Clients(table, *NOBODY), Seeded(1)) for part in layout.parts]
    few = [np.repeat([0, 1, 2, 3, 4], times) for times in product(range(4), repeat=5)
           if sum(times) <= 3]  # fmt: skip
    many = [np.append(np.arange(1000) % 5, n) for n in range(5)]
    chosen = few if unit == "client" else many
    return made, Carriage(made), [layout.vector(rows, np.array(c, np.int64)) for c in chosen]


NOBODY = np.zeros(0, np.int64), np.zeros(1, np.int64)


def in_steps(protection: Any, update: Any, number: int) -> Any:
    """Return a report before its noise, in whole steps, and the distance that its noise covers."""
    n, by_client = len(update), protection.context.unit == "client"
    if isinstance(protection, DistributedDP):
        noise, entropy = protection.noise, Seeded(number)
        rounded = noise.rounded(update, protection.signs(1), entropy) if by_client else None
        return to_grid(update, noise.step) if rounded is None else rounded, math.sqrt(noise.square)
    if isinstance(protection, DPEncrypt) and by_client:
        mechanism = _gaussian(protection)
        step, sigma = mechanism.grid(n).step, mechanism.sigma
        steps = mechanism.clipped(update) / step
    elif isinstance(protection, DPEncrypt):
        step, sigma = grid_step(1.0, n), GaussianSum(2.0, 1e-6, 1.0, dimension=n).sigma
        steps = to_grid(update, step)
    else:
        noise = protection.central if isinstance(protection, PWEncrypt) else protection.noise
        step, sigma, steps = noise.step, noise.sigma, noise.clipped(update)
    return steps, sigma / (ratio_for(2.0, 1e-6, 1) * step) * (1 + 1e-6)


SUMMED = [
    (name, unit)
    for name in ("central_gaussian", "dp_encrypt", "pw_encrypt", "distributed_dp")
    for unit in ("client", "row")
    if (name, unit) != ("pw_encrypt", "row")
]


@pytest.mark.parametrize(("name", "unit"), SUMMED)
def test_no_two_reports_lie_further_apart_than_the_noise_is_made_for(name: str, unit: str) -> None:
    """Rounding included. Under unit: row, two clients' rows differ in one of a thousand."""
    protection, carriage, vectors = joint(name, unit)
    found = []
    for number, vector in enumerate(vectors):
        steps, reach = in_steps(protection, carriage.update(vector, Seeded(number)), number)
        found.append(steps)
    steps = np.array(found, np.float64)
    apart = np.linalg.norm(steps[:, None] - steps[None], axis=2)
    assert apart.max() <= reach
    assert apart.max() > (0.95 if unit == "client" else 0.8) * reach
    # No vector was shortened by the protection's own clip, which would move it from the others.
    widest = np.linalg.norm(vectors, axis=1).argmax()
    if unit == "client":
        assert 1.05 < np.linalg.norm(vectors[widest]) <= math.sqrt(2)


@pytest.mark.parametrize("name", ["central_gaussian", "dp_encrypt", "pw_encrypt", "distributed_dp"])
def test_the_noise_of_a_histogram_is_that_of_two_codes_a_root_of_two_apart(name: str) -> None:
    question = {"ask": "histogram", "column": "age", "edges": [float(i) for i in range(18, 95)]}
    noise = only(question, people(40), name, epsilon=1.0, delta=1e-6)[0].noise
    least = math.sqrt(2) * ratio_for(1.0, 1e-6, 1)
    extra = {"dp_encrypt": math.sqrt(40), "distributed_dp": math.sqrt(40 / 36)}.get(name, 1.0)
    assert 1 <= noise / (least * extra) < 1.01


@pytest.mark.parametrize("name", ["central_gaussian", "dp_encrypt", "pw_encrypt", "distributed_dp"])
def test_the_rounds_of_a_question_share_its_epsilon(name: str) -> None:
    file = QuestionFile(protection={"name": name}, epsilon=2.0, questions={"n": {"ask": "count"}})
    protection = make_protection(file, 7, 4, Participants(30))
    ledger = Ledger()
    for number in range(1, 5):
        spending = protection.spending(protection.initial_state())
        ledger.record_many(spending, round=number, clients=[0])
    assert 1.9 < ledger.figures(file.delta)["run_most_drawn"].epsilon <= 2.0


def test_the_stated_noise_has_the_rounding_of_each_report() -> None:
    protection, carriage, _ = joint("central_gaussian")
    few, many = (carriage.variance(np.zeros(3), reports)[0] for reports in (5, 905))
    scale = carriage.total(np.ones(1), 1)[0]  # undoes the shortening
    assert few == pytest.approx((protection.noise.sigma**2 + 5 * carriage._step**2 / 4) * scale**2)
    assert many - few == pytest.approx(900 * protection.noise.step**2 / 4 * scale**2, rel=1e-6)


def test_the_stated_noise_of_a_sum_is_that_of_all_its_reports() -> None:
    rows, _, _ = joint("dp_encrypt", "row")
    settings = rows.settings
    sigma = GaussianSum(
        settings.dp_eps, settings.dp_delta, settings.dp_norm_clip, dimension=rows.dimension
    ).sigma
    assert _noise_variance(rows, 5) == pytest.approx(5 * sigma**2)
    shared, _, _ = joint("distributed_dp")
    each = shared.noise.step**2 * (shared.noise.share_variance + 1 / 4)
    assert _noise_variance(shared, 5) == pytest.approx(5 * each)
    file = QuestionFile.read({"protection": "pw_encrypt", "questions": {"n": {"ask": "count"}}}, [])
    masked = make_protection(file, 3, 1, Participants(5))
    assert _noise_variance(masked, 5) == pytest.approx(5 * masked.fixed.step**2 / 4)


@pytest.mark.parametrize("name", ["central_gaussian", "dp_encrypt", "pw_encrypt"])
def test_entries_below_zero_are_rounded_without_bias(name: str) -> None:
    """The grid is the protection's own. The protection itself rounds towards zero."""
    protection, carriage, _ = joint(name)
    entries = np.full(protection.dimension, -3.5 * carriage._step / carriage._scale)
    made = [in_steps(protection, carriage.update(entries, Seeded(number)), number)[0]
            for number in range(60)]  # fmt: skip
    assert np.mean(made) == pytest.approx(-3.5, abs=0.1)


def test_a_report_carries_no_more_rows_than_its_sensitivity_is_proved_for() -> None:
    _, carriage, _ = joint("central_gaussian", "row")
    assert carriage.most_rows(1e-9) == MOST
    assert carriage.most_rows(2 * carriage._most_entry / MOST) == MOST // 2
    assert joint("central_gaussian")[1].most_rows(1e-9) is None


def test_cells_include_their_lower_edge_and_the_last_one_both() -> None:
    table = ArrayTable("t", {"x": [1.0, 1.99, 2.0, 5.0, 5.01, 0.99, np.nan]})
    cells, moved = Bins("x", [1, 2, 5]).cells(table)
    assert cells.tolist() == [0, 0, 1, 1, -1, -1, -1]
    assert not moved.any()
    cells, moved = Bins("x", [1, 2, 5], clamp=True).cells(table)
    assert cells.tolist() == [0, 0, 1, 1, 1, 0, -1]
    assert moved.tolist() == [False] * 4 + [True, True, False]


def test_cells_are_named_by_their_whole_edges() -> None:
    edges = [0.1 + 0.2, 1234567.0, 1234568.25, 3e9]
    assert Bins("x", edges).labels == [
        "[0.3, 1234567)", "[1234567, 1234568.25)", "[1234568.25, 3000000000]",
    ]  # fmt: skip


def test_a_category_is_a_whole_word_in_its_own_letters() -> None:
    words = [" Nord-Ost", "Ä b", "Ä b ", "7", "nord-ost", "Nord"]
    question = {"ask": "histogram", "column": "w", "categories": ["Nord-Ost", "Ä b", 7]}
    assert [e.value for e in only(question, {"w": words})] == [1, 2, 1]


def test_a_number_at_the_end_of_its_range_is_not_moved() -> None:
    table = ArrayTable("t", {"x": [2.0, 7.0, 1.9, 7.1]})
    _, moved, _ = Scaled("x", [2.0, 7.0]).values(table)
    assert moved.tolist() == [False, False, True, True]


def test_a_row_counts_in_the_cell_of_all_its_columns_or_in_none() -> None:
    table = ArrayTable("t", {
        "g": ["u", "v", "w", "w", "w", "v"], "x": [4.0, 4.0, 4.0, np.nan, 9.0, 1.0],
    })  # fmt: skip
    bins = Bins("x", [2, 3, 5, 7], clamp=True)
    for axes, width, cells in (((GROUPS, bins), 3, [1, 0, 4, 0, 5, 0]),
                               ((bins, GROUPS), 2, [2, 0, 3, 0, 5, 0])):  # fmt: skip
        rows = Cells(*axes).rows(table, Seeded(3))
        lost = [False, True, False, True, False, True]
        assert rows.lost.tolist() == lost, width
        assert rows.cells is not None
        assert rows.cells.tolist() == np.where(lost, -1, cells).tolist(), width
        assert rows.moved.tolist() == [False] * 4 + [True, False], width


def test_rows_of_no_condition_are_neither_moved_nor_missing() -> None:
    """The conditions keep rows 2 to 4: one is missing, one unchanged, one moved."""
    table = ArrayTable("t", {"x": [1.0, 9.0, np.nan, 1.0, 9.0, np.nan], "y": [1.0] * 6})
    x, y = Scaled("x", [0.0, 5.0]), Scaled("y", [0.0, 5.0])
    for encoding in (Moments([x], squares=False), Ends([x, y], 2), Below(x, 3.0, 0.9)):
        rows = encoding.rows(table, Seeded(3))
        assert rows.moved.tolist() == [False, True, False] * 2
        assert rows.lost.tolist() == [False, False, True] * 2
        few = rows.without(np.arange(6) > 1).without(np.arange(6) < 5)
        assert np.flatnonzero(few.moved).tolist() == [4]
        assert np.flatnonzero(few.lost).tolist() == [2]


def test_a_row_without_one_of_its_values_is_not_moved_by_the_other() -> None:
    table = ArrayTable("t", {
        "x": [9.0, 1.0, 9.0, 1.0, np.nan, 9.0], "y": [np.nan, 9.0, 1.0, 1.0, 9.0, 1.0],
        "g": ["u", "u", "u", "u", "u", ""],
    })  # fmt: skip
    columns = [Scaled("x", [0.0, 5.0]), Scaled("y", [0.0, 5.0])]
    for encoding in (Moments(columns, squares=True), Ends(columns, 2)):
        alone = encoding.rows(table, Seeded(3))
        assert alone.moved.tolist() == [False, True, True, False, False, True]
        assert alone.lost.tolist() == [True, False, False, False, True, False]
        assert not alone.total(np.array([0, 4])).any()
        grouped = Grouped(encoding, Categories("g", ["u"])).rows(table, Seeded(3))
        assert grouped.moved.tolist() == [False, True, True, False, False, False]
        assert grouped.lost.tolist() == [True, False, False, False, True, True]


def test_a_row_of_no_group_is_not_moved_below_an_edge() -> None:
    table = ArrayTable("t", {"x": [9.0, 9.0, np.nan, 1.0], "g": ["u", "v", "u", "v"]})
    rows = Below(Scaled("x", [0.0, 5.0]), 3.0, 0.5, Categories("g", ["u"])).rows(table, Seeded(3))
    assert rows.moved.tolist() == [True, False, False, False]
    assert rows.lost.tolist() == [False, True, True, True]


def test_a_row_that_two_conditions_exclude_still_fills_the_spare_cell() -> None:
    table = ArrayTable("t", {"x": np.full(501, 3.0)})
    rows = Below(Scaled("x", [0.0, 9.0]), 3.0, 0.7).rows(table, Seeded(2))
    assert rows.total(np.arange(501))[0] == 0  # the edge itself is not below it
    nobody = np.zeros(501, np.bool_)
    once, twice = rows.without(nobody), rows.without(nobody).without(nobody)
    assert 300 < once.total(np.arange(501))[0] == twice.total(np.arange(501))[0] < 400


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
