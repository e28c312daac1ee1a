"""Questions asked of simulated clients, under every protection that carries them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.statistics.clients import clients_of
from fedveil.statistics.question import LOCAL, SUMS
from fedveil.statistics.tables import ArrayTable
from statistics_parts import PEOPLE, asked, only, people

EDGES = [18.0, 30.0, 47.0, 92.0]
QUESTIONS: dict[str, Any] = {
    "old": {"ask": "count", "where": "age >= 65"},
    "ages": {"ask": "histogram", "column": "age", "edges": EDGES},
    "income": {"ask": "mean", "column": "income", "range": [0.0, 80000.0]},
}


def truth(data: dict[str, Any]) -> list[float]:
    ages, _ = np.histogram(data["age"], EDGES)
    return [
        float((data["age"] >= 65).sum()),
        *ages,
        float(np.clip(data["income"], 0, 80000).mean()),
    ]


def flat(answers: Any) -> list[Any]:
    return [estimate for name in QUESTIONS for estimate in answers[name].estimates]


@pytest.mark.parametrize("protection", [*SUMS, *LOCAL])
def test_estimates_lie_within_five_deviations_of_the_truth(protection: str) -> None:
    data = people(1201)
    epsilon = None if protection == "not_encrypt" else 8.0
    found = flat(asked(QUESTIONS, data, protection, epsilon=epsilon))
    for estimate, true in zip(found, truth(data), strict=True):
        spread = 5 * np.hypot(estimate.noise, estimate.sampling if protection in LOCAL else 0)
        assert abs(estimate.value - true) <= max(spread, 1e-3 * abs(true) + 1e-6)
        assert estimate.low < estimate.value < estimate.high or estimate.low == 0


@pytest.mark.parametrize("protection", ["dp_encrypt", "central_gaussian", "distributed_dp", "oue"])
def test_the_stated_noise_is_the_noise(protection: str) -> None:
    edges = [18.0, 25.0, 30.0, 34.0, 41.0, 47.0, 52.0, 58.0, 63.0, 71.0, 77.0, 85.0, 92.0]
    data, question = people(211), {"q": {**QUESTIONS["ages"], "edges": edges}}
    values, stated = [], []
    for seed in range(7):
        more = {"epsilon": 3.0, "seed": seed}
        estimates = asked(question, data, protection, **more)["q"].estimates
        values.append([e.value for e in estimates])
        stated.append([e.noise for e in estimates])
    errors = np.array(values) - np.histogram(data["age"], edges)[0]
    # 84 errors: the ratio of their mean square to the stated variance has a deviation of 0.15.
    ratio = (errors**2).mean() / (np.array(stated) ** 2).mean()
    assert 0.5 < ratio < 1.7
    assert abs(errors.mean()) < 5 * np.sqrt((errors**2).mean() / errors.size)


def test_intervals_cover_the_population_that_clients_are_drawn_from() -> None:
    hits, cases = 0, 0
    for seed in range(35):
        data = {"x": np.random.default_rng(seed).beta(2, 3, 173)}
        questions = {
            "m": {"ask": "mean", "column": "x", "range": [0.0, 1.0]},
            "v": {"ask": "variance", "column": "x", "range": [0.0, 1.0]},
            "n": {"ask": "count", "where": "x > 0.6"},
        }
        answers = asked(questions, data, "central_gaussian", epsilon=4.0, seed=seed)
        truths = {"m": 0.4, "v": 0.04, "n": 173 * 0.1792}  # 1 - I(0.6; 2, 3) = 0.1792
        for name, true in truths.items():
            estimate = answers[name].estimates[0]
            hits, cases = hits + (estimate.low <= true <= estimate.high), cases + 1
    assert hits / cases >= 0.93  # bounds are conservative


def test_moments_groups_and_tables_are_exact_without_noise() -> None:
    data = people()
    age, income, female = data["age"], data["income"], data["sex"] == "f"
    ends = {"column": "age", "range": [0.0, 93.0]}
    by_sex = only({"ask": "mean", **ends, "by": "sex", "groups": ["m", "f"]})
    assert [e.value for e in by_sex] == pytest.approx([age[~female].mean(), age[female].mean()])
    assert by_sex[0].label == {"sex": "m"}
    assert only({"ask": "variance", **ends})[0].value == pytest.approx(age.var(), rel=1e-12)
    # Equal numbers have no variance at all, although no 64-bit number is a seventh.
    equal = {"ask": "variance", "column": "x", "range": [-1.0, 11.7]}
    assert [only(equal, {"x": [3 + 1 / 7] * n})[0].value for n in (1, 5)] == [0, 0]
    both = {"ask": "correlation", **ends, "other": "income", "other_range": [0.0, 200000.0]}
    expected = np.corrcoef(age, income)[0, 1]
    assert only(both)[0].value == pytest.approx(expected, abs=1e-12)
    cells = only(
        {
            "ask": "contingency", "column": "sex", "categories": ["m", "f"],
            "other": "age", "other_edges": [18.0, 50.0, 93.0],
        }
    )  # fmt: skip
    assert [e.value for e in cells] == [
        float((mask & part).sum()) for mask in (~female, female) for part in (age < 50, age >= 50)
    ]
    assert cells[1].label == {"sex": "m", "age": "[50, 93]"}


def test_a_correlation_under_noise_is_near_the_truth() -> None:
    data = people(4001)
    question = {
        "ask": "correlation", "column": "age", "range": [18.0, 93.0],
        "other": "income", "other_range": [0.0, 80000.0],
    }  # fmt: skip
    found = only(question, data, protection="central_gaussian", epsilon=4.0)[0]
    true = np.corrcoef(data["age"], np.clip(data["income"], 0, 80000))[0, 1]
    assert abs(found.value - true) < 5 * found.noise
    assert found.low < true < found.high
    assert found.noise < 0.1


def test_a_client_with_many_rows_contributes_no_more_than_its_bound_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = people()
    caplog.set_level(logging.INFO, "fedveil.client")
    answers = asked({"n": {"ask": "count"}}, data, client="town", rows=5)
    assert answers["n"].value == 11 * 5
    towns = np.bincount(data["town"])
    said = [f"5 of {size} rows are contributed (rows)" for size in towns]
    assert sorted(r.getMessage() for r in caplog.records) == sorted(said)
    assert "contributed" not in str(answers.data())


def test_the_rows_that_a_client_contributes_are_drawn_and_stay_the_same() -> None:
    clients = clients_of(ArrayTable("t", {"who": np.arange(600) % 6}), "who", 7)
    for client in range(6):
        mine = clients.order[clients.offsets[client] : clients.offsets[client + 1]]
        drawn = clients.contributed(client, Seeded(2, "rows", client))
        assert len(drawn) == 7
        assert set(drawn) <= set(mine)
        assert set(drawn) not in (set(mine[:7]), set(mine[-7:]))
        assert clients.contributed(client, Seeded(3)).tolist() == drawn.tolist()
        assert clients.contributed(client, Seeded(3), 4).tolist() == drawn[:4].tolist()
    again = clients_of(clients.table, "who", 7)  # a report of few rows before one of more
    few, more = (again.contributed(0, Seeded(2, "rows", 0), most) for most in (4, None))
    assert (len(few), len(more), more[:4].tolist()) == (4, 7, few.tolist())
    assert clients_of(clients.table, "who", None).contributed(0, Seeded(2)).size == 100


def test_values_outside_the_range_are_moved_and_counted_in_the_client_s_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "fedveil.client")
    data = {"x": [3.0, 11.0, np.nan, -2.0], "site": ["a", "a", "a", "b"]}
    question = {"m": {"ask": "mean", "column": "x", "range": [0.0, 10.0]}}
    answers = asked(question, data, client="site", rows=3)
    assert answers["m"].value == pytest.approx((3 + 10 + 0) / 3)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "1 values were moved into their range, 1 are missing or have no cell",
        "1 values were moved into their range, 0 are missing or have no cell",
    ]
    assert not any("moved" in note for note in answers["m"].notes)
    caplog.clear()
    asked(question, {"x": [3.0, np.nan], "site": ["a", "b"]}, client="site", rows=3)
    (record,) = caplog.records
    assert record.getMessage().startswith("0 values were moved into their range, 1 are missing")


@pytest.mark.parametrize("protection", ["distributed_dp", "central_gaussian"])
def test_under_unit_row_all_rows_of_a_site_count_and_one_of_them_is_protected(
    protection: str,
) -> None:
    data = people()
    answers = asked(QUESTIONS, data, protection, client="town", unit="row", epsilon=6.0, delta=1e-5)
    for estimate, true in zip(flat(answers), truth(data), strict=True):
        assert abs(estimate.value - true) < 5 * estimate.noise
        assert estimate.noise < 0.2 * true
    assert "one row" in answers.lines[0].what
    assert answers.epsilon <= 6


@pytest.mark.parametrize("protection", ["rr", "oue"])
@pytest.mark.parametrize("fidelity", ["per_client", "aggregate"])
def test_under_unit_row_a_report_of_rr_and_oue_has_a_code_for_every_row(
    protection: str, fidelity: Any
) -> None:
    data = people()
    sizes = np.bincount(data["town"])
    more = {"epsilon": 5.0, "client": "town", "unit": "row", "fidelity": fidelity}
    values, stated = [], []
    for seed in range(8):
        question = {"q": QUESTIONS["ages"]}
        answers = asked(question, data, protection, rows=50, seed=seed, **more)
        values.append([e.value for e in answers["q"].estimates])
        stated.append([e.noise for e in answers["q"].estimates])
    assert sizes.max() < 50  # so that no row is left out, and each report has codes of no row
    errors = np.array(values) - truth(data)[1:4]
    assert 0.4 < (errors**2).mean() / (np.array(stated) ** 2).mean() < 2.0
    assert abs(errors.mean()) < 5 * np.sqrt((errors**2).mean() / errors.size)
    assert answers.epsilon == 5.0
    assert "one row" in answers.lines[0].what
    # A median is searched with codes of no row too, which say yes half of the time.
    median = {"ask": "quantiles", "column": "age", "range": [18.0, 93.0], "at": [0.5], "cells": 8}
    (found,) = only(median, data, protection, rows=60, **{**more, "epsilon": 30.0})
    assert abs(found.value - np.median(data["age"])) < 12


def test_a_report_under_unit_row_carries_no_more_rows_than_its_grid(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "fedveil.client")
    cells = {"ask": "histogram", "column": "x", "edges": [float(i) for i in range(1001)]}
    data = {"x": np.full(5000, 7.0), "site": np.zeros(5000, int)}
    more = {"epsilon": 300.0, "client": "site", "unit": "row"}
    (found,) = (e for e in only(cells, data, "dp_encrypt", **more) if e.label["x"] == "[7, 8)")
    # 2^24 steps of 2^-12 each, and a row adds √2 to its cell.
    assert abs(found.value - 2896) < 5 * found.noise + 5
    assert "2896 of 5000 rows are contributed (rows)" in caplog.text


def test_several_questions_share_one_epsilon_by_their_weights() -> None:
    light = {**QUESTIONS["old"], "weight": 1.0}
    heavy = {**QUESTIONS["old"], "weight": 8.0}
    answers = asked({"a": light, "b": heavy}, None, "central_gaussian", epsilon=2.0)
    assert answers.epsilon == pytest.approx(2.0, rel=1e-6)
    noise = [answers[name].estimates[0].noise for name in "ab"]
    assert noise[0] / noise[1] == pytest.approx(8**0.5)


def test_rr_asks_every_client_one_question() -> None:
    answers = asked(QUESTIONS, None, "oue", epsilon=1.5)
    assert answers.epsilon == 1.5
    assert answers.reports == -(-PEOPLE // 3)


@pytest.mark.parametrize(("protection", "epsilon"), [("not_encrypt", None), ("oue", 7.0)])
def test_frequent_words_are_found_without_knowing_them(
    protection: str, epsilon: float | None
) -> None:
    words = ["ab"] * 700 + ["abc"] * 400 + ["b"] * 500 + ["zet"] * 350 + ["rare", "Böse", "longer"]
    question = {
        "ask": "heavy_hitters", "column": "w", "length": 4, "most": 4, "alphabet": "abcelrnogtz",
    }  # fmt: skip
    found = only(question, {"w": words}, protection=protection, epsilon=epsilon)
    assert [e.label["w"] for e in found[:1]] == ["ab"]
    assert {e.label["w"] for e in found} == {"ab", "b", "abc", "zet"}
    if epsilon is None:
        assert [e.value for e in found] == [700, 500, 400, 350]


def test_secure_aggregation_with_masks_gives_the_sum() -> None:
    data = people(13)
    question = {"q": QUESTIONS["ages"]}
    answers = asked(question, data, "pw_encrypt", masks=True)
    values = [e.value for e in answers["q"].estimates]
    assert values == pytest.approx(truth(data)[1:4], abs=0.01)
    assert "the sums have no noise" in answers["q"].notes[0]
    assert not asked(question, data, "central_gaussian", epsilon=2.0)["q"].notes
    assert answers.epsilon == float("inf")


def test_answers_are_records_a_frame_and_json() -> None:
    answers = asked(QUESTIONS)
    pandas = pytest.importorskip("pandas")
    frame = answers.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["question"]) == ["old", "ages", "ages", "ages", "income"]
    assert answers["ages"]["[47, 92]"].value == truth(people())[3]
    assert answers.data()["answers"]["old"]["estimates"][0]["value"] == truth(people())[0]


def test_the_aggregate_simulation_is_alike_and_only_for_frequencies() -> None:
    question = {"q": QUESTIONS["ages"]}
    data = people(701)
    one = asked(question, data, "oue", epsilon=2.0)
    whole = asked(question, data, "oue", epsilon=2.0, fidelity="aggregate")
    for a, b in zip(one["q"].estimates, whole["q"].estimates, strict=True):
        assert a.noise == pytest.approx(b.noise, rel=0.1)
        assert abs(a.value - b.value) < 5 * np.hypot(a.noise, b.noise)
    assert one.lines == whole.lines
