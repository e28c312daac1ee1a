"""The list of the sources' testable statements, made of `statements.toml` and the pages' verdicts.

`python -m experiments.statement_list` writes docs/reproductions/statements.md.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from fedveil.base.untrusted import MOST_LINES_BYTES, read_text
from fedveil.pages.table import Table
from fedveil.studies.checkout import Scale

_HERE = Path(__file__).parent
STATEMENTS = _HERE / "statements.toml"
PAGES = _HERE.parent / "docs" / "reproductions"
PAGE = PAGES / "statements.md"
STATUSES: Mapping[str, str] = {
    "S": "shown",
    "D": "different, with a reason",
    "P": "implemented, not shown at the source's size",
    "M": "missing",
}
_HEAD = """# The sources' statements

fedveil implements methods from four [sources](index.md): papers and documents. This page lists
every testable statement of the sources. The status of a statement is
{legend}.

"Where" names the page of this documentation that treats the statement, and for D, P and M the
reason. "Command" runs the experiment or the test that checks the statement.

If an experiment checks a statement, its status follows from the verdicts on that experiment's
page. It is P if a verdict says nothing, or if the run is smaller than the source's and the
statement depends on the size. Otherwise it is S if all verdicts agree, and D if one differs, or if
fedveil differs from the statement in something that no verdict tests. A statement that does not
depend on the size is S at any size; "where" then says which size was run.

**{tally}.**
"""
_SCALES = get_args(Scale)
_COMMAND = re.compile(r"^    (fedveil reproduce .*)$", re.MULTILINE)
_TALLY = re.compile(r"^\*\*\d+ of (\d+) results agree", re.MULTILINE)
_SCALE = re.compile(r"\*\* Scale: (\w+)\.$", re.MULTILINE)


@dataclass(frozen=True)
class Judged:
    """The content of an experiment's page: the verdicts by measure, the scale and the command."""

    answers: Mapping[str, str]
    scale: str
    command: str

    @classmethod
    def of(cls, page: Path) -> Judged:
        """Read a page in docs/reproductions."""
        text = read_text(page, MOST_LINES_BYTES)
        rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
        answers = {row[0]: row[4] for row in rows[2:] if len(row) == 6}
        scale, command, tally = (find.search(text) for find in (_SCALE, _COMMAND, _TALLY))
        if scale is None or command is None or tally is None or not answers:
            raise ValueError(f"{page} is not the page of an experiment")
        if len(answers) != int(tally[1]):
            raise ValueError(f"{page} has {tally[1]} verdicts, but {len(answers)} measures of them")
        return cls(answers, scale[1], command[1])

    def of_measures(self, verdicts: list[str]) -> list[str]:
        """Return the answers of all verdicts whose measure begins with a text in `verdicts`."""
        found = []
        for begins in verdicts:
            mine = [answer for what, answer in self.answers.items() if what.startswith(begins)]
            if not mine:
                raise ValueError(f"no verdict begins with {begins!r}: {', '.join(self.answers)}")
            found += mine
        return found

    def status(self, verdicts: list[str], least_scale: str = "full", differs: bool = False) -> str:
        """Return the status of a statement that the verdicts with these beginnings judge.

        `least_scale` is the smallest scale whose verdicts count. `differs` is True if fedveil
        differs from the statement in something that no verdict judges.
        """
        found = {*self.of_measures(verdicts)}
        if "says nothing" in found or _SCALES.index(self.scale) < _SCALES.index(least_scale):
            return "P"
        return "D" if differs or "differs" in found else "S"


def statements() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the source, the number and the content of every statement."""
    for source, held in tomllib.loads(read_text(STATEMENTS, MOST_LINES_BYTES)).items():
        for number, statement in held.items():
            if number != "title":
                yield source, number, statement


def selected(statement: Mapping[str, Any]) -> Mapping[str, list[str]]:
    """Return, for each page, the beginnings of the names of the measures that judge a statement."""
    own = {statement["page"]: statement["verdicts"]} if "page" in statement else {}
    return {**own, **statement.get("also", {})}


def _judged(statement: Mapping[str, Any]) -> tuple[str, list[str], list[str]]:
    """Return the status that follows from a statement's verdicts, its places and its commands.

    `also_least_scale` is the smallest scale of the further pages, by default that of the own page.
    """
    least = statement.get("least_scale", "full")
    also_least = statement.get("also_least_scale", least)
    statuses, places, commands = [], [], []
    for name, verdicts in selected(statement).items():
        judged = Judged.of(PAGES / f"{name}.md")
        scale = least if name == statement["page"] else also_least
        statuses.append(judged.status(verdicts, scale, "differs" in statement))
        count = Counter(judged.of_measures(verdicts))
        answers = ", ".join(f"{answer} {number}" for answer, number in count.items())
        places.append(f"[{name}]({name}.md), scale {judged.scale}: {answers}")
        commands.append(judged.command)
    return min(statuses, key="PDS".index), places, commands


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the source, number, text, status, place and command of every statement."""
    for source, number, statement in statements():
        if "page" in statement:
            status, places, commands = _judged(statement)
        else:
            status, places, commands = statement["status"], [statement.get("shown", "")], []
        if "test" in statement:
            commands.append(f"pytest {statement['test']}")
        notes = (statement.get("note", ""), statement.get("differs", ""))
        where = "; ".join(part for part in (*places, *notes) if part)
        command = ", ".join(f"`{command}`" for command in commands)
        yield source, number, statement["text"], status, where, command


def page() -> str:
    """Return the page in Markdown."""
    found = [*rows()]
    count = Counter(row[3] for row in found)
    tally = ", ".join(f"{count[key]} {key}" for key in STATUSES)
    legend = "; ".join(f"**{key}** {means}" for key, means in STATUSES.items())
    parts = [_HEAD.format(legend=legend, tally=f"{len(found)} statements: {tally}")]
    titles = tomllib.loads(read_text(STATEMENTS, MOST_LINES_BYTES))
    for source, held in titles.items():
        mine = [row[1:] for row in found if row[0] == source]
        table = Table(("", "statement", "status", "where", "command"), mine)
        parts += [f"## {source}: {held['title']}\n", table.markdown()]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
