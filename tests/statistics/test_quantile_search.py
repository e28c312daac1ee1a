"""Quantiles under rr and oue: a noisy search in which every client answers one bit."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.statistics.encodings import Below, Categories, Scaled
from fedveil.statistics.quantile_search import Search, _rising, _strict
from fedveil.statistics.tables import ArrayTable
from statistics_parts import asked, only

INCOMES = {"ask": "quantiles", "column": "x", "range": [0.0, 2e5], "at": [0.5], "cells": 128}


def searched(values: np.ndarray, q: float, deviation: float, seed: int) -> Search:
    """Search with clients of its own in every round, and normal noise in each share."""
    rng, search = np.random.default_rng(seed), Search(np.linspace(0.0, 1.0, 129), q)
    for part in np.array_split(rng.permutation(values), search.rounds):
        edge = search.next()
        share = (part < search.edges[edge]).mean() + rng.normal(0, deviation)
        search.answered(edge, float(share), deviation**2, len(part))
    return search


def test_intervals_hold_the_quantile_of_the_population() -> None:
    hits, errors = 0, []
    for seed in range(120):
        values = np.random.default_rng(1000 + seed).beta(2, 3, 1407)
        found = searched(values, 0.5, 0.05, seed).estimate(1.96, {})
        hits += found.low <= 0.385728 <= found.high  # the median of Beta(2, 3)
        assert found.low <= found.value <= found.high
        assert np.hypot(found.noise, found.sampling) == pytest.approx(
            (found.high - found.low) / 3.92
        )
        errors.append(abs(found.value - 0.385728))
    assert hits >= 107  # 95%, less three deviations
    assert np.mean(errors) < 0.03


def test_without_noise_it_is_a_binary_search() -> None:
    values = (np.arange(7000) + 0.5) / 7000
    search = searched(values, 0.3, 1e-9, 3)
    assert search.rounds == 14
    assert abs(search.estimate(1.96, {}).value - 0.3) < 0.02


def test_a_client_that_does_not_count_says_yes_with_probability_q() -> None:
    table = ArrayTable("t", {"x": [1.0, 5.0, np.nan] * 4000, "g": ["a"] * 6000 + ["b"] * 6000})
    encoding = Below(Scaled("x", [0.0, 9.0]), 3.0, 0.3, Categories("g", ["b"]))
    rows = encoding.rows(table, Seeded(4))
    own = np.arange(6000, 12000)
    inside = own[(own % 3) < 2]
    assert rows.total(inside)[0] == 2000  # who counts answers truly: one of two is below
    others = np.setdiff1d(np.arange(12000), inside)
    assert abs(rows.total(others)[0] - 0.3 * 8000) < 5 * np.sqrt(8000 * 0.21)
    nobody = rows.without(np.zeros(12000, np.bool_))
    assert abs(nobody.total(np.arange(12000))[0] - 0.3 * 12000) < 5 * np.sqrt(12000 * 0.21)


@pytest.mark.parametrize("protection", ["rr", "oue"])
def test_a_median_of_a_group_is_near_the_truth(protection: str) -> None:
    rng = np.random.default_rng(8)
    income = np.minimum(np.exp(rng.normal(10.3, 0.6, 9001)), 2e5)
    group = rng.choice(["f", "m"], 9001, p=[0.7, 0.3])
    question = {**INCOMES, "by": "g", "groups": ["m"], "where": "x > 5000"}
    answers = asked(
        {"q": question}, {"x": income, "g": group}, protection, epsilon=4.0, fidelity="aggregate"
    )
    (found,) = answers["q"].estimates
    true = np.median(income[(group == "m") & (income > 5000)])
    assert abs(found.value - true) < 0.04 * 2e5
    assert found.low < true < found.high
    assert found.label == {"g": "m", "quantile": "0.5"}
    assert answers.epsilon == 4.0


def test_values_of_one_kind_and_few_clients_have_an_interval() -> None:
    (found,) = only(INCOMES, {"x": np.full(3001, 70_000.0)}, "oue", epsilon=6.0)
    assert found.low <= 70_000 <= found.high
    assert found.high - found.low < 20_000
    (few,) = only(INCOMES, {"x": np.full(19, 70_000.0)}, "oue", epsilon=1.0)
    assert few.low <= few.value <= few.high


def test_the_estimate_is_where_a_line_through_the_near_answers_crosses() -> None:
    search = Search(np.linspace(0.0, 1.0, 9), 0.5)
    for edge, share in ((1, 0.1), (3, 0.4), (4, 0.48), (5, 0.6)):
        search.answered(edge, share, 1e-4, 10**6)
    # Least squares through (3/8, -0.1), (4/8, -0.02) and (5/8, 0.1). The first answer is too far.
    assert search.estimate(1.96, {}).value == pytest.approx(0.5 + (0.02 / 3) / 0.8, rel=1e-6)


def test_a_high_quantile_by_answers_of_unequal_precision() -> None:
    search, q = Search(np.linspace(0.0, 1.0, 9), 0.8), 0.8
    answers = [(3, 0.65, 4000), (5, 0.76, 5000), (6, 0.81, 90_000), (7, 0.83, 7000)]
    for edge, share, clients in answers:
        search.answered(edge, share, 1e-4, clients)
    found = search.estimate(0.3, {})
    variances = [1e-4 + q * (1 - q) / clients for *_, clients in answers]
    # The first is further from q than 0.3 (1 - q), and the others count by their precision.
    places = [search.edges[edge] for edge, *_ in answers[1:]]
    heights = [share - q for _, share, _ in answers[1:]]
    slope, at = np.polyfit(places, heights, 1, w=[v**-0.5 for v in variances[1:]])
    assert found.value == pytest.approx(-at / slope, rel=1e-6)
    part = sum(1e-4 / v**2 for v in variances) / sum(1 / v for v in variances)
    assert found.noise**2 / (found.noise**2 + found.sampling**2) == pytest.approx(part)


def test_an_edge_that_may_be_the_quantile_is_asked_again() -> None:
    search = Search(np.linspace(0.0, 1.0, 9), 0.5)
    search.answered(3, 0.498, 1e-4, 10**6)
    assert search.next() == 3
    search.answered(3, 0.4, 1e-6, 10**6)
    assert search.next() > 3


def test_of_two_edges_that_may_be_it_the_likelier_is_asked_again() -> None:
    search = Search(np.linspace(0.0, 1.0, 9), 0.5)
    search.answered(3, 0.4, 1e-4, 10**6)
    search.answered(6, 0.499, 1e-4, 10**6)
    assert search.next() == 6


def test_edges_of_equal_height_count_as_one_in_their_middle() -> None:
    heights, places = np.array([-0.5, 0.0, 0.0, 0.5]), np.array([0.0, 1.0, 3.0, 4.0])
    assert [found.tolist() for found in _strict(heights, places)] == [[-0.5, 0, 0.5], [0, 2, 4]]


def test_neighbours_that_fall_are_pooled_by_their_weights() -> None:
    values, weights = np.array([1.0, 4.0, 1.0, 0.0, 9.0]), np.array([1.0, 1.0, 2.0, 1.0, 5.0])
    assert _rising(values, weights) == [1.0, 1.5, 1.5, 1.5, 9.0]
    # The mean of the last two falls below the first, which then joins them.
    assert _rising(np.array([2.0, 3.0, 0.0]), np.ones(3)) == pytest.approx([5 / 3] * 3)


def answered(*answers: tuple[int, float], noise: float) -> Search:
    """Return a search for the median among nine edges, with these answers (edge, share)."""
    search = Search(np.linspace(0.0, 1.0, 9), 0.5)
    for edge, share in answers:
        search.answered(edge, share, noise, 10**9)
    return search


def test_an_estimate_does_not_leave_its_interval() -> None:
    """The line crosses zero below edge 3, at which significantly too few clients say yes."""
    found = answered((3, 0.499), (4, 0.63), (5, 0.64), noise=1e-10).estimate(1.96, {})
    assert (found.low, found.value, found.high) == (0.375, 0.375, 0.5)


def test_a_line_that_may_as_well_fall_is_not_used() -> None:
    """Between the neighbours of zero, the estimate is then the place of the answer itself."""
    shares = (3, 0.49), (4, 0.5), (5, 0.52)
    assert answered(*shares, noise=1e-7).estimate(1.96, {}).value == pytest.approx(4 / 8 - 1 / 36)
    assert answered(*shares, noise=1.0).estimate(1.96, {}).value == 0.5


def test_answers_beyond_the_ends_count_as_the_ends() -> None:
    heights, places = _strict(np.array([-0.5, 0.7, 0.5]), np.array([0.0, 3.0, 4.0]))
    assert (heights.tolist(), places.tolist()) == ([-0.5, 0.5], [0.0, 3.5])
