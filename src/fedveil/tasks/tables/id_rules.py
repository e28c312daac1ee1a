"""Normalises ids so that all parties write them alike (`task.tables.ids`), and suggests rules."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from fedveil.vertical.task_settings import IdSettings

#: All ids of a table take as much memory as the longest one: NumPy's texts have one width, with 4
#: bytes for each letter. A UUID has 36 letters, and a SHA-512 in hexadecimal digits 128.
MOST_ID_LETTERS: Final = 256
_DECIMAL_ZERO = re.compile(r"([+-]?[0-9]+)\.0*")
_ZEROS = re.compile(r"([+-]?)0+(?=[0-9]+\Z)")
#: A spreadsheet's form of a long number, whose last digits are lost.
ROUNDED: Final = re.compile(r"[0-9][.,][0-9]+[eE]\+[0-9]+")

#: The looser value of each rule.
_LOOSER: Final = {
    "whole_numbers": True, "leading_zeros": "drop", "unicode": "NFKC", "case": "fold",
}  # fmt: skip


def normalised(ids: Sequence[str], rules: IdSettings) -> list[str]:
    """Normalise the ids by the rules. Spaces around them must already be removed."""
    alter = _alter(rules)
    if _are_plain("".join(ids), rules):
        return list(ids)
    return [alter(text) for text in ids]


def keep_plain(rules: IdSettings) -> bool:
    """Return True if no rule changes an ASCII id without a decimal point, the usual kind of id."""
    return rules.case != "fold" and rules.leading_zeros != "drop"


def _are_plain(joined: str, rules: IdSettings) -> bool:
    """Return True if no rule changes any of the ids whose concatenation is `joined`."""
    if not keep_plain(rules) or not joined.isascii():
        return False
    return not (rules.whole_numbers and "." in joined)


def _alter(rules: IdSettings) -> Callable[[str], str]:
    form: Literal["NFC", "NFKC"] | None = None if rules.unicode == "keep" else rules.unicode

    def alter(text: str) -> str:
        if form is not None:
            text = unicodedata.normalize(form, text).strip()
        if rules.case == "fold":
            text = text.casefold()
            text = text if form is None else unicodedata.normalize(form, text)
        if rules.whole_numbers and (found := _DECIMAL_ZERO.fullmatch(text)):
            text = found[1]
        return _ZEROS.sub(r"\1", text) if rules.leading_zeros == "drop" else text

    return alter


def hint(ids: Mapping[str, Sequence[str]], rules: IdSettings) -> str:
    """Return a sentence that suggests looser rules, or "" if they would change nothing.

    `ids` maps each party to its ids. For several parties, the sentence says how many more ids would
    be common under each rule. For one party, it says how many ids a rule would change.
    """
    now = rules.model_dump()
    looser = {key: value for key, value in _LOOSER.items() if now[key] != value}
    tried = {f"{key}: {_written(value)}": {key: value} for key, value in looser.items()}
    if len(looser) > 1:
        tried["all of these"] = looser
    count = _further if len(ids) > 1 else _rewritten
    counts = {said: count(ids, IdSettings(**{**now, **new})) for said, new in tried.items()}
    found = [f"{many:,} with {said}" for said, many in counts.items() if many]
    if not found:
        return ""
    listed = ", ".join(found)
    if len(ids) > 1:
        return f"looser rules in task.tables.ids would make more ids common: {listed}"
    (party,) = ids
    return (
        f"looser rules in task.tables.ids would rewrite ids of {party}: {listed}. All parties need "
        f"the same rules, and every id of a new attempt counts as a guess again"
    )


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _further(ids: Mapping[str, Sequence[str]], rules: IdSettings) -> int:
    before = set.intersection(*map(set, ids.values()))
    after = set.intersection(*(set(normalised(own, rules)) for own in ids.values()))
    return max(0, len(after) - len(before))


def _rewritten(ids: Mapping[str, Sequence[str]], rules: IdSettings) -> int:
    (own,) = ids.values()
    return sum(a != b for a, b in zip(own, normalised(own, rules), strict=True))
