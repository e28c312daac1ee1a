"""The list of the sources' statements is made of the verdicts, and is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments import statement_list
from experiments.statement_list import PAGES, Judged, page, rows, statements
from folders import ROOT


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


def judged(tmp_path: Path, *answers: str, scale: str = "full") -> Judged:
    lines = [f"| m{n}: x | 1 | 2 | 3 | {answer} | why |" for n, answer in enumerate(answers)]
    head = ["| measure | the source | here | criterion | verdict | why |", "| --- |"]
    text = "\n".join([f"**2 of 3 agree.** Scale: {scale}.", *head, *lines, "",
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
