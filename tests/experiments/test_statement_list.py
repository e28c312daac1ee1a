"""The list of the sources' statements is made of the verdicts, and is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments import EXPERIMENTS, statement_list
from experiments.catalog import find
from experiments.outcome_page import SOURCES
from experiments.statement_list import PAGES, Judged, page, rows, selected, statements
from folders import ROOT

#: Rows of pages that no statement selects: the beginnings of their measures, and why.
UNSELECTED = {
    "secagg-cost": {"": "001 states no costs: these rows are of the papers behind PW_ENCRYPT"},
    "ldp-epsilon": {
        "lenet-mnist: accuracy without": "002/12 selects that of `ldp-noniid`, with three seeds",
        "dnn-purchase100-synthetic: accuracy without": "002/12 says that the data is not here",
        "dnn-purchase100-synthetic: OUE": "002/18 selects that of LeNet, at the source's size",
        "dnn-location30": "the source has no figure of Location-30",
    },
    "ldp-adaptive": {"dnn-location30: mean": "the source has no figure of Location-30"},
    "embedding-dp": {"accuracy": "003/9 is MistNet's table 1, and this is of its figure 3"},
    "accuracy-epsilon": {
        "rr and oue at": "002/18 is about equal epsilons of a bit, and this of the whole run"
    },
}


def test_the_page_is_up_to_date() -> None:
    """Otherwise: python -m experiments.statement_list."""
    assert (PAGES / "statements.md").read_text("utf-8") == page()


def test_every_statement_of_every_source_has_a_line() -> None:
    found = [*rows()]
    assert [sum(row[0] == source for row in found) for source in ("000", "001", "002", "003")] == [
        28, 17, 21, 9,
    ]  # fmt: skip
    for source in {row[0] for row in found}:
        numbers = [int(row[1]) for row in found if row[0] == source]
        assert numbers == list(range(1, len(numbers) + 1))
    for _, number, text, status, where, command in found:
        assert status in statement_list.STATUSES, number
        assert where
        assert command, text


def test_what_a_statement_names_is_there() -> None:
    for _, number, statement in statements():
        if "test" in statement:
            assert (ROOT / statement["test"]).exists(), number
        for link in re.findall(r"\]\(([^)#]+)", statement.get("shown", "")):
            assert (PAGES / link).is_file(), link
        if statement.get("status") in ("D", "M", "P"):
            assert statement["note"], f"{number} says no reason"


def of_sources() -> list[str]:
    """Return the experiments that have a page and belong to one of the four sources."""
    named = [name for name in EXPERIMENTS if find(name).source.partition(",")[0] in SOURCES]
    return [name for name in named if (PAGES / f"{name}.md").is_file()]


def unselected(name: str, chosen: list[str]) -> list[str]:
    """Return the measures on the page `name` that begin with none of the texts in `chosen`."""
    measures = Judged.of(PAGES / f"{name}.md").answers
    return [what for what in measures if not what.startswith(tuple(chosen))]


@pytest.mark.parametrize("name", of_sources())
def test_every_row_of_a_page_is_part_of_a_statement_or_says_why_not(name: str) -> None:
    """A row that says nothing, or differs, cannot be left out of the list in silence."""
    chosen = [begins for *_, each in statements() for begins in selected(each).get(name, [])]
    left, known = unselected(name, chosen), UNSELECTED.get(name, {})
    assert not [what for what in left if not what.startswith(tuple(known))]
    for begins, why in known.items():
        assert any(what.startswith(begins) for what in left), f"{begins!r} is selected or gone"
        assert why


def test_every_experiment_of_a_source_is_checked() -> None:
    assert len(of_sources()) == len(EXPERIMENTS)
    assert {*UNSELECTED} <= {*of_sources()}
    pages = {name for *_, each in statements() for name in selected(each)}
    assert pages <= {*of_sources()}


def test_a_statement_judged_below_the_sources_size_says_which_size() -> None:
    for source, number, statement in statements():
        scales = [Judged.of(PAGES / f"{name}.md").scale for name in selected(statement)]
        if {*scales} - {"full"}:
            assert statement.get("note"), f"{source}/{number}"


def test_verdicts_on_several_pages_make_one_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answers in {"a": ["agrees"], "b": ["differs"], "c": ["says nothing"]}.items():
        judged(tmp_path, *answers)
        (tmp_path / "x.md").rename(tmp_path / f"{name}.md")
    monkeypatch.setattr(statement_list, "PAGES", tmp_path)
    every = ["m0"]

    def found(*also: str) -> tuple[str, int, int]:
        statement = {"page": "a", "verdicts": every, "also": dict.fromkeys(also, every)}
        status, places, commands = statement_list._judged(statement)
        return status, len(places), len(commands)

    assert found() == ("S", 1, 1)
    assert found("b") == ("D", 2, 2)
    assert found("b", "c") == ("P", 3, 3)


def test_further_pages_may_have_a_smaller_least_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, scale in {"a": "full", "b": "medium"}.items():
        judged(tmp_path, "agrees", scale=scale)
        (tmp_path / "x.md").rename(tmp_path / f"{name}.md")
    monkeypatch.setattr(statement_list, "PAGES", tmp_path)

    def status(page: str, also: str, **scales: str) -> str:
        statement = {"page": page, "verdicts": ["m0"], "also": {also: ["m0"]}, **scales}
        return statement_list._judged(statement)[0]

    assert status("a", "b") == "P"
    assert status("a", "b", also_least_scale="medium") == "S"
    assert status("b", "a", also_least_scale="medium") == "P"  # it is not about the own page


def judged(tmp_path: Path, *answers: str, scale: str = "full") -> Judged:
    lines = [f"| m{n}: x | 1 | 2 | 3 | {answer} | why |" for n, answer in enumerate(answers)]
    head = ["| measure | the source | here | criterion | verdict | why |", "| --- |"]
    told = f"**{answers.count('agrees')} of {len(answers)} results agree with the source.**"
    text = "\n".join([f"{told} Scale: {scale}.", *head, *lines, "",
                      "    fedveil reproduce x --scale full"])  # fmt: skip
    (tmp_path / "x.md").write_text(text)
    return Judged.of(tmp_path / "x.md")


def test_a_status_follows_the_verdicts(tmp_path: Path) -> None:
    found = judged(tmp_path, "agrees", "says nothing", "differs")
    assert found.command == "fedveil reproduce x --scale full"
    assert found.status(["m0"]) == "S"
    assert found.status(["m0", "m1"], "small") == "P"
    assert found.status(["m"], "small") == "P"
    assert found.status(["m0", "m2"]) == "D"
    assert found.status(["m0"], differs=True) == "D"
    assert found.status(["m1"], differs=True) == "P"


@pytest.mark.parametrize(
    ("scale", "counts"),
    [("small", {"small"}), ("medium", {"small", "medium"}), ("full", {"small", "medium", "full"})],
)
def test_verdicts_count_from_the_statements_least_scale_on(
    tmp_path: Path, scale: str, counts: set[str]
) -> None:
    found = judged(tmp_path, "agrees", "differs", scale=scale)
    for least in ("small", "medium", "full"):
        expected = ["S", "D"] if least in counts else ["P", "P"]
        assert [found.status([measure], least) for measure in ("m0", "m1")] == expected


def test_a_statement_whose_verdict_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no verdict begins with 'n0'"):
        judged(tmp_path, "agrees").status(["n0"], "small")
    (tmp_path / "x.md").write_text("# x\n")
    with pytest.raises(ValueError, match="is not the page of an experiment"):
        Judged.of(tmp_path / "x.md")


@pytest.mark.parametrize("second", ["m1", "m0 | split"])
def test_a_row_that_cannot_be_told_apart_is_an_error(tmp_path: Path, second: str) -> None:
    """Two rows of one measure, or a row with another number of cells."""
    judged(tmp_path, "agrees", "differs")
    text = (tmp_path / "x.md").read_text()
    assert len(Judged.of(tmp_path / "x.md").answers) == 2
    (tmp_path / "x.md").write_text(text.replace("| m0: x", f"| {second}: x"))
    with pytest.raises(ValueError, match="has 2 verdicts, but 1 measures"):
        Judged.of(tmp_path / "x.md")
