"""A wrong question file, and unusable data, are one sentence each."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.data.examples import make_dataset
from fedveil.errors import DataInvalid, JobError, RunFailed
from fedveil.statistics import clients
from fedveil.statistics.asking import ask
from fedveil.statistics.carriage import Participants, make_protection
from fedveil.statistics.clients import clients_of, load
from fedveil.statistics.encodings import Categories
from fedveil.statistics.filters import Filter
from fedveil.statistics.question import LOCAL, SUMS, QuestionFile
from fedveil.statistics.tables import ArrayTable, FileTable, as_table
from statistics_parts import asked, only, people

COUNT = {"ask": "count"}
AGES = {"ask": "histogram", "column": "age", "edges": [0.0, 50.0, 100.0]}
MEAN = {"ask": "mean", "column": "age", "range": [0.0, 100.0]}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"protection": "signds"}, "protection.name = 'signds' carries no statistics"),
        ({"protection": "dp_encrypt"}, "epsilon is missing: dp_encrypt adds the noise"),
        ({"epsilon": 1.0}, "epsilon = 1 promises what not_encrypt does not keep"),
        ({"questions": {}}, "questions is empty"),
        ({"questions": {"a": {**AGES, "edges": []}}}, "there are no cells"),
        ({"questions": {"a": {**AGES, "categories": ["x"]}}}, "both are given"),
        ({"questions": {"a": {**AGES, "edges": [3.0, 3.0]}}}, "numbers in rising order"),
        ({"questions": {"a": {**AGES, "edges": [3.0]}}}, "is not two or more numbers in rising"),
        (
            {"questions": {"a": {**AGES, "edges": [], "categories": ["x", "y", "x"]}}},
            "questions.a.categories = ['x', 'y', 'x'] has an entry twice",
        ),
        (
            {
                "questions": {
                    "a": {
                        **AGES,
                        "ask": "contingency",
                        "other": "town",
                        "other_categories": [4, 3, "3"],
                    }
                }
            },
            "questions.a.other_categories = [4, 3, '3'] has an entry twice",
        ),
        (
            {
                "questions": {
                    "a": {**MEAN, "ask": "correlation", "other": "town", "other_range": [5.0, 1.0]}
                }
            },
            "questions.a.other_range = [5.0, 1.0] is not a lowest and a highest value",
        ),
        (
            {
                "questions": {
                    "a": {
                        **AGES,
                        "ask": "contingency",
                        "other": "town",
                        "other_edges": [1.0, 5.0],
                        "by": "town",
                        "groups": ["3"],
                    }
                }
            },
            "questions.a.by = 'town' is also other",
        ),
        ({"questions": {"a": {**MEAN, "range": [5.0, 1.0]}}}, "a lowest and a highest value"),
        ({"questions": {"a": {**MEAN, "range": []}}}, "questions.a.range is missing"),
        ({"questions": {"a": {**COUNT, "at": [0.5]}}}, "questions.a.at has no meaning"),
        ({"questions": {"a": {**COUNT, "by": "sex"}}}, "write both or neither"),
        (
            {"questions": {"a": {**COUNT, "where": "age >"}}},
            "questions.a.where = 'age >' is not a condition",
        ),
        ({"where": "1 < 2 < age"}, "where = '1 < 2 < age' is not a condition"),
        ({"where": "'f' in sex"}, "is not a condition"),
        ({"where": "who in [3, 'f']"}, "is not a condition"),
        (
            {"where": "who in [3, 9007199254740992]"},
            "9007199254740992 is too large to be compared as a number, which has 53 bits. Compare "
            "it as a text: '9007199254740992'",
        ),
        (
            {"where": "sex == 'f' and not '65' <= age < 96"},
            "where = \"sex == 'f' and not '65' <= age < 96\" orders texts, and as texts '100' "
            "comes before '65'. To compare numbers, write 65 without quotation marks",
        ),
        ({"questions": {"a": {**COUNT, "where": "who > '-2.5'"}}}, "questions.a.where = "),
        ({"where": "__import__('os')"}, "is not a condition"),
        ({"questions": {"a": {**COUNT, "aks": 1}}}, "questions.a.aks = 1 is not a known key"),
        (
            {"protection": "pw_encrypt", "epsilon": 1.0, "unit": "row"},
            "unit = 'row' is not possible under pw_encrypt, which has no noise for a row",
        ),
        (
            {"protection": "oue", "epsilon": 1.0, "rows": 2},
            "rows = 2 needs unit = 'row' or a protection that sums vectors",
        ),
        (
            {"protection": "rr", "epsilon": 1.0, "unit": "row", "client": "town"},
            "rows is missing: under rr and unit = 'row'",
        ),
        (
            {"protection": {"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 9.0}}, "epsilon": 1.0},
            "protection.dp_encrypt.dp_eps follows from epsilon",
        ),
        ({"fidelity": "aggregate"}, "fidelity = 'aggregate' is for rr and oue"),
        ({"protection": None}, "protection is missing: name one of not_encrypt"),
        ({"questions": {"a": {"column": "age"}}}, "questions.a.ask is missing: name one of count"),
        ({"questions": {"a": {**MEAN, "ask": "median"}}}, "(did you mean quantiles?)"),
        ({"questions": {"a": {**MEAN, "by": "age", "groups": ["3"]}}}, "by = 'age' is also column"),
        (
            {"questions": {"a": {**COUNT, "by": "sex", "groups": ["f", " m"]}}},
            "questions.a.groups has ' m', but words have no spaces around them",
        ),
        (
            {
                "questions": {
                    "a": {
                        "ask": "contingency",
                        "column": "x",
                        "other": "y",
                        "edges": [float(i) for i in range(600)],
                        "other_categories": [str(i) for i in range(500)],
                    }
                }
            },
            "questions.a has 299,500 cells, and a report carries 262,144",
        ),
        (
            {
                "questions": {
                    "a": {
                        **AGES,
                        "edges": [float(i) for i in range(600)],
                        "by": "sex",
                        "groups": [str(i) for i in range(500)],
                    }
                }
            },
            "questions.a has 299,500 cells, and a report carries 262,144",
        ),
        ({"rows": 3}, "rows = 3 needs client"),
        *(
            (
                {
                    "questions": {
                        "a": {
                            "ask": "quantiles",
                            "column": "age",
                            "range": [0.0, 9.0],
                            "at": [0.5, at],
                        }
                    }
                },
                "has a share outside (0, 1)",
            )
            for at in (0.0, 1.0)
        ),
        (
            {"questions": {"a": {**MEAN, "ask": "quantiles", "at": [0.5], "cells": 12}}},
            "questions.a.cells = 12 is not a power of two",
        ),
        (
            {"questions": {"w": {"ask": "heavy_hitters", "column": "w", "alphabet": "aba"}}},
            "alphabet = 'aba' has a letter twice",
        ),
        (
            {"questions": {"a": {**COUNT, "by": "sex", "groups": [3, "3"]}}},
            "questions.a.groups = [3, '3'] has an entry twice",
        ),
        (
            {
                "questions": {
                    "a": {**AGES, "ask": "contingency", "other": "town", "other_edges": [3.0, 1.0]}
                }
            },
            "questions.a.other_edges = [3.0, 1.0] is not two or more numbers in rising order",
        ),
        (
            {
                "questions": {
                    "a": {**MEAN, "ask": "correlation", "other": "age", "other_range": [0.0, 9.0]}
                }
            },
            "questions.a.other = 'age' is also column",
        ),
        (
            {
                "protection": {"name": "distributed_dp", "distributed_dp": {"bits": 17}},
                "epsilon": 1.0,
            },
            "protection.distributed_dp.bits follows from epsilon",
        ),
        ({"name": "../../x"}, "name = '../../x' is not"),
        ({"questions": {"a": {**MEAN, "range": [1.0, 1.0 + 1e-12]}}}, "is too narrow or too wide"),
        ({"questions": {"a": {**MEAN, "range": [-1e300, 1e300]}}}, "is too narrow or too wide"),
        ({"questions": {"a": {**MEAN, "range": [0.0, 1e-320]}}}, "is too narrow or too wide"),
        ({"questions": {"a": {**MEAN, "range": [0.0, 1e78]}}}, "is too narrow or too wide"),
        (
            {"questions": {"a": {**MEAN, "ask": "quantiles", "at": [0.5, 0.5]}}},
            "questions.a.at = [0.5, 0.5] has an entry twice",
        ),
        (
            {"questions": {"w": {"ask": "heavy_hitters", "column": "w", "alphabet": "a\0"}}},
            "has the character 0, which ends words",
        ),
        (
            {"questions": {"a": {**COUNT, "weight": 1e9}}},
            "weight = 1000000000.0 is outside [0.001, 1000]",
        ),
        ({"protection": "oue", "epsilon": 1e-9}, "epsilon = 1e-09 is outside [0.001, 700]"),
    ],
)
def test_a_wrong_key_is_one_sentence(keys: dict[str, Any], said: str) -> None:
    file: dict[str, Any] = {"protection": "not_encrypt", "questions": {"n": COUNT}, **keys}
    with pytest.raises(JobError) as raised:
        QuestionFile.read(file, [])
    assert len(raised.value.problems) == 1
    assert said in raised.value.problems[0]


@pytest.mark.parametrize(
    ("name", "block", "keys"),
    [
        ("not_encrypt", "not_encrypt", {"max_examples": 7}),
        ("dp_encrypt", "dp_encrypt",
         {"dp_eps": 2.0, "dp_delta": 0.002, "dp_norm_clip": 2.0, "noise": "continuous"}),
        ("pw_encrypt", "pw_encrypt",
         {"clip": 3.0, "max_examples": 7, "central_eps": 2.0, "central_delta": 1e-9,
          "central_norm_clip": 3.0}),
        ("distributed_dp", "distributed_dp",
         {"clip": 3.0, "noise_multiplier": 2.0, "target_epsilon": 3.0, "clip_quantile": 0.3,
          "bits": 17}),
        ("central_gaussian", "central_gaussian",
         {"clip": 3.0, "noise_multiplier": 2.0, "target_epsilon": 3.0, "clip_quantile": 0.3}),
        ("oue", "unary",
         {"eps": 3.0, "cells": 3, "report": "bits", "target": "update", "clip": 3.0,
          "adaptive": True, "total_eps": 3.0, "fidelity": "aggregate"}),
    ],
)  # fmt: skip
def test_a_setting_that_the_question_determines_cannot_be_chosen(
    name: str, block: str, keys: dict[str, Any]
) -> None:
    """Otherwise the stated noise would be that of other settings."""
    for key, value in keys.items():
        held = {"name": name, block: {key: value}}
        epsilon = None if name == "not_encrypt" else 1.0
        file = {"protection": held, "epsilon": epsilon, "questions": {"n": COUNT}}
        with pytest.raises(JobError) as raised:
            QuestionFile.read(file, [])
        said = f"protection.{block}.{key} follows from epsilon, delta and the questions"
        assert [problem.split(":")[0] for problem in raised.value.problems] == [said]


def test_the_protection_is_never_chosen_silently() -> None:
    with pytest.raises(JobError, match="protection is missing: name one of"):
        QuestionFile.read({"questions": {"n": COUNT}}, [])


NOISY = ("dp_encrypt", "distributed_dp", "central_gaussian", "rr", "oue")


def asking(name: str, epsilon: float | None) -> QuestionFile:
    more: dict[str, Any] = {} if epsilon is None else {"epsilon": epsilon}
    return QuestionFile(protection=name, questions={"old": COUNT}, clients=7, **more)


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        *((name, 1.5) for name in ("pw_encrypt", *NOISY)),
        ("pw_encrypt", None),
        ("not_encrypt", None),
    ],
)
def test_a_file_says_if_the_server_adds_the_noise_as_its_protection_will(
    name: str, epsilon: float | None
) -> None:
    """A client with a limit of its own asks the file, before the protection is made."""
    file = asking(name, epsilon)
    made = make_protection(file, 3, 1, Participants(7))
    adds = name == "central_gaussian" or (name == "pw_encrypt" and epsilon is not None)
    assert file.rests_on_server == made.rests_on_server(made.settings) == adds


@pytest.mark.parametrize(
    ("name", "epsilon", "said"),
    [
        *((name, None, f"epsilon is missing: {name} adds the noise") for name in NOISY),
        ("not_encrypt", 1.5, "epsilon = 1.5 promises what not_encrypt does not keep"),
    ],
)
def test_an_epsilon_is_needed_for_noise_and_for_nothing_else(
    name: str, epsilon: float | None, said: str
) -> None:
    assert {*SUMS, *LOCAL} == {*NOISY, "pw_encrypt", "not_encrypt"}
    with pytest.raises(JobError, match=said):
        asking(name, epsilon)


def test_a_deployed_client_may_contribute_several_rows() -> None:
    """Each client has a file of its own, so no column names it."""
    keys = {"protection": "central_gaussian", "epsilon": 1.0, "rows": 3, "questions": {"n": COUNT}}
    assert QuestionFile.read({**keys, "clients": 5}, []).rows == 3


def test_a_file_is_read_and_written(tmp_path: Path) -> None:
    file = QuestionFile.read(
        {"protection": "oue", "epsilon": 0.7, "questions": {"a": AGES}}, ["delta=1e-7"]
    )
    (tmp_path / "again.yaml").write_text(file.to_yaml())
    assert QuestionFile.load(tmp_path / "again.yaml") == file


@pytest.mark.parametrize(
    ("question", "data", "said"),
    [
        (AGES, {"age": ["41", "many"]}, r"data, row 2: age = 'many' is not a finite number"),
        (AGES, {"years": [3.0]}, r"data has no column 'age'; its columns are years"),
        (AGES, {"age;sex": ["3;f"]}, "data has no column 'age'; its columns are age;sex"),
        (AGES, {"a\x1b[2Jge": [3.0]}, r"its columns are 'a\\x1b\[2Jge'$"),
        (AGES, {"age": []}, "data has no rows"),
        (AGES, {}, "data has no columns"),
        (AGES, {"age": [1.0, np.inf]}, "row 2: age = inf is not a finite number"),
        (AGES, {"age": [1.0, 2.0, -np.inf]}, "row 3: age = -inf is not a finite number"),
        (AGES, "text", "text cannot be read: No such file or directory"),
        (AGES, [[1.0, 2.0], [3.0]], "data is no table: a file, columns by name or rows"),
        (AGES, {"age": [[1.0], [2.0, 3.0]]}, "data: 'age' is not a list of numbers or texts"),
        (AGES, ([], []), "data has no rows"),
    ],
)
def test_unusable_data_is_one_sentence(question: Any, data: Any, said: str) -> None:
    with pytest.raises(Exception, match=said) as raised:
        asked({"a": question}, data)
    assert "\n" not in str(raised.value)


def test_a_row_without_a_client_is_refused() -> None:
    table = ArrayTable("t", {"who": ["b", "", "a"]})
    with pytest.raises(DataInvalid, match="row 2: who is empty"):
        clients_of(table, "who", 1)


def test_too_few_clients_for_the_rounds_of_rr_are_refused_before_a_charge(tmp_path: Path) -> None:
    questions, account = {"a": AGES, "b": MEAN, "c": COUNT}, tmp_path / "account"
    with pytest.raises(RunFailed, match="2 clients are too few for 3 rounds"):
        asked(questions, {"age": [30.0, 40.0]}, "rr", epsilon=1.0, account=str(account))
    assert not account.exists()


def test_secure_aggregation_needs_three_clients() -> None:
    with pytest.raises(JobError, match="secure aggregation needs at least 3"):
        asked({"n": COUNT}, {"age": [30.0, 40.0]}, "distributed_dp", epsilon=1.0)
    three = asked({"n": COUNT}, {"age": [30.0, 40.0, 50.0]}, "pw_encrypt")
    assert three["n"].value == pytest.approx(3, abs=0.01)


def test_filters_compare_numbers_and_words_and_never_match_a_missing_value() -> None:
    columns = {"age": [10.0, 70.0, np.nan, 66.0], "sex": ["f", "m", "f", None]}
    columns["who"] = np.array([0, 1, -1, 2]) + 2**53
    table = ArrayTable("t", columns)
    matched = {
        text: Filter(text).mask(table).tolist()
        for text in (
            "age >= 66",
            "age < 100 and sex == 'f'",
            "sex != 'f' or age == 10",
            "sex in ['m', 'x']",
            "not (age > 60)",
            "age not in [10, 11]",
            "10 < age <= 66",
            "66 <= age",
            "who == '9007199254740993'",
            "who > 9007199254740991",
            "\n  age in (10, 66) ",
            "sex not in ('f', 'x')",
        )
    }
    assert matched == {
        "age >= 66": [False, True, False, True],
        "age < 100 and sex == 'f'": [True, False, False, False],
        "sex != 'f' or age == 10": [True, True, False, False],
        "sex in ['m', 'x']": [False, True, False, False],
        "not (age > 60)": [True, False, True, False],
        "age not in [10, 11]": [False, True, False, True],
        "10 < age <= 66": [False, False, False, True],
        "66 <= age": [False, True, False, True],
        "who == '9007199254740993'": [False, True, False, False],
        "who > 9007199254740991": [True, True, False, True],
        "\n  age in (10, 66) ": [True, False, False, True],
        "sex not in ('f', 'x')": [False, True, False, False],
    }
    assert Filter("age > 3 and sex == 'f'").columns == ["age", "sex"]


@pytest.mark.parametrize(
    ("sign", "meets"),
    [("==", "3"), ("!=", "24"), ("<", "4"), ("<=", "34"), (">", "2"), (">=", "23")],
)
def test_a_comparison_may_begin_with_its_value(sign: str, meets: str) -> None:
    table = ArrayTable("t", {"x": [2.0, 3.0, 4.0]})
    assert Filter(f"3 {sign} x").mask(table).tolist() == [x in meets for x in "234"]


def test_backticks_enclose_a_column_whose_name_is_no_word() -> None:
    table = ArrayTable("t", {"home town": ["x", "y"], "0": [1.0, 1.0], "_quoted_0": [7.0, 8.0]})
    condition = Filter("`home town` == 'x' and `0` == 1 and _quoted_7 != 3")
    assert condition.columns == ["0", "_quoted_7", "home town"]
    assert Filter("`home town` == 'x' and `0` < 2").mask(table).tolist() == [True, False]
    for wrong in ("`` == 1", "`a == 1", "`a` `b` == 1"):
        with pytest.raises(JobError, match="is not a condition"):
            Filter(wrong)


def test_a_column_in_backticks_is_not_mistaken_for_a_column_without() -> None:
    """Both conditions would read the column `home town` twice."""
    columns = {"home town": ["x", "y"], "_quoted_0": ["y", "y"], "_quoted0": ["y", "x"]}
    table = ArrayTable("t", columns)
    for name, meets in (("_quoted_0", [True, False]), ("_quoted0", [True, False])):
        condition = Filter(f"`home town` == 'x' and {name} == 'y'")
        assert condition.columns == sorted(["home town", name])
        assert condition.mask(table).tolist() == meets


def test_a_column_has_the_letters_that_the_condition_writes() -> None:
    """Python reads nº as no, and the micro sign as the Greek letter."""
    table = ArrayTable("t", {"nº": [4.0, 5.0], "no": [1.0, 9.0], "\u00b5g": [1.0, 2.0]})
    assert Filter("nº > 4").mask(table).tolist() == [False, True]
    assert Filter("é == 3 or (no < 5 and \u00b5g <= 1)").columns == ["no", "\u00b5g", "é"]


def test_backticks_within_a_text_are_a_part_of_it() -> None:
    table = ArrayTable("t", {"a b": ["`x` y", "z"], "q": ["`", "\"`'`"], "it's": [1.0, 1.0]})
    assert Filter("`a b` == '`x` y'").mask(table).tolist() == [True, False]
    condition = Filter("q in ['`'] and \"`\" == q and `a b` != 'x'")
    assert condition.mask(table).tolist() == [True, False]
    assert Filter("q == '\"`\\'`' and `it's` == 1").mask(table).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x in {[1]}", "is not a condition"),
        ("x == {[1]: 2}", "is not a condition"),
        ("x == " + "9" * 400, "is too large to be compared as a number"),
    ],
)
def test_a_condition_that_python_cannot_compute_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(JobError, match=said):
        Filter(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("code > '02000'", [False, True, True]),  # a postcode, with leading zeros
        ("code <= '2020-01-31'", [True, True, False]),
        ("code >= '9007199254740992'", [False, False, False]),  # 2^53: no exact number
        ("code == '7'", [False, False, True]),
    ],
)
def test_texts_that_are_no_numbers_may_be_ordered(text: str, expected: list[bool]) -> None:
    table = ArrayTable("t", {"code": ["01000", "02001", "7"]})
    assert Filter(text).mask(table).tolist() == expected


def test_tables_of_every_kind_have_the_same_answer(tmp_path: Path) -> None:
    columns = people()
    names = ["age", "sex", "income", "town"]
    lines = [",".join(names)]
    lines += [",".join(str(columns[n][i]) for n in names) for i in range(len(columns["age"]))]
    csv = tmp_path / "people.csv"
    csv.write_text("\n".join(lines) + "\n")
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table(columns), tmp_path / "people.parquet")
    record = np.rec.fromarrays(list(columns.values()), names=names)
    kinds = [str(csv), str(tmp_path / "people.parquet"), pandas.DataFrame(columns), record]
    question = {"a": {**AGES, "by": "sex", "groups": ["m", "f"], "where": "town != 3"}}
    expected = [e.value for e in asked(question, columns)["a"].estimates]
    assert sum(expected) > 300
    for data in kinds:
        assert [e.value for e in asked(question, data)["a"].estimates] == expected


def test_arrays_and_data_sets_have_numbered_columns_targets_and_owners() -> None:
    x = np.arange(12.0).reshape(3, 2, 2)
    table = as_table((x, np.array([4, 5, 4])))
    assert list(table.columns) == ["0", "1", "2", "3", "y"]
    assert table.numbers("3").tolist() == [3, 7, 11]
    part = SimpleNamespace(x=x, y=np.array([4, 5, 4]))
    owned = as_table(SimpleNamespace(train=part, owners=np.array([8, 8, 2]), name="own"))
    assert (owned.name, owned.words("client").tolist()) == ("own", ["8", "8", "2"])
    file = {
        "protection": "not_encrypt", "data": "digits",
        "questions": {"y": {"ask": "histogram", "column": "y", "categories": [0, 7]}},
    }  # fmt: skip
    from fedveil.data.datasets import load

    truth = load("digits").train.y
    values = [e.value for e in ask(file)["y"].estimates]
    assert values == [(truth == 0).sum(), (truth == 7).sum()]


def test_a_data_set_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    data = {"y": [4.0, 5.0, 6.0], "who": ["a", "b", "a"]}
    monkeypatch.setattr(clients.datasets, "load", lambda name: asked.append(name) or data)
    keys = {"protection": "not_encrypt", "data": "mnist", "client": "who", "rows": 2}
    found = clients.load(QuestionFile.read({**keys, "questions": {"n": COUNT}}, []))
    assert (asked, len(found), found.rows, found.table.name) == (["mnist"], 2, 2, "mnist")


def test_data_may_be_a_function_of_the_current_folder_and_its_error_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is on Python's path for as long as the function runs, even if it fails."""
    text = "def rows():\n    return {'y': [4.0, 5.0]}\ndef broken():\n    return [][3]\n"
    (tmp_path / "rows_of_a_question.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)

    def load(name: str) -> clients.Clients:
        keys = {"protection": "not_encrypt", "data": f"rows_of_a_question:{name}"}
        return clients.load(QuestionFile.read({**keys, "questions": {"n": COUNT}}, []))

    assert load("rows").table.numbers("y").tolist() == [4, 5]
    with pytest.raises(DataInvalid, match=r"^data = 'rows_of_a_question:broken': .* IndexError"):
        load("broken")
    assert sys.path == before


def test_bytes_and_missing_cells_of_a_data_frame_are_words() -> None:
    assert as_table({"s": np.array([b"f", "ä".encode()])}).words("s").tolist() == ["f", "ä"]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"s": pandas.array(["u", None], dtype="string")})
    frame["b"] = pandas.array([True, None], dtype="boolean")
    assert as_table(frame).words("s").tolist() == ["u", ""]
    assert np.array_equal(as_table(frame).numbers("b"), [1.0, np.nan], equal_nan=True)


