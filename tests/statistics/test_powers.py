"""Means, variances and correlations under rr and oue, from numbers drawn as -1 or 1."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.statistics.encodings import Scaled
from fedveil.statistics.estimates import Sums, correlation, from_ends, ratio
from statistics_parts import asked, only


@pytest.mark.parametrize(
    ("columns", "squares", "true"), [(1, False, 20.0), (1, True, 1600 / 11), (2, True, 1 / 3)]
)
def test_intervals_from_ends_cover_the_population(columns: int, squares: bool, true: float) -> None:
    """Beta(2, 8) on [0, 100]: the mean is 20, and the variance 1,600 / 11.

    A second column is the first in a third of the rows, and independent of it in the others.
    """
    scaled = [Scaled("x", [0.0, 100.0])] * columns
    rng, hits, errors, draws = np.random.default_rng(4), 0, [], 1 + squares
    asked_of, clients, noise = 6007, 16003, 30.0 if columns == 2 else 90.0
    for _ in range(300):
        x, y = 2 * rng.beta(2, 8, (2, asked_of)) - 1
        both = [x, np.where(rng.random(asked_of) < 1 / 3, x, y)][:columns]
        cells = np.zeros(asked_of, np.int64)
        for values in both:
            cells = cells * (draws + 1) + rng.binomial(draws, (1 + values) / 2)
        counts = np.bincount(cells, minlength=(draws + 1) ** columns)
        values = counts * clients / asked_of + rng.normal(0, noise, len(counts))
        sums = Sums(values, np.full(len(counts), noise**2), asked_of, clients)
        found = ratio(sums, *from_ends(scaled, squares=squares), {}, 1.96)
        hits += found.low <= true <= found.high
        errors.append((found.value - true) / np.hypot(found.noise, found.sampling))
    assert hits >= 274  # 95%, less three deviations
    assert 0.85 < np.std(errors) < 1.15
    assert abs(np.mean(errors)) < 5 / np.sqrt(300)


@pytest.mark.parametrize("protection", ["rr", "oue"])
def test_a_variance_of_groups_is_near_the_truth(protection: str) -> None:
    rng = np.random.default_rng(5)
    data = {"x": rng.beta(2, 3, 6007) * 9, "g": rng.choice(["a", "b"], 6007, p=[0.8, 0.2])}
    question = {
        "ask": "variance", "column": "x", "range": [0.0, 9.0], "by": "g", "groups": ["a"],
    }  # fmt: skip
    answers = asked({"v": question}, data, protection, epsilon=5.0, fidelity="aggregate")
    (found,) = answers["v"].estimates
    true = data["x"][data["g"] == "a"].var()
    assert abs(found.value - true) < 4 * np.hypot(found.noise, found.sampling)
    assert found.noise < true
    assert answers.epsilon == 5.0


@pytest.mark.parametrize("protection", ["rr", "oue"])
def test_a_correlation_of_groups_is_near_the_truth(protection: str) -> None:
    rng = np.random.default_rng(6)
    x, g = rng.beta(2, 3, 20_011) * 9, rng.choice(["a", "b", "c"], 20_011, p=[0.6, 0.3, 0.1])
    y = np.where(g == "a", 9 - x, x) + rng.normal(0, 1, len(x))
    question = {
        "ask": "correlation", "column": "x", "range": [0.0, 9.0], "other": "y",
        "other_range": [-1.0, 10.0], "by": "g", "groups": ["b", "a"],
    }  # fmt: skip
    answers = asked({"r": question}, {"x": x, "y": y, "g": g}, protection, epsilon=6.0,
                    fidelity="aggregate")  # fmt: skip
    for found, group in zip(answers["r"].estimates, "ba", strict=True):
        own = g == group
        true = np.corrcoef(x[own], np.clip(y[own], -1, 10))[0, 1]
        assert abs(found.value - true) < 4 * np.hypot(found.noise, found.sampling)
        assert abs(true) > 3 * found.noise > 0
    assert answers.epsilon == 6.0


@pytest.mark.parametrize("squares", [-985.0, -1005.0])
def test_a_correlation_whose_variances_drown_in_noise_states_nothing(squares: float) -> None:
    """Clipped, or with a variance below 0, it would otherwise have an interval of no width."""
    shape, present = correlation()
    values = np.array([0.0, 0.0, squares, -985.0, 60.0, 1000.0])
    found = ratio(Sums(values, np.full(6, 100.0), 1000, 1000), shape, present, {}, 1.96)
    assert (found.low, found.value, found.high) == (-1, 0, 1)
    assert (found.noise, found.sampling) == (1, 1)


def test_few_rows_leave_a_mean_known_and_a_correlation_unknown() -> None:
    """Only noise hides the number of rows. Sampling also hides the variances of a correlation."""
    columns = [Scaled("x", [-10.0, 30.0]), Scaled("y", [0.0, 1.0])]
    few = Sums(np.array([3.0, 5.0]), np.full(2, 1e-6), 40, 40)
    assert ratio(few, *from_ends(columns[:1], squares=False), {}, 1.96).value == pytest.approx(15)
    cells = Sums(np.array([3.0, 0, 0, 0, 2, 0, 0, 0, 3]), np.full(9, 1e-6), 40, 40)
    found = ratio(cells, *from_ends(columns, squares=True), {}, 1.96)
    assert (found.low, found.value, found.high) == (-1, 0, 1)


@pytest.mark.parametrize("constant", ["x", "y"])
def test_a_column_of_equal_numbers_has_no_correlation(constant: str) -> None:
    data = {"x": [1.0, 4.0, 2.0], "y": [0.5, 0.1, 0.9]} | {constant: [0.3] * 3}
    question = {"ask": "correlation", "column": "x", "range": [0.0, 5.0], "other": "y",
                "other_range": [0.0, 1.0]}  # fmt: skip
    (found,) = only(question, data)
    assert (found.low, found.value, found.high) == (-1, 0, 1)


def test_a_correlation_of_nearly_exact_variances_is_clipped_with_its_noise() -> None:
    shape, present = correlation()
    sums = Sums(np.array([0.0, 0.0, -985.0, -985.0, 60.0, 1000.0]), np.full(6, 1e-4), 1000, 1000)
    clipped = ratio(sums, shape, present, {}, 1.96)
    assert clipped.value == 1
    assert clipped.noise > 0


def test_a_table_of_two_columns_has_groups() -> None:
    data = {"a": ["u", "v", "u", "v", "u"], "b": ["x", "x", "y", "y", "x"], "g": list("pqpqq")}
    question = {
        "ask": "contingency", "column": "a", "categories": ["u", "v"], "other": "b",
        "other_categories": ["x", "y"], "by": "g", "groups": ["q", "p"],
    }  # fmt: skip
    found = only(question, data)
    assert [e.value for e in found] == [1, 0, 1, 1, 1, 1, 0, 0]
    assert found[2].label == {"g": "q", "a": "v", "b": "x"}
