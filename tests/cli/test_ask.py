"""`fedveil ask`, from a file to a folder with a page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fedveil.cli.ask import _print
from fedveil.errors import MissingExtra
from fedveil.privacy.ledger import Line
from fedveil.statistics.answers import Answer, Estimate
from fedveil.statistics.asking import Asking

FILE = """\
name: survey
data: people.csv
protection: central_gaussian
epsilon: 2
questions:
  old: {ask: count, where: age >= 65}
  ages: {ask: histogram, column: age, edges: [0, 40, 65, 100]}
  income: {ask: quantiles, column: income, range: [0, 90], at: [0.25, 0.5], cells: 16}
"""


@pytest.fixture
def question(tmp_path: Path) -> Path:
    rows = [f"{20 + i % 71},{(i * 37) % 90}" for i in range(211)]
    (tmp_path / "people.csv").write_text("\n".join(["age,income", *rows]) + "\n")
    path = tmp_path / "question.yaml"
    path.write_text(FILE)
    return path


def test_an_answer_has_tables_a_cost_and_a_folder(command: Any, question: Path) -> None:
    code, out, err = command("ask", question, "--out", "answer")
    assert (code, err) == (0, "")
    assert "ages (histogram)" in out
    assert "[40, 65)" in out
    assert "privacy   epsilon 2 at delta 1e-06" in out
    folder = question.parent / "answer"
    page = (folder / "answers.html").read_text("utf-8")
    assert "What did it cost?" in page
    assert "Error bars: 95% intervals." in page
    saved = json.loads((folder / "answers.json").read_text())
    assert len(saved["answers"]["ages"]["estimates"]) == 3
    code, _, err = command("ask", question, "--out", "answer")
    assert code == 1
    assert "is not empty" in err


def test_json_is_one_value_with_every_interval(command: Any, question: Path) -> None:
    code, out, _ = command("ask", question, "--json", "--set", "protection=not_encrypt",
                           "--set", "epsilon=null")  # fmt: skip
    assert code == 0
    found = json.loads(out)
    estimates = [e for answer in found["answers"].values() for e in answer["estimates"]]
    assert len(estimates) == 6
    assert all(e["low"] <= e["value"] <= e["high"] for e in estimates)
    assert found["answers"]["old"]["estimates"][0]["value"] == 76


def test_an_answer_without_a_page_says_why_and_is_kept(
    command: Any, question: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(answers: Any) -> None:
        raise MissingExtra("torch", "torch", "a page")

    monkeypatch.setattr("fedveil.statistics.answer_folder.page_of", missing)
    why = f"none: {MissingExtra('torch', 'torch', 'a page')}"
    code, out, _ = command("ask", question, "--out", "answer", "--json")
    told = json.loads(out)
    assert (code, told["folder"], told["page"]) == (0, "answer", why)
    assert {path.name for path in (question.parent / "answer").iterdir()} >= {
        "answers.json", "question.yaml",
    }  # fmt: skip
    assert f"page      {why}" in command("ask", question, "--out", "other")[1]


def test_an_interrupted_question_leaves_no_folder(
    command: Any, question: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Asking) -> None:
        assert (question.parent / "answer").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(Asking, "run", interrupted)
    assert command("ask", question, "--out", "answer")[0] == 130
    assert not (question.parent / "answer").exists()


def test_a_terminal_shows_the_first_hundred_rows_with_their_notes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = [Estimate({"x": f"cell-{i}"}, i, i - 1, i + 1, 0.5, 0.25) for i in range(103)]
    answers = {"h": Answer("h", "histogram", many, ["noted"])}
    none = {"n": Answer("n", "heavy_hitters", [])}
    data = {name: {"ask": a.ask, "estimates": [asdict(e) for e in a.estimates], "notes": a.notes}
            for name, a in {**answers, **none}.items()}  # fmt: skip
    lines = [Line(1.5, 1e-6, "these"), Line(2.5, 0.0, "all")]
    _print({"answers": data, "privacy": [line._asdict() for line in lines], "page": "p.html"})
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert sum("cell-" in line for line in shown) == 100
    assert shown[0] == "h (histogram)"
    assert shown[-7:] == [
        "3 more estimates are in answers.json.", "noted", "n (heavy_hitters)",
        "Nothing is frequent enough to be told from noise.",
        *(f"privacy   {line}" for line in lines), "page      p.html",
    ]  # fmt: skip


def test_a_wrong_file_is_one_sentence_and_nothing_is_written(command: Any, question: Path) -> None:
    question.write_text(FILE.replace("income, range", "incme, range"))
    code, out, err = command("ask", question, "--out", "answer")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "people.csv has no column 'incme'" in err
    question.write_text(FILE.replace("epsilon: 2\n", ""))
    code, _, err = command("ask", question)
    assert code == 2
    assert "epsilon is missing" in err
    question.write_text(FILE)
    code, _, err = command("ask", question, "--set", "max_epsilon=1.5")
    assert code == 1
    assert "above max_epsilon = 1.5" in err
    assert {path.name for path in question.parent.iterdir()} == {"people.csv", "question.yaml"}


def test_a_guess_about_the_file_is_said(command: Any, question: Path) -> None:
    table = question.parent / "people.csv"
    table.write_text(table.read_text().replace(",", ";"), "utf-16")
    code, _, err = command("ask", question)
    assert code == 0
    assert err == "note: people.csv: UTF-16, separated by semicolon\n"


@pytest.mark.parametrize("words", [("run",), ("vertical", "run"), ("vertical", "show")])
def test_run_names_the_command_for_questions(
    command: Any, question: Path, words: tuple[str, ...]
) -> None:
    code, _, err = command(*words, question)
    assert (code, err.count("\n")) == (2, 1)
    assert "asks questions. Run it with: fedveil ask" in err


def test_a_question_is_deployed_like_a_job(command: Any, question: Path) -> None:
    pytest.importorskip("flwr")
    code, out, err = command("deploy", "app", question)
    assert (code, err) == (0, "")
    assert "next: flwr run app" in out
    assert "clients: 211" in (question.parent / "app" / "question.yaml").read_text()
    _, out, _ = command("deploy", "my app", question, "--set", "clients=205", "--json")
    told = json.loads(out)
    assert (told["clients"], told["next"]) == (205, "flwr run 'my app'")
    assert "my app/question.yaml" in told["wrote"]
    code, out, err = command("deploy", "other", question, "--seeded")
    assert (code, out) == (2, "")
    assert err == (
        f"error: --seeded is only for jobs, and {question} asks questions: clients answer them "
        "with noise from the operating system\n"
    )
    assert not (question.parent / "other").exists()
    code, _, err = command("deploy", "app", question, "--set", "epsilon=3")
    assert code == 1
    assert "app already holds question.yaml with other content" in err


def test_the_keys_are_explained_in_words_and_as_json(command: Any) -> None:
    code, words, _ = command("ask", "--keys")
    assert code == 0
    assert words.startswith("name: question\n")
    code, said, _ = command("ask", "--keys", "--json")
    assert code == 0
    explained = json.loads(said)
    assert explained["name"]["default"] == "question"
    assert all(f"\n{key}" in f"\n{words}" for key in explained if "." not in key)
    code, _, error = command("ask", "--json")
    assert (code, "Missing argument 'QUESTION'" in error) == (2, True)
