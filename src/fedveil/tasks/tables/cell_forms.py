"""The forms in which a cell can state a number: decimal, date, time or truth value.

A date becomes the days since 1970-01-01. A date with a time gets a fraction, in UTC if it states an
offset. A time becomes a fraction of a day, and a truth value 0 or 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

#: Returns the number in a cell, or None if the cell does not have the form.
Parse: TypeAlias = Callable[[str], float | None]

#: Texts that mean a missing number, in lower case.
NO_NUMBER: Final = frozenset(
    ("", "na", "n/a", "#n/a", "nan", "null", "none", "<na>", "k.a.", "n.v.")
)
#: The longest cell that is read as a number. A denormal number has up to some 770 digits.
_MOST_DIGITS = 1000
_TIME = r"(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?"
_CLOCK = rf"(?:[T ]+{_TIME} ?(Z|[+-]\d\d:?\d\d)?)?"
_ISO = re.compile(rf"(\d{{4}})([-/])(\d\d?)\2(\d\d?){_CLOCK}", re.ASCII)
_ORDERED = re.compile(rf"(\d\d?)([-/.])(\d\d?)\2(\d{{4}}){_CLOCK}", re.ASCII)
_NAMED = re.compile(rf"(\d\d?)[- ]?([A-Za-z]{{3}})[- ]?(\d{{4}}){_CLOCK}", re.ASCII)
_OF_DAY = re.compile(_TIME, re.ASCII)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_TRUE = frozenset(("yes", "true", "ja", "y", "j", "1"))
_FALSE = frozenset(("no", "false", "nein", "n", "0"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _number(mark: str, thousands: str) -> Parse:
    """Return a parser of numbers. `mark` is the decimal and `thousands` the thousands separator."""
    groups = f"[{re.escape(thousands)}'’_ \u00a0\u2009\u202f]"
    whole = rf"(?:\d{{1,3}}(?:(?P<s>{groups})\d{{3}})(?:(?P=s)\d{{3}})*|\d+)"
    some = rf"(?:{whole}(?:{re.escape(mark)}\d*)?|{re.escape(mark)}\d+)(?:[eE][+-]?\d+)?"
    known, separators = re.compile(rf"[+-]?{some}", re.ASCII), re.compile(groups)

    def parse(cell: str) -> float | None:
        if len(cell) > _MOST_DIGITS or not (found := known.fullmatch(cell)):
            return None
        if found["s"]:
            if cell.lstrip("+-").startswith("0"):
                return None  # in 0.123 the point does not separate thousands
            cell = separators.sub("", cell)
        return float(cell.replace(mark, "."))

    return parse


def _days(year: str, month: str, day: str, clock: Sequence[str | None]) -> float | None:
    try:
        date = datetime(int(year), int(month), int(day), tzinfo=UTC)
    except ValueError:
        return None
    time = 0.0 if clock[0] is None else _fraction(clock[:4])
    if time is None:
        return None
    return (date - _EPOCH).days + time - _offset(clock[4])


def _fraction(clock: Sequence[str | None]) -> float | None:
    """Return a time as a fraction of a day, or None if a number is out of range.

    `clock` has the hour, the minute, the second, and the decimals of the second, as texts.
    """
    hour, minute, second = (int(part or 0) for part in clock[:3])
    if hour > 23 or minute > 59 or second > 59:
        return None
    return (hour * 3600 + minute * 60 + second + float(f"0.{clock[3] or 0}")) / 86400


def _offset(zone: str | None) -> float:
    if zone in (None, "Z"):
        return 0.0
    assert zone is not None
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return (minutes if zone[0] == "+" else -minutes) / 1440


def _iso(cell: str) -> float | None:
    if found := _ISO.fullmatch(cell):
        return _days(found[1], found[3], found[4], found.groups()[4:])
    if (found := _NAMED.fullmatch(cell)) and found[2].lower() in _MONTHS:
        month = str(_MONTHS.index(found[2].lower()) + 1)
        return _days(found[3], month, found[1], found.groups()[3:])
    return None


def _day_first(cell: str) -> float | None:
    found = _ORDERED.fullmatch(cell)
    return _days(found[4], found[3], found[1], found.groups()[4:]) if found else None


def _month_first(cell: str) -> float | None:
    found = _ORDERED.fullmatch(cell)
    if not found or found[2] == ".":  # dates with points have the day first everywhere
        return None
    return _days(found[4], found[1], found[3], found.groups()[4:])


def _time(cell: str) -> float | None:
    found = _OF_DAY.fullmatch(cell)
    return _fraction(found.groups()) if found else None


def _truth(cell: str) -> float | None:
    word = cell.lower()
    return 1.0 if word in _TRUE else 0.0 if word in _FALSE else None


#: Each form by its name. If several forms read a column alike, the first one is chosen.
FORMS: Final[Mapping[str, Parse]] = {
    "point": _number(".", ","), "comma": _number(",", "."),
    "iso": _iso, "day-first": _day_first, "month-first": _month_first,
    "time": _time, "boolean": _truth,
}  # fmt: skip

#: The forms that a kind of column, stated by the job, allows.
KINDS: Final[Mapping[str, Sequence[str]]] = {
    "number": ("point", "comma"), "date": ("iso", "day-first", "month-first"),
    "day-first": ("day-first",), "month-first": ("month-first",),
    "time": ("time",), "boolean": ("boolean",),
}  # fmt: skip

#: The kind of content of a number column, whatever its notation.
Kind: TypeAlias = Literal["number", "date", "time", "boolean"]


def kind_of(form: str) -> Kind:
    kinds: tuple[Kind, ...] = ("number", "date", "time", "boolean")
    return next(kind for kind in kinds if form in KINDS[kind])


#: What a message calls the form of a column.
NOUNS: Final[Mapping[str, str]] = {
    "point": "a finite number", "comma": "a number with a decimal comma",
    "iso": "a date such as 2024-12-31", "day-first": "a date such as 31.12.2024",
    "month-first": "a date such as 12/31/2024", "time": "a time such as 23:59",
    "boolean": "a truth value such as yes or no",
}  # fmt: skip


def is_missing(cell: str, stated: Collection[str]) -> bool:
    """Return True if a cell is empty, a marker such as NA, or in `stated` (the job's markers)."""
    return cell.lower() in NO_NUMBER or cell in stated


def is_short_date(cell: str) -> bool:
    """Return True if a cell is a date with a year of two digits, such as 31/12/24."""
    return re.fullmatch(r"[0-9]{1,2}([-/.])[0-9]{1,2}\1[0-9]{2}", cell) is not None
