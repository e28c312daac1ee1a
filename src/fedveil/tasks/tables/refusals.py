"""Collects all problems of one file and reports them as one error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedveil.errors import DataInvalid

#: The problems that a message lists, and the rows that it names of each.
_SHOWN, _ROWS = 20, 3


@dataclass
class _Problem:
    said: str
    rows: list[int]
    count: int


@dataclass
class Refusals:
    """Collects problems of the file `path`: of single rows, and of the whole file or a column.

    `unit` is what messages call a row: "line" or "row".
    """

    path: str
    unit: str = "line"
    _rows: dict[tuple[str, str], _Problem] = field(default_factory=dict)
    _others: list[str] = field(default_factory=list)

    def rows(self, column: str, kind: str, said: str, rows: Sequence[int], count: int) -> None:
        """Add a problem of the given `kind` that `count` rows have in `column`.

        `rows` are the line numbers of the first few such rows. `said` describes the first problem.
        """
        problem = self._rows.setdefault((column, kind), _Problem(said, [], 0))
        problem.count += count
        problem.rows.extend(rows[: _ROWS - len(problem.rows)])

    def add(self, sentence: str) -> None:
        """Add a problem of the whole file or a column: a sentence that does not name the file."""
        self._others.append(sentence)

    def __len__(self) -> int:
        return len(self._rows) + len(self._others)

    def has(self, column: str) -> bool:
        """Return True if a row has a problem in this column."""
        return any(column == name for name, _ in self._rows)

    @contextmanager
    def collecting(self, column: str) -> Iterator[None]:
        """Context manager: records a DataInvalid about `column` instead of raising it."""
        try:
            yield
        except DataInvalid as error:
            if not self.has(column):
                self.add(str(error).removeprefix(f"{self.path}: "))

    def left_out(self) -> int:
        """Return the number of problems of single rows, for callers that omit such rows."""
        return sum(problem.count for problem in self._rows.values())

    def check(self) -> None:
        if not len(self):
            return
        found = [self._shown(problem) for problem in self._rows.values()]
        # A single problem of a row reads "PATH, line 3: ...", and one of the file "PATH: ...".
        if len(self) == 1:
            mark = ", " if found else ": "
            raise DataInvalid(f"{self.path}{mark}{(found + self._others)[0]}")
        found += self._others
        more = f"; and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        listed = "; ".join(f"({at}) {said}" for at, said in enumerate(found[:_SHOWN], 1))
        raise DataInvalid(f"{self.path} has {len(found)} problems: {listed}{more}")

    def _shown(self, problem: _Problem) -> str:
        first, *others = problem.rows
        said = f"{self.unit} {first}{problem.said}"
        if problem.count == 1:
            return said
        units = self.unit if len(others) == 1 else f"{self.unit}s"
        also = f", such as {units} {', '.join(map(str, others))}" if others else ""
        return f"{said} ({problem.count:,} such cells{also})"
