"""Reads one column of numbers, and finds the form of its cells.

A form is a way to write numbers, such as with decimal commas (`cell_forms`). If several forms are
possible and give different numbers, other columns must show which form the file uses. Otherwise the
column is refused, with a message that names the key to write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fedveil.base.array_types import Bools, Float64s
from fedveil.settings.allowed import plain, shown
from fedveil.tasks.tables.cell_forms import FORMS, KINDS, NOUNS, is_missing, is_short_date
from fedveil.tasks.tables.csv_format import key
from fedveil.tasks.tables.disk_columns import Spool
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_piece import Piece, PlainNumbers
from fedveil.vertical.task_settings import ReadingSettings

_DECIMALS = ("point", "comma")
_ORDERS = ("day-first", "month-first")
#: The most cells whose numbers are cached, and the longest of these. The cache takes some 40 MB.
_CACHED, _SHORT = 1 << 17, 40
#: The forms of columns that are read cell by cell. No cell has a different number in two of them.
_LONE = ("point", "iso", "time", "boolean")
#: Marks a cell that does not have the form, in an array of numbers. A missing cell is NaN.
_BAD = np.inf


class Cells:
    """Parses the texts of cells as numbers, in every form of number (`cell_forms`).

    `empty` are the texts that mark a missing cell, besides the usual ones.
    """

    def __init__(self, empty: Collection[str]) -> None:
        self.empty = frozenset(empty)
        stated = [number for text in empty if (number := FORMS["point"](text)) is not None]
        with np.errstate(over="ignore"):
            #: The numbers in `empty`, and the same numbers rounded to 32 bits.
            self.empty_numbers = np.array([*stated, *np.array(stated, np.float32)], np.float64)
        self._rows: dict[str, int] = {}
        self._numbers = np.empty((0, len(FORMS)))

    def numbers(self, words: Sequence[str]) -> Float64s:
        """Return the number that each of `words` states in each form, an array [words, forms].

        A missing cell is NaN, and a text that does not have the form is infinity.
        """
        rows = [self._rows.get(word, -1) for word in words]
        new = [at for at, row in enumerate(rows) if row < 0]
        read = np.array([self._read(words[at]) for at in new], np.float64).reshape(-1, len(FORMS))
        if len(new) == len(words):
            found = read
        else:
            found = self._numbers[rows]
            found[new] = read
        kept = [at for at, word in enumerate(new) if len(words[word]) <= _SHORT]
        if len(self._rows) + len(kept) <= _CACHED:
            first = len(self._numbers)
            self._rows.update((words[new[at]], first + row) for row, at in enumerate(kept))
            self._numbers = np.concatenate([self._numbers, read[kept]])
        return found

    def _read(self, word: str) -> list[float]:
        if is_missing(word, self.empty):
            return [np.nan] * len(FORMS)
        read = [parse(word) for parse in FORMS.values()]
        return [_BAD if number is None else number for number in read]


class NumberColumn:
    """Reads one column of numbers, piece by piece, and stores it on disk in `spool`.

    `forms` are the ways to write numbers that fit every cell so far. If none of them fits all cells
    of a piece of the table, only the form that fits most of these cells is kept. `lacks` is True if
    cells may be empty. If `apart` is True, each cell is read by itself, in one of the forms
    `_LONE`, so that no cell affects how another is read.
    """

    def __init__(
        self, name: str, settings: ReadingSettings, spool: Spool, refusals: Refusals,
        lacks: bool, cells: Cells, apart: bool = False,
    ) -> None:  # fmt: skip
        self.name, self._spool, self._refusals, self._lacks = name, spool, refusals, lacks
        kind = settings.kinds.get(name)
        forms = tuple(FORMS) if kind is None else KINDS[kind]
        if settings.decimal is not None:
            forms = tuple(f for f in forms if f not in _DECIMALS or f == settings.decimal)
        self.forms, self._cells, self._apart = ["point"] if apart else list(forms), cells, apart
        self._differs: dict[tuple[str, str], tuple[int, str]] = {}
        self._seen = False

    def add(self, piece: Piece) -> None:
        by_text = self._cells.empty and not piece.has_numbers(self.name)
        found = None if by_text else self._plain_numbers(piece)
        if found is None or np.isinf(found.values).any():
            (self._add_apart if self._apart else self._add_texts)(piece)
            return
        values, missing = found.values, np.isnan(found.values)
        if self._cells.empty:
            missing |= np.isin(values, self._cells.empty_numbers)
            values = np.where(missing, np.nan, values)
        if not missing.all():
            self._seen = True
            if not self._apart:
                self.forms = list(found.forms)
        self._check_missing(missing, piece)
        self._spool.append([self._key(form) for form in self.forms], values)

    def _plain_numbers(self, piece: Piece) -> PlainNumbers | None:
        """Return the column's numbers if the piece can parse them directly, otherwise None."""
        if self.forms == ["iso"] and (days := piece.dates(self.name)) is not None:
            return PlainNumbers(days, self.forms)
        may_be = any(form in self.forms for form in _DECIMALS)
        return piece.numbers(self.name, self.forms) if may_be else None

    def _add_texts(self, piece: Piece) -> None:
        codes, words = piece.coded(self.name)
        read = self._cells.numbers(words)
        table = read[:, [list(FORMS).index(form) for form in self.forms]]
        bad = np.isinf(table)
        failures = bad[codes].sum(axis=0)
        fits = failures == 0
        if not fits.all():
            kept = fits if fits.any() else np.arange(len(fits)) == failures.argmin()
            self.forms = [form for form, keep in zip(self.forms, kept, strict=True) if keep]
            table, bad = table[:, kept], bad[:, kept]
        missing = np.isnan(table)
        if not fits.any():
            rows = np.flatnonzero(bad[codes, 0])
            cell = words[codes[rows[0]]]
            short = "has a year of two digits" if is_short_date(cell) else ""
            self._refuse(piece, rows, cell, short or f"is not {NOUNS[self.forms[0]]}")
            table = np.where(bad, np.nan, table)
        self._seen |= not missing.all()
        self._check_missing(missing[codes, 0], piece)
        self._store(table, codes, words, piece)

    def _add_apart(self, piece: Piece) -> None:
        """Add a piece's cells, each in the first form that fits it. Other cells become missing."""
        codes, words = piece.coded(self.name)
        table = self._cells.numbers(words)[:, [list(FORMS).index(form) for form in _LONE]]
        unfit = np.isinf(table)
        bad = unfit.sum(axis=1) == len(_LONE)
        numbers = np.where(bad, np.nan, table[np.arange(len(words)), unfit.argmin(axis=1)])
        if bad.any():
            rows = np.flatnonzero(bad[codes])
            self._refuse(piece, rows, words[codes[rows[0]]], "is not a finite number")
        self._check_missing(np.isnan(numbers)[codes], piece)
        self._spool.append([self._key("point")], numbers[codes])

    def _store(
        self, table: Float64s, codes: np.ndarray, words: Sequence[str], piece: Piece
    ) -> None:
        """Store a piece's numbers as each of `forms` reads them, and note where two forms differ.

        `table[w, f]` is the number that form f reads in `words[w]`. Row r has the word `codes[r]`.
        """
        left = list(range(len(self.forms)))
        while left:
            first = table[:, left[0]]
            alike = [at for at in left if np.array_equal(table[:, at], first, equal_nan=True)]
            self._spool.append([self._key(self.forms[at]) for at in alike], first[codes])
            left = [at for at in left if at not in alike]
            for at in left:
                unequal = ~((table[:, at] == first) | np.isnan(first))
                row = int(unequal[codes].argmax())
                cell = (piece.places[row], words[codes[row]])
                for form in alike:  # a later piece may exclude any of them
                    self._differs.setdefault((self.forms[form], self.forms[at]), cell)

    def _check_missing(self, missing: Bools, piece: Piece) -> None:
        if not self._lacks and missing.any():
            rows = np.flatnonzero(missing)
            places = [piece.places[row] for row in rows[:3]]
            said = f": {plain(self.name)} is empty"
            self._refusals.rows(self.name, "empty", said, places, len(rows))

    def _refuse(self, piece: Piece, rows: np.ndarray, cell: str, problem: str) -> None:
        places = [piece.places[row] for row in rows[:3]]
        said = f": {plain(self.name)} = {shown(cell)} {problem}"
        self._refusals.rows(self.name, "form", said, places, len(rows))

    def _key(self, form: str) -> str:
        return f"{self.name}\0{form}"

    @property
    def undecided(self) -> tuple[str, str] | None:
        """Return two forms that fit all cells but read some as different numbers, or None."""
        pairs = ((a, b) for a, b in self._differs if a in self.forms and b in self.forms)
        return next(pairs, None)

    @property
    def evidence(self) -> str | None:
        """Return the only decimal separator or date order that fits this column.

        Returns None if several fit or none does, if two forms read the cells as different numbers,
        or if all cells are missing.
        """
        for group in (_DECIMALS, _ORDERS):
            possible = [form for form in self.forms if form in group]
            if self._seen and len(possible) == 1 and not self.undecided:
                return possible[0]
        return None

    def settle(self, decided: Collection[str], place: str | None) -> str:
        """Choose and return the form of the column's numbers, such as with a decimal comma.

        `decided` are the forms that other columns of the file prove. `place` is the path of the
        file's settings in the job, for messages. If the form is still ambiguous, this problem is
        added to the file's refusals.
        """
        while pair := self.undecided:
            shows = [form for form in pair if form in decided]
            if len(shows) != 1:
                line, cell = self._differs[pair]
                name = "decimal" if pair[0] in _DECIMALS else f"kinds.{self.name}"
                self._refusals.add(
                    f"{plain(self.name)} = {shown(cell)} in {self._refusals.unit} {line} has two "
                    f"readings; {key(place, f'{name}: {pair[0]} or {pair[1]}')}"
                )
                break
            self.forms = [form for form in self.forms if form not in pair or form in shows]
        form = self.forms[0]
        self._spool.rename(self._key(form), self.name)
        return form


def settle(columns: Iterable[NumberColumn], place: str | None) -> dict[str, str]:
    """Choose the form of each number column of a file. Returns the form's name by column name.

    Some columns can be read with only one decimal separator, or with only one order of day and
    month. If all such columns agree, their form holds for the other columns too. `place` is the
    path of the file's settings in the job, for messages.
    """
    made = list(columns)
    decided = {form for column in made if (form := column.evidence) is not None}
    for group in (_DECIMALS, _ORDERS):
        if decided >= set(group):  # columns disagree, so they say nothing about the others
            decided -= set(group)
    return {column.name: column.settle(decided, place) for column in made}
