"""The ids of a table's rows, as the rules write them. They are distinct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Int64s
from fedveil.settings.allowed import plain, shown
from fedveil.tasks.tables.id_rules import ROUNDED, normalised
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_piece import Piece
from fedveil.vertical.task_settings import IdSettings

#: All ids of a table take as much memory as the longest one: NumPy's texts have one width, with 4
#: bytes for each letter. A UUID has 36 letters, and a SHA-512 in hexadecimal digits 128.
MOST_ID_LETTERS: Final = 256
#: Begins what stands for a refused id, so that it is no duplicate.
_REFUSED = "\x01refused "


class IdColumn:
    """Reads the column `name` of ids. None: the rows have no ids."""

    def __init__(self, name: str | None, rules: IdSettings, refusals: Refusals) -> None:
        self._name, self._rules, self._refusals = name, rules, refusals
        self._ids: list[npt.NDArray[np.str_]] = []

    def add(self, piece: Piece) -> None:
        if self._name is None:
            return
        written = piece.cells(self._name)
        if max(map(len, written), default=0) > MOST_ID_LETTERS:  # together they may fill the memory
            written = [self._checked(piece, row, cell) for row, cell in enumerate(written)]
        ids = normalised(written, self._rules)
        longest = max(map(len, ids), default=0)  # a Unicode form may have more letters
        if longest > MOST_ID_LETTERS or "" in ids or "\0" in "".join(ids) or self._rounded(written):
            ids = [self._checked(piece, row, cell) for row, cell in enumerate(ids)]
        self._ids.append(np.array(ids, np.str_))

    def _rounded(self, written: Sequence[str]) -> bool:
        return any(ROUNDED.fullmatch(cell) for cell in written if "+" in cell)

    def _checked(self, piece: Piece, row: int, cell: str) -> str:
        """Return an id, or a place holder if it is refused."""
        assert self._name is not None
        problem, kind = "", ""
        if cell.startswith(_REFUSED):
            return cell
        if not cell:
            problem, kind = " is empty", "empty"
        elif len(cell) > MOST_ID_LETTERS:
            problem = f" has {len(cell):,} letters; an id has at most {MOST_ID_LETTERS}"
        elif "\0" in cell:  # NumPy drops it at the end of a text: two ids would become equal
            problem = " contains a NUL character, which an id must not"
        elif ROUNDED.fullmatch(cell):
            problem = " is a number that a spreadsheet has rounded; export it as text"
        if not problem:
            return cell
        value = "" if kind else f" = {shown(cell)}"
        said = f": {plain(self._name)}{value}{problem}"
        place = piece.places[row]
        self._refusals.rows(self._name, kind or problem.split()[0], said, [place], 1)
        return f"{_REFUSED}{place}"

    def check_distinct(self, places: Sequence[Int64s]) -> None:
        """Add a refusal for ids that occur twice. `places` are the rows' lines, piece by piece."""
        if self._name is None or not self._ids:
            return
        ids = self.array()
        if len(set(ids.tolist())) == len(ids):
            return
        rows, order = np.concatenate(places), np.argsort(ids, kind="stable")
        again = np.sort(order[np.flatnonzero(ids[order][1:] == ids[order][:-1]) + 1])
        second = again[0]
        first = int((ids == ids[second]).argmax())
        said = (
            f": the {self._name} {shown(str(ids[second]))} is also in {self._refusals.unit} "
            f"{rows[first]}, but ids must be distinct"
        )
        self._refusals.rows(self._name, "twice", said, rows[again[:3]].tolist(), len(again))

    def array(self) -> npt.NDArray[np.str_]:
        return np.concatenate(self._ids) if self._ids else np.empty(0, np.str_)