@pytest.mark.parametrize("kind", ["series", "array", "list", "rows"])
@pytest.mark.parametrize("apart", [False, True])
def test_pandas_na_is_missing_wherever_it_stands(kind: str, apart: bool) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {
        "n": pandas.array([30, None, 41], dtype="Int64"),
        "h": pandas.array([1.5, 2.0, None], dtype="Float64"),
        "b": pandas.array([None, True, False], dtype="boolean"),
    }
    made: Any = {
        "series": {name: pandas.Series(cells) for name, cells in columns.items()},
        "array": columns,
        "list": {name: list(cells) for name, cells in columns.items()},
        "rows": pandas.DataFrame(columns).to_numpy(),
    }[kind]
    table = as_table(made, apart=apart)
    n, h, b = "012" if kind == "rows" else "nhb"
    assert np.array_equal(table.numbers(n), [30, np.nan, 41], equal_nan=True)
    assert np.array_equal(table.numbers(h), [1.5, 2, np.nan], equal_nan=True)
    assert np.array_equal(table.numbers(b), [np.nan, 1, 0], equal_nan=True)
    assert table.words(n).tolist() == ["30", "", "41"]
    assert table.words(b).tolist() == ["", "True", "False"]
    if kind != "rows":
        words = as_table({"s": pandas.array(["u", None, "<NA>"], dtype="string")}, apart=apart)
        assert words.words("s").tolist() == ["u", "", "<NA>"]


