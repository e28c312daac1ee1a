"""Reads the ids of a table's rows and checks that they are distinct."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Int64s, are_distinct
from fedveil.settings.allowed import plain, shown
from fedveil.tasks.tables.id_rules import MOST_ID_LETTERS, ROUNDED, keep_plain, normalised
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_piece import Piece
from fedveil.vertical.task_settings import IdSettings


class IdColumn:
    """Reads the ids in the column `name`, and normalises them by `rules`.

    Problems with the ids are added to `refusals`. If `name` is None, rows have no ids.
    """

    def __init__(self, name: str | None, rules: IdSettings, refusals: Refusals) -> None:
        self._name, self._rules, self._refusals = name, rules, refusals
        self._ids: list[npt.NDArray[np.str_]] = []

    def add(self, piece: Piece) -> None:
        if self._name is None:
            return
        if keep_plain(self._rules):
            plain_ids = piece.plain_ids(self._name)
            if plain_ids is not None:
                self._ids.append(plain_ids)
                return
        written = piece.cells(self._name)
        refused: set[int] = set()
        # Too long ids are replaced before they are copied, because they could fill the memory.
        if max(map(len, written), default=0) > MOST_ID_LETTERS:
            refused = self._refuse(piece, written, refused)
            written = ["" if row in refused else cell for row, cell in enumerate(written)]
        ids = normalised(written, self._rules)
        longest = max(map(len, ids), default=0)  # normalisation may make a text longer
        rounded = any(ROUNDED.fullmatch(cell) for cell in ids if "+" in cell)
        if longest > MOST_ID_LETTERS or "" in ids or "\0" in "".join(ids) or rounded:
            refused |= self._refuse(piece, ids, refused)
            for row in refused:  # unique, so that refused ids are not reported as duplicates
                ids[row] = f"\x01{piece.places[row]}"
        self._ids.append(np.array(ids, np.str_))

    def _refuse(self, piece: Piece, ids: Sequence[str], known: Collection[int]) -> set[int]:
        """Report the invalid ids among `ids`, the ids of a piece's rows. Returns their indices.

        Ids at the indices in `known` are not checked.
        """
        found: dict[str, list[int]] = {}
        for row, cell in enumerate(ids):
            kind = "" if row in known else _kind(cell)
            if kind:
                found.setdefault(kind, []).append(row)
        for kind, rows in found.items():
            cell, places = ids[rows[0]], [piece.places[row] for row in rows[:3]]
            value = f" = {shown(cell[:MOST_ID_LETTERS])}" if cell else ""
            problem = _PROBLEMS[kind].format(len(cell))
            said = f": {plain(self._name or '')}{value} {problem}"
            self._refusals.rows(self._name or "", kind, said, places, len(rows))
        return {row for rows in found.values() for row in rows}

    def check_distinct(self, places: Sequence[Int64s]) -> None:
        """Add a problem to `refusals` if an id occurs twice in the table.

        Call it after `add` has read all pieces of the table. `places` has one array for each piece,
        in the same order: the line or row numbers of the piece's rows in the file.
        """
        if self._name is None or not self._ids:
            return
        ids = self.array()
        if are_distinct(ids):
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


_PROBLEMS: Final = {
    "empty": "is empty",
    "long": f"has {{:,}} letters; an id has at most {MOST_ID_LETTERS}",
    "NUL": "contains a NUL character, which an id must not",
    "rounded": "is a number that a spreadsheet has rounded; export it as text",
}


def _kind(cell: str) -> str:
    if not cell:
        return "empty"
    if len(cell) > MOST_ID_LETTERS:
        return "long"
    if "\0" in cell:  # NumPy drops a NUL at the end of a text, so two ids would become equal
        return "NUL"
    return "rounded" if ROUNDED.fullmatch(cell) else ""
