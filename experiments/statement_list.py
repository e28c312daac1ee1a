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
statement depends on the size. Otherwise it is S if all verdicts agree, and D if one differs.

**{tally}.**
"""
_SCALES = get_args(Scale)
_COMMAND = re.compile(r"^    (fedveil reproduce .*)$", re.MULTILINE)
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
        scale, command = _SCALE.search(text), _COMMAND.search(text)
        if scale is None or command is None or not answers:
            raise ValueError(f"{page} is not the page of an experiment")
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


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the source, number, text, status, place and command of every statement."""
    for source, number, statement in statements():
        if "page" in statement:
            judged = Judged.of(PAGES / f"{statement['page']}.md")
            status = judged.status(
                statement["verdicts"], statement.get("least_scale", "full"), "differs" in statement
            )
            count = Counter(judged.of_measures(statement["verdicts"]))
            answers = ", ".join(f"{answer} {number}" for answer, number in count.items())
            shown = (
                f"[{statement['page']}]({statement['page']}.md), scale {judged.scale}: {answers}"
            )
            command = judged.command
        else:
            status, shown = statement["status"], statement.get("shown", "")
            command = f"pytest {statement['test']}" if "test" in statement else ""
        notes = (statement.get("note", ""), statement.get("differs", ""))
        where = "; ".join(part for part in (shown, *notes) if part)
        yield source, number, statement["text"], status, where, command and f"`{command}`"


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