def test_a_column_of_mixed_cells_is_read_as_numbers_and_as_words() -> None:
    """A column of whole numbers becomes one of floats if a cell is missing."""
    floats = ArrayTable("t", {"x": [1.0, np.nan, 2.5, 1234567.0]})
    assert floats.words("x").tolist() == ["1", "", "2.5", "1234567"]
    texts = ArrayTable("t", {"x": ["41", " NA ", "NaN", "", None, " 2.5"]})
    expected = [41.0, *[np.nan] * 4, 2.5]
    assert np.array_equal(texts.numbers("x"), expected, equal_nan=True)


def test_a_missing_number_in_a_list_of_texts_is_missing() -> None:
    table = ArrayTable("t", {"x": ["a", float("nan"), " nan"]})
    assert table.words("x").tolist() == ["a", "", "nan"]
    assert Filter("x != 'a'").mask(table).tolist() == [False, False, True]


def test_a_masked_cell_is_missing() -> None:
    hidden = np.ma.masked_array([1, 999, 3], mask=[False, True, False])  # type: ignore[no-untyped-call]
    table = ArrayTable("t", {"x": hidden})
    assert table.words("x").tolist() == ["1", "", "3"]
    assert Filter("x > 0").mask(table).tolist() == [True, False, True]


def test_dates_are_words() -> None:
    days = np.array(["2024-01-31", "NaT", "2024-02-01"], "M8[D]")
    for column in (days, days.astype("M8[ns]")):
        table = as_table({"d": column})
        assert table.words("d").tolist() == ["2024-01-31", "", "2024-02-01"]
        with pytest.raises(DataInvalid, match="row 1: d = '2024-01-31' is not a finite number"):
            table.numbers("d")
    times = days.astype("M8[ms]") + np.array([0, 1, 90_061_000], "m8[ms]")
    said = ["2024-01-31", "", "2024-02-02 01:01:01"]  # no date depends on another
    assert as_table({"d": times}).words("d").tolist() == said
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"d": pandas.to_datetime(["2024-01-31", None, "2024-01-31"])})
    counted = {"ask": "histogram", "column": "d", "categories": ["2024-01-31", "2024-02-01"]}
    assert [e.value for e in only(counted, frame)] == [2, 0]


