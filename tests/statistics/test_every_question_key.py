"""Each key of a question file, changed alone, changes the answers, or is refused by name.

In the base no setting has its default: clients with several rows, conditions of the file and of the
question, unequal weights.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.errors import FedveilError, JobError
from fedveil.statistics.asking import ask
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.question_reference import reference
from fedveil.statistics.question_settings import QuestionSettings
from folders import ROOT
from key_case import Case
from statistics_parts import people

FILE = {
    "name": "survey", "client": "who", "rows": 2, "where": "income < 60000",
    "protection": "central_gaussian", "epsilon": 3.0, "delta": 3e-4, "confidence": 0.9,
    "randomness": "seeded", "seed": 3,
}  # fmt: skip
AGE = {"column": "age", "range": [20.0, 71.0]}
QUESTIONS: dict[str, dict[str, Any]] = {
    "mean": {**AGE, "ask": "mean", "where": "town > 2", "by": "sex", "groups": ["m", "f"]},
    "histogram": {"ask": "histogram", "column": "age", "edges": [18.0, 31.0, 93.0], "weight": 2.0},
    "correlation": {**AGE, "ask": "correlation", "other": "income",
                    "other_range": [3000.0, 50000.0]},
    "words": {"ask": "contingency", "column": "sex", "categories": ["m", "f"], "other": "town",
              "other_categories": [3, 5, 7]},
    "cells": {"ask": "contingency", "column": "age", "edges": [18.0, 50.0, 93.0], "other": "town",
              "other_edges": [0.0, 3.0, 10.0]},
    "quantiles": {**AGE, "ask": "quantiles", "at": [0.2, 0.7], "cells": 32},
    "frequent": {"ask": "heavy_hitters", "column": "word", "alphabet": "abcetz", "length": 3,
                 "most": 3},
}  # fmt: skip
OWN = {"protection": "oue", "rows": 1, "epsilon": 8.0}
#: Keys that no simulation with data of its own can show, and the test that sets each.
ELSEWHERE = {
    "data": "tests/cli/test_ask.py", "answer_s": "tests/flower/test_asked_clients.py",
    "clients": "tests/flower/test_asked_clients.py", "masks": "tests/statistics/test_asking.py",
}  # fmt: skip
OF_FILE: dict[str, Case] = {
    "name": Case("other"),
    "client": Case(None, {"rows": 1}),
    "unit": Case("row", {"protection": "distributed_dp", "masks": False}),
    "rows": Case(3),
    "where": Case("income < 30000"),
    "protection": Case("distributed_dp", {"masks": False}),
    "epsilon": Case(2.0),
    "delta": Case(1e-5),
    "max_epsilon": Case(2.0, {"account": "account"}, refused="max_epsilon"),
    "account": Case("account"),
    "confidence": Case(0.8),
    "randomness": Case("secure"),
    "seed": Case(4),
    "fidelity": Case("aggregate", OWN),
}
OF_QUESTION: dict[str, tuple[str, Any]] = {
    "ask": ("mean", "variance"),
    "column": ("mean", "income"),
    "other": ("correlation", "town"),
    "where": ("mean", "town > 3"),
    "by": ("mean", "odd"),
    "groups": ("mean", ["f", "m"]),
    "range": ("mean", [20.0, 60.0]),
    "other_range": ("correlation", [3000.0, 40000.0]),
    "edges": ("histogram", [18.0, 41.0, 93.0]),
    "other_edges": ("cells", [0.0, 4.0, 10.0]),
    "categories": ("words", ["f"]),
    "other_categories": ("words", [3, 5, 8]),
    "at": ("quantiles", [0.2, 0.6]),
    "cells": ("quantiles", 16),
    "alphabet": ("frequent", "abcet"),
    "length": ("frequent", 2),
    "most": ("frequent", 2),
    "false_words": ("frequent", 1e-6),
    "weight": ("histogram", 5.0),
}


@cache
def data() -> dict[str, Any]:
    columns = people()
    rng, count = np.random.default_rng(5), len(columns["age"])
    words = rng.choice(["ab", "b", "zet", "c"], count, p=[0.5, 0.25, 0.15, 0.1])
    odd = np.where(rng.random(count) < 0.3, "m", "f")
    return {**columns, "who": rng.integers(0, 190, count), "word": words, "odd": odd}


def observed(questions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return ask({**FILE, "questions": questions, **changes}, data()).data()


def both(name: str) -> dict[str, Any]:
    """Return a question beside another one, with which it shares the noise budget."""
    return {name: QUESTIONS[name], "rest": {"ask": "count", "where": "age > 40"}}


def test_every_key_has_a_case_or_a_test_elsewhere_that_sets_it() -> None:
    assert {*OF_FILE, *ELSEWHERE, "questions"} == set(QuestionFile.model_fields)
    assert set(OF_QUESTION) == set(QuestionSettings.model_fields)
    for key, file in ELSEWHERE.items():
        assert key in (ROOT / file).read_text("utf-8")


@pytest.mark.parametrize("key", OF_FILE)
def test_a_key_of_the_file_changes_something(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case, questions = OF_FILE[key], both("mean" if key != "fidelity" else "histogram")
    before = observed(questions, **case.under)
    Path("account").unlink(missing_ok=True)
    if case.refused is not None:
        with pytest.raises(FedveilError, match=case.refused):
            observed(questions, **case.under, **{key: case.value})
        return
    assert observed(questions, **{**case.under, key: case.value}) != before


@pytest.mark.parametrize("key", OF_QUESTION)
def test_a_key_of_a_question_changes_its_answer(key: str) -> None:
    name, value = OF_QUESTION[key]
    before = observed(both(name))
    after = observed({**both(name), name: {**QUESTIONS[name], key: value}})
    assert after["answers"][name] != before["answers"][name]


def test_the_reference_names_each_kinds_keys_and_marks_those_that_it_needs() -> None:
    alone = {
        str(question["ask"]): {k: v for k, v in question.items() if k not in ("by", "groups")}
        for question in (*QUESTIONS.values(), {**AGE, "ask": "variance"}, {"ask": "count"})
    }
    lines = re.findall(r"`ask: (\w+)` reads (.*), besides `where` and `weight`", reference())
    assert dict(lines).keys() == alone.keys()
    for kind, said in lines:
        told = re.findall(r"`(\w+)`( \(needed\))?", said)
        assert set(alone[kind]) - {"ask", "where", "weight"} <= {key for key, _ in told}
        for key, needed in told:
            rest = {k: v for k, v in alone[kind].items() if k != key}
            file = {**FILE, "questions": {"one": rest}}
            try:
                QuestionFile.read(file, [])
                missing = False
            except JobError as error:
                missing = f"questions.one.{key} is missing" in str(error)
            assert missing is bool(needed), (kind, key)


def test_a_question_that_is_asked_again_has_the_same_answer() -> None:
    assert observed(both("mean")) == observed(both("mean"))
