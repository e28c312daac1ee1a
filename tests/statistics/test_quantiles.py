"""Quantiles: consistent trees, intervals that cover, and a budget shared by the levels."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.statistics.estimates import Sums
from fedveil.statistics.quantile_tree import _leaves, quantiles
from statistics_parts import asked, only


def noisy_levels(truth: np.ndarray, deviation: float, rng: np.random.Generator) -> list[Sums]:
    found = []
    for width in (4, 16, 32):
        counts = truth.reshape(width, -1).sum(1) + rng.normal(0, deviation, width)
        found.append(Sums(counts, np.full(width, deviation**2), 500, 500))
    return found


def test_the_leaves_are_the_best_linear_estimate_and_their_covariance_is_true() -> None:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 40, 32).astype(float)
    draws = np.array([_leaves(noisy_levels(truth, 6.0, rng))[0] for _ in range(3000)])
    _, covariance = _leaves(noisy_levels(truth, 6.0, rng))
    assert (abs(draws.mean(0) - truth) < 5 * np.sqrt(np.diag(covariance) / 3000)).all()
    below = np.tril(np.ones((32, 32)))
    stated = np.diag(below @ covariance @ below.T)
    assert (abs((draws @ below.T).var(0) / stated - 1) < 0.2).all()
    # Half of all rows: 16 leaves alone would have a variance of 16 * 36.
    assert stated[15] < 3 * 36


@pytest.mark.parametrize(("deviation", "width"), [(12.0, 0.2), (40.0, 0.5)])
def test_intervals_hold_the_true_quantile_and_are_no_wider_than_needed(
    deviation: float, width: float
) -> None:
    edges = np.linspace(0.0, 1.0, 33)
    hits, widths = 0, []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        values = rng.beta(2, 3, 900)
        counts, _ = np.histogram(values, edges)
        levels = noisy_levels(counts.astype(float), deviation, rng)
        levels = [Sums(s.values, s.noise, 900, 900) for s in levels]
        (found,) = quantiles(levels, edges, [0.5], 1.96, {})
        hits += found.low <= 0.385728 <= found.high  # the median of Beta(2, 3)
        widths.append(found.high - found.low)
    assert hits >= 188  # 95%, less three deviations
    assert np.mean(widths) < width


def test_an_interval_is_a_cell_wider_on_each_side_than_the_possible_edges() -> None:
    """20 of 40 rows in four cells are below the third edge. No other edge is possible."""
    exact = [Sums(np.full(4, 10.0), np.zeros(4), 40, 40)]
    (found,) = quantiles(exact, np.arange(5.0), [0.5], 0.1, {})
    assert (found.low, found.value, found.high) == (1, 2, 3)
    (found,) = quantiles(exact, np.arange(5.0), [0.5], 3.5, {})  # a reach of 11 rows
    assert (found.low, found.value, found.high) == (0, 2, 4)


def test_a_quantile_within_a_cell_is_where_its_rows_are_spread_evenly() -> None:
    exact = [Sums(np.array([8.0, 24.0, 8.0, 0.0]), np.zeros(4), 40, 40)]
    found = quantiles(exact, np.array([0.0, 1.0, 3.0, 4.0, 8.0]), [0.3, 0.1], 0.1, {})
    # 12 rows are a sixth of the way through the second cell, and 4 rows half way into the first.
    assert [e.value for e in found] == pytest.approx([1 + 2 / 6, 0.5])
    assert [e.noise for e in found] == [0, 0]
    assert all(e.sampling > 0 for e in found)


def test_numbers_of_rows_that_fall_are_levelled_between_both_sides() -> None:
    """Noise makes 10, 4 and 16 rows below the edges, which must not fall: 7, 7 and 16."""
    noisy = [Sums(np.array([10.0, -6.0, 12.0, 4.0]), np.full(4, 4.0), 20, 20)]
    (found,) = quantiles(noisy, np.arange(5.0), [0.45], 0.5, {})
    # 20 rows, less 0.45 of them: 1, -5, 7 and 11. The first two are both levelled to -2.
    assert found.value == pytest.approx(2 + 2 / 9)


def test_two_quantiles_that_are_nearly_equal_have_names_of_their_own() -> None:
    at = [0.1234567, 0.1234568]
    question = {"ask": "quantiles", "column": "x", "range": [0.0, 9.0], "at": at, "cells": 4}
    names = ["0.1234567", "0.1234568"]
    assert [e.label["quantile"] for e in only(question, {"x": [1.0] * 30})] == names
    local = only(question, {"x": [1.0] * 90}, "oue", epsilon=2.0)
    assert [e.label["quantile"] for e in local] == names


def test_the_level_that_fewest_were_asked_decides_the_sampling() -> None:
    def sampling(*asked: int) -> float:
        levels = [
            Sums(np.full(width, 160.0 / width), np.ones(width), number, 40)
            for width, number in zip((4, 16), asked, strict=True)
        ]
        (found,) = quantiles(levels, np.arange(17.0), [0.5], 0.5, {})
        return found.sampling

    assert sampling(40, 10) == sampling(10, 40) == sampling(10, 10) > sampling(40, 40)


def test_quantiles_without_noise_are_those_of_the_data_to_a_cell() -> None:
    x = np.random.default_rng(5).gamma(3.0, 5.0, 1501)
    at = [0.1, 0.5, 0.83]
    question = {"ask": "quantiles", "column": "x", "range": [0.0, 64.0], "at": at, "cells": 512}
    for found, q in zip(only(question, {"x": x}), at, strict=True):
        true = float(np.quantile(x, q))
        assert abs(found.value - true) < 64 / 512
        assert found.low < true < found.high


def test_values_beyond_the_range_count_at_its_ends() -> None:
    x = np.array([-50.0] * 30 + [3.0] * 10 + [500.0] * 61)
    question = {"ask": "quantiles", "column": "x", "range": [0.0, 8.0], "at": [0.5], "cells": 16}
    (found,) = only(question, {"x": x})
    assert found.value > 7


@pytest.mark.parametrize("protection", ["central_gaussian", "distributed_dp"])
def test_a_median_of_incomes_under_noise(protection: str) -> None:
    income = np.minimum(np.exp(np.random.default_rng(8).normal(10.3, 0.6, 4003)), 2e5)
    question = {
        "ask": "quantiles", "column": "x", "range": [0.0, 2e5], "at": [0.5], "cells": 64,
    }  # fmt: skip
    (found,) = only(question, {"x": income}, protection=protection, epsilon=4.0)
    assert found.low < np.median(income) < found.high
    assert abs(found.value - np.median(income)) < 0.02 * 2e5


def test_the_levels_share_the_budget_equally() -> None:
    # Levels of 4, 16 and 64 cells, as theory says: noise grows with the root of their number.
    single = {"ask": "histogram", "column": "x", "edges": np.linspace(0, 64, 65).tolist()}
    tree = {"ask": "quantiles", "column": "x", "range": [0.0, 64.0], "at": [0.5], "cells": 64}
    from fedveil.statistics.question import QuestionFile
    from fedveil.statistics.schedule import Schedule, Step

    def scales(question: object) -> list[float]:
        file = QuestionFile(
            protection={"name": "dp_encrypt"}, epsilon=1.0, questions={"q": question}
        )
        return [ball.scale for ball in Schedule(file).layout(Step(1)).balls]

    assert len(scales(tree)) == 3
    assert scales(tree)[-1] == pytest.approx(scales(single)[0] * 3**0.5)


def test_groups_have_quantiles_of_their_own() -> None:
    x = np.concatenate([np.full(61, 3.0), np.full(40, 20.0)])
    group = ["a"] * 61 + ["b"] * 40
    question = {
        "ask": "quantiles", "column": "x", "range": [0.0, 32.0], "at": [0.5], "cells": 32,
        "by": "g", "groups": ["b", "a"],
    }  # fmt: skip
    found = asked({"q": question}, {"x": x, "g": group})["q"].estimates
    assert [e.label for e in found] == [
        {"g": "b", "quantile": "0.5"},
        {"g": "a", "quantile": "0.5"},
    ]
    assert 20 <= found[0].value <= 21
    assert 3 <= found[1].value <= 4