def test_the_word_of_a_time_with_a_zone_has_the_zone() -> None:
    """Midnights of two zones are two times, and none of them is a day."""
    east, day = timezone(timedelta(hours=1)), datetime(2024, 1, 31)
    noon = day.replace(hour=12, minute=30, second=5, microsecond=250)
    cells = [
        *(day.replace(tzinfo=zone) for zone in (east, UTC, None)),
        *(noon.replace(tzinfo=zone) for zone in (east, UTC, None)),
    ]
    words = [
        *("2024-01-31 00:00:00+01:00", "2024-01-31 00:00:00+00:00", "2024-01-31"),
        *("2024-01-31 12:30:05.000250+01:00", "2024-01-31 12:30:05.000250+00:00"),
        "2024-01-31 12:30:05",
    ]
    for column in (cells, np.array(cells, object)):
        assert as_table({"d": column}).words("d").tolist() == words
    count = {"ask": "count", "where": "d == '2024-01-31'"}
    assert [e.value for e in only(count, {"d": cells})] == [1]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"d": pandas.Series([cells[0], None, cells[0]])})
    assert as_table(frame).words("d").tolist() == [words[0], "", words[0]]


def test_a_data_frame_is_not_changed() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"s": np.array(["u", np.nan, "v"], object)})
    assert as_table(frame).words("s").tolist() == ["u", "", "v"]
    assert np.isnan(frame["s"][1])


