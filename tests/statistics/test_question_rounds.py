"""The rounds of questions: who is asked, what they cost, and what each round adds to a sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid
from fedveil.privacy.ledger import Ledger
from fedveil.rounds.outcomes import Refused, Unreached
from fedveil.statistics.asking import Asking, Simulator, ask
from fedveil.statistics.carriage import Participants, make_protection
from fedveil.statistics.clients import load
from fedveil.statistics.quantile_search import Search
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Schedule, Step
from fedveil.statistics.simulation import Simulated
from statistics_parts import asked, people

QUESTIONS: dict[str, Any] = {
    "old": {"ask": "count", "where": "age >= 65"},
    "ages": {"ask": "histogram", "column": "age", "edges": [18.0, 30.0, 47.0, 92.0]},
}


def test_levels_of_a_tree_share_the_weight_of_their_question() -> None:
    old = QUESTIONS["old"]
    tree = {"ask": "quantiles", "column": "age", "range": [0.0, 96.0], "at": [0.5], "cells": 64}
    weights = [
        Schedule(QuestionFile.read({"protection": "central_gaussian", "epsilon": 2.0,
                                    "questions": {"a": old, "b": other}}, []))
        .layout(Step(1)).balls[0].weight
        for other in (old, tree)
    ]  # fmt: skip
    assert weights == pytest.approx([0.5**0.5] * 2)


def test_a_clients_vector_is_as_short_as_the_clip_whatever_its_rows() -> None:
    questions = {"a": {"ask": "count", "weight": 5.0}, "b": QUESTIONS["ages"]}
    data = {"age": [20.0] * 5 + [np.nan], "town": ["u"] * 5 + ["v"]}
    for unit, rows in (("client", 5), ("row", 9)):
        keys = {"rows": rows, "unit": unit, "client": "town", "questions": questions}
        noisy = {"protection": "central_gaussian", "epsilon": 1.0}
        file = QuestionFile.read({**noisy, **keys}, [])
        layout, clients = Schedule(file).layout(Step(1)), load(file, data)
        encoded = [part.rows(clients, Seeded(1)) for part in layout.parts]
        lengths = [np.linalg.norm(layout.vector(encoded, np.array(rows, np.int64)))
                   for rows in ([], [5], range(5))]  # fmt: skip
        assert layout.largest == pytest.approx(max(1 / ball.scale for ball in layout.balls))
        assert unit == "row" or max(lengths) <= np.sqrt(2) + 1e-9


@pytest.mark.parametrize(
    ("protection", "whom"),
    [
        ("central_gaussian", "everyone except the server"),
        ("distributed_dp", "a server that follows the protocol"),
        ("dp_encrypt", "everyone, including the server"),
        ("rr", "everyone, including the server"),
    ],
)
@pytest.mark.parametrize(
    ("unit", "whose"), [("row", "one row"), ("client", "a client's whole data")]
)
def test_a_promise_names_whose_data_it_protects_and_against_whom(
    protection: str, whom: str, unit: Any, whose: str
) -> None:
    data = {"w": np.arange(9) % 7}
    more = {"epsilon": 8.0, "unit": unit, "client": "w", "rows": 2 if unit == "row" else 1}
    (line,) = asked({"n": {"ask": "count"}}, data, protection, **more).lines
    assert line.what == f"{whose}, against {whom}"


def test_every_round_of_sums_is_charged_to_the_account_and_a_limit_may_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = {"ask": "heavy_hitters", "column": "w", "length": 2, "most": 1, "alphabet": "ab"}
    data = {"w": ["ab"] * 60}
    several = asked({"w": words}, data, "central_gaussian", epsilon=9.0, account="sums")
    assert several.lines[1].epsilon >= several.epsilon == pytest.approx(9.0, rel=1e-6)
    local = asked(QUESTIONS, None, "oue", epsilon=1.5, max_epsilon=1.5, account="local")
    assert [line.epsilon for line in local.lines] == [1.5, 1.5]
    once = asked(QUESTIONS, None, "central_gaussian", epsilon=2.0, delta=3e-4, account="once")
    assert [line.delta for line in once.lines] == [3e-4, 3e-4]
    assert once.lines[1].epsilon == pytest.approx(once.epsilon, rel=1e-3)


def test_each_round_is_announced() -> None:
    said: list[str] = []
    keys = {"protection": "oue", "epsilon": 2.0, "randomness": "seeded", "questions": QUESTIONS}
    ask(keys, people(), progress=said.append)
    assert said == ["round 1 of at most 2", "round 2 of at most 2"]


def test_the_influence_is_that_of_the_round_that_asked_fewest() -> None:
    data = {"x": np.arange(129.0)}
    search = {"ask": "quantiles", "column": "x", "range": [0.0, 129.0], "at": [0.5], "cells": 4}
    questions = {"n": {"ask": "count", "weight": 2.0}, "q": search}
    found = asked(questions, data, "oue", epsilon=2.0)
    cohorts = [len(Schedule(found.file).cohort(Step(n), 129)) for n in range(1, 6)]
    assert min(cohorts) < cohorts[-1] < cohorts[0]
    influence = 1 / (1 - 2 / (np.e**2 + 1))
    assert found.influence["q"] == pytest.approx(influence * 129 / min(cohorts))
    assert found.influence["n"] == pytest.approx(influence * 129 / cohorts[0])
    asking = Asking(found.file, Simulator(found.file, load(found.file, data)))
    told: list[int] = []
    heard = Search.answered
    Search.answered = lambda self, *a: (told.append(a[-1]), heard(self, *a))[1]  # type: ignore[method-assign, assignment]
    try:
        assert asking.run().reports == max(cohorts)
    finally:
        Search.answered = heard  # type: ignore[method-assign]
    assert told == cohorts[1:]


class Lossy(Simulated):
    """Client 0 cannot be reached, and the reports of client 1 are refused."""

    def _answer(self, client: int, message: Any) -> Any:
        outcomes = {0: Unreached(0), 1: Refused(1, 0, "too late")}
        return outcomes.get(client) or super()._answer(client, message)


class Losing(Simulator):
    def carrier(self, step: Any, layout: Any, carriage: Any) -> Any:
        made = super().carrier(step, layout, carriage)
        return Lossy(made._protection, made._made, made._step, made._entropy)  # type: ignore[attr-defined]


class Failing(Simulated):
    """Client 2 fails at its own rows."""

    def _trained(self, client: int) -> Any:
        if client == 2:
            raise ValueError("no rows")
        return super()._trained(client)


class Broken(Simulator):
    def carrier(self, step: Any, layout: Any, carriage: Any) -> Any:
        made: Any = super().carrier(step, layout, carriage)
        return Failing(made._protection, made._made, made._step, made._entropy)


def test_a_client_that_fails_reports_nothing_within_the_masks_of_all() -> None:
    keys = {"protection": "distributed_dp", "epsilon": 8.0, "masks": True, "clients": 6}
    file = QuestionFile.read({**keys, "questions": {"n": {"ask": "count"}}}, [])
    answers = Asking(file, Broken(file, load(file, {"x": [1.0] * 6}))).run()
    assert (answers.reports, answers.rejected) == (6, {})
    (found,) = answers["n"].estimates
    assert abs(found.value - 5) < 5 * found.noise


@pytest.mark.parametrize(("limit", "cost"), [(None, 0), (3.0, 1)])
def test_a_sum_costs_what_the_clients_that_reported_have_noised(
    limit: float | None, cost: int
) -> None:
    """28 of 30, and not as few as the round may have, unless a limit must hold for any dropouts."""
    keys = {"protection": "distributed_dp", "epsilon": 2.0, "masks": False, "clients": 30}
    keys |= {"max_epsilon": limit}
    file = QuestionFile.read({**keys, "questions": {"n": {"ask": "count"}}}, [])
    protection = make_protection(file, 1, 1, Participants(30))
    state = protection.initial_state()
    stated = []
    for spending in (protection.spent(state, 28), protection.spending(state)):
        ledger = Ledger()
        ledger.record_many(spending, round=1, clients=[0])
        stated.append(ledger.figures(file.delta)["run_most_drawn"].epsilon)
    answers = Asking(file, Losing(file, load(file, {"x": [1.0] * 30}))).run()
    assert answers.epsilon == stated[cost]
    assert stated[0] < stated[1] <= 2.0


def test_clients_that_did_not_report_are_like_the_others_and_are_counted_in_all_rounds() -> None:
    words = {"ask": "heavy_hitters", "column": "w", "length": 2, "most": 1, "alphabet": "ab"}
    file = QuestionFile.read(
        {"protection": "not_encrypt", "questions": {"w": words, "n": {"ask": "count"}}}, []
    )

    asking = Asking(file, Losing(file, load(file, {"w": ["ab"] * 12})))
    answers = asking.run()
    assert asking._ledger.clients.tolist() == [*range(1, 12)]  # client 0 was never asked
    assert answers["n"].value == answers["w"].value == 12
    assert (answers.rejected, answers.reports) == ({"too late": 2}, 10)


def test_the_noise_of_a_part_of_the_clients_is_multiplied_as_their_sum_is() -> None:
    file = QuestionFile.read({"protection": "central_gaussian", "epsilon": 2.0,
                              "questions": {"n": {"ask": "count"}}}, [])  # fmt: skip
    clients = load(file, {"x": [1.0] * 12})
    all_of_them, ten = (
        Asking(file, made(file, clients)).run()["n"].estimates[0].noise
        for made in (Simulator, Losing)
    )
    assert ten == pytest.approx(all_of_them * 12 / 10, rel=1e-3)
    # Under oue, the reports of a quarter of the clients have a quarter of the variance.
    data, old = people(1204), QUESTIONS["old"]
    alone, shared = (
        asked(questions, data, "oue", epsilon=2.0)["a"].estimates[0].noise
        for questions in ({"a": old}, {"a": old, "b": {**old, "weight": 3.0}})
    )
    assert shared == pytest.approx(alone * 4 / 4**0.5, rel=0.05)


def test_rows_depend_on_each_other_where_a_part_of_the_clients_is_asked() -> None:
    data = {"age": np.arange(60.0), "town": np.arange(60) % 20}
    more = {"unit": "row", "client": "town", "rows": 3}
    for questions, rows in (({"a": QUESTIONS["old"]}, None), (QUESTIONS, 3)):
        file = QuestionFile.read({"protection": "oue", "epsilon": 3.0, **more,
                                  "questions": {**questions, "income": QUESTIONS["old"]}
                                  if rows else questions}, [])  # fmt: skip
        asking = Asking(file, Simulator(file, load(file, data)))
        asking.run()
        assert {sums.rows for (parts,) in asking._sums.values() for sums in parts} == {rows}


def test_another_seed_is_other_noise() -> None:
    question = {"q": QUESTIONS["old"]}
    values = [asked(question, people(50), "oue", epsilon=1.0, seed=seed)["q"].value
              for seed in (2, 2, 3)]  # fmt: skip
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize(
    ("changes", "data", "why"),
    [
        ({"client": "who"}, {"age": [1.0, 2.0, 3.0], "who": ["a", "b", ""]}, "row 3: who is empty"),
        ({"where": "town == 'u'"}, {"age": [1.0]}, "no column 'town'"),
        (
            {"questions": {"q": {"ask": "contingency", "column": "sex", "categories": ["f", "m"],
                                 "other": "age", "other_edges": [0.0, 9.0]}}},
            {"sex": ["f", "f"], "age": ["3", "old"]},
            "row 2: age = 'old' is not a finite number",
        ),
    ],
)  # fmt: skip
def test_data_that_a_question_cannot_use_stop_it_before_the_first_round(
    changes: dict[str, Any], data: dict[str, Any], why: str
) -> None:
    keys = {"protection": "not_encrypt", "questions": {"q": QUESTIONS["old"]}, **changes}
    with pytest.raises(DataInvalid, match=why):
        load(QuestionFile.read(keys, []), data)


def test_a_sum_that_is_drawn_at_once_costs_and_counts_what_its_reports_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account is in the folder that the caller names, and not in the current one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data = {"age": np.arange(60.0) + 20, "town": np.arange(60) % 20}
    found = []
    for fidelity in ("per_client", "aggregate"):
        keys = {"protection": "rr", "epsilon": 60.0, "unit": "row", "rows": 3, "client": "town",
                "fidelity": fidelity, "randomness": "seeded", "account": fidelity}  # fmt: skip
        file = QuestionFile.read({**keys, "questions": {**QUESTIONS, "n": {"ask": "count"}}}, [])
        answers = Asking(file, Simulator(file, load(file, data)), tmp_path).run()
        assert [line.epsilon for line in answers.lines] == [60.0, 60.0]
        assert [line.what.partition(" ")[0] for line in answers.lines] == ["one", "a"]
        assert answers.lines[0].what == "one row, against everyone, including the server"
        assert answers.lines[1].what.startswith("a row in all trainings and questions")
        assert (tmp_path / fidelity).exists()
        assert answers.reports < 20
        assert answers["n"].value == pytest.approx(60, rel=0.05)
        found.append([e.value for a in answers.answers.values() for e in a.estimates])
    assert found[1] == pytest.approx(found[0])


def test_rows_of_clients_that_did_not_report_are_not_made_up_where_rows_are_independent() -> None:
    keys = {"protection": "central_gaussian", "epsilon": 60.0, "unit": "row", "client": "town"}
    file = QuestionFile.read({**keys, "questions": {"n": {"ask": "count"}}}, [])
    asking = Asking(file, Losing(file, load(file, {"town": np.arange(60) % 12})))
    assert asking.run()["n"].value == pytest.approx(50, abs=1)
    ((sums,),) = asking._sums["n"]
    assert (sums.asked, sums.clients, sums.rows) == (10, 12, None)