@pytest.mark.parametrize("kind", ["not_encrypt", "oue"])
def test_the_widest_range_has_a_variance(kind: str) -> None:
    question = {"ask": "variance", "column": "x", "range": [0.0, 9e69]}
    rows, epsilon = {"x": [0.0, 9e69] * 40}, {} if kind == "not_encrypt" else {"epsilon": 4.0}
    (found,) = asked({"a": question}, rows, kind, **epsilon)["a"].estimates
    assert 0 <= found.low <= found.value <= found.high <= 4.5e69**2


def test_whole_sums_stay_whole_and_one_row_has_no_correlation() -> None:
    # 63 rows of 503: the mean times 503 is not 63.
    assert asked({"n": {**COUNT, "where": "x < 63"}}, {"x": np.arange(503.0)})["n"].value == 63
    both = {"ask": "correlation", "column": "x", "range": [0.0, 9.0], "other": "y",
            "other_range": [0.0, 9.0]}  # fmt: skip
    for rows, low in ((1, -1.0), (2, -0.2), (3, 0.5)):
        data = {"x": [1.0, 7.0, 2.0][:rows], "y": [2.0, 8.0, 3.0][:rows]}
        (estimate,) = asked({"r": both}, data)["r"].estimates
        assert -1 <= estimate.low <= low


def test_a_long_word_takes_no_memory_in_other_rows(tmp_path: Path) -> None:
    """If this word set the width of all rows, they would need 600 GB."""
    rows, word = 3_000, "x" * 50_000_000
    words = ["a", "b", word] * (rows // 3 - 1) + ["a", "b", " b "]
    counts = [rows // 3, rows // 3 + 1, rows // 3 - 1]
    for data in ({"w": words}, {"w": [None, *words[1:]]}, [[cell] for cell in words]):
        table = as_table(data)
        (column,) = table.columns
        cells, _ = Categories(column, ["a", "b"]).cells(table)
        empty = int(len(table.words(column)[0]) == 0)
        assert np.bincount(cells + 1).tolist() == [
            counts[2] + empty, counts[0] - empty, counts[1],
        ]  # fmt: skip
    shorter = "x" * 100_000  # Python's csv module refuses longer cells
    (tmp_path / "rows.csv").write_text(f"w\na\n{shorter}\n\na\n")
    found = as_table(tmp_path / "rows.csv").words("w")
    assert (found.dtype, found.tolist()) == (object, ["a", shorter, "a"])


def test_what_is_said_of_a_file_is_said_once_and_of_every_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;y;d\n1,5;7;01.02.2024\n2;8;31.12.2023\n")
    table = FileTable(str(path))
    begin = f"{path}: UTF-8, separated by semicolon"
    assert table.said == [begin]
    for column in ("y", "x", "d"):
        table.numbers(column)
    assert table.said == [f"{begin}; decimal commas in x", f"{begin}; dates (day first) in d"]


@pytest.mark.parametrize("columns", [20, 21])
def test_a_missing_column_lists_the_first_of_many(columns: int) -> None:
    table = ArrayTable("t", {f"c{number}": [1.0] for number in range(columns)})
    with pytest.raises(DataInvalid, match=f"c18, c19{', ...' if columns > 20 else ''}$"):
        table.words("c20_")


def test_truth_values_of_numpy_in_a_list_of_texts_are_numbers() -> None:
    table = ArrayTable("t", {"b": ["0", np.True_, np.False_, True, "2.5"]})
    assert table.numbers("b").tolist() == [0, 1, 0, 1, 2.5]


def test_a_data_set_and_a_file_have_their_own_names_in_messages(tmp_path: Path) -> None:
    x, y = np.ones((3, 2), np.float32), np.arange(3)
    made = make_dataset("birds", (x, y), (x, y))
    with pytest.raises(DataInvalid, match=r"^birds has no column 'age'"):
        as_table(made, "rows").numbers("age")
    file = QuestionFile.read(
        {"protection": "not_encrypt", "data": "own:rows", "questions": {"a": AGES}}, []
    )
    with pytest.raises(DataInvalid, match=r"^own:rows has no column 'age'"):
        load(file, {"years": [3.0]})
