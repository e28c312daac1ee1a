"""Saves a run's privacy costs in its folder, as lines of JSON, for pages and later commands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, get_args

from fedveil.base.untrusted import MALFORMED, MOST_LINES_BYTES, read_text
from fedveil.errors import MessageInvalid
from fedveil.privacy.ledger import Line
from fedveil.record.recorder import read_line, strict
from fedveil.record.run_folder import RunFolder

ACCOUNTS = "accounts.jsonl"
#: The file in a party's folder that records how often each example was sent.
SENT = "sent.csv"
#: The end of a line about values that are sent without any protection.
UNPROTECTED = "sent unprotected"
#: The start of the line about an example of a vertical run.
OWN_REPORTS = "an example's own reports"
#: The start of the last line about a text that two parties continued.
TEXT = "the whole text"
#: The line about labels that are randomised once.
LABEL = "an example's label, in all epochs"
#: Part of the line about a run that its own results, or a callback, ended early.
WHENEVER = "holds whenever"
#: The line about a part of the model that failed, perhaps because of a single example.
FAILURE = "the failure of a part, which the other parties were told"
#: How an example can influence reports about other examples -> the start of the line about it.
_INFLUENCES = {
    "training": "an example's influence on the later reports of others, through the training of ",
    "batch": (
        "an example's influence on the reports of others in its batch, through batch statistics of "
    ),
    "columns": (
        "an example's influence on the reports of others, through statistics of the columns that "
        "are read by "
    ),
}
Way = Literal["training", "batch", "columns"]
WAYS: tuple[Way, ...] = get_args(Way)


def influence(part: str, way: Way = "training") -> str:
    """Return a phrase for a privacy loss: one example's influence on reports about others.

    `part` names one or several parts of the model. An example changes their weights in training,
    and so influences what they later report about other examples. If `way` is "batch", the phrase
    is about parts that mix the examples of a batch, trained or not. If it is "columns", the phrase
    is about columns whose values depend on other examples, such as on the mean of all. The phrase
    is the text of an account line (`Line.what`).
    """
    return f"{_INFLUENCES[way]}{part}"


def influenced_part(what: str, way: Way | None = None) -> str | None:
    """Return the model's part that `what` names if it is a text made by `influence`, else None.

    `what` is the text of an account line (`Line.what`). If `way` is given, only a text made with
    the same `way` counts.
    """
    for each, start in _INFLUENCES.items():
        if what.startswith(start) and way in (None, each):
            return what.removeprefix(start)
    return None


def keep_accounts(folder: RunFolder, lines: Collection[Line], event: Callable[[str], None]) -> None:
    for line in lines:
        event(str(line))
    write_accounts(folder, lines)


def write_accounts(folder: RunFolder, lines: Collection[Line], name: str = ACCOUNTS) -> None:
    """Write privacy costs to the file `name` in `folder`. Removes the file if there are none."""
    text = "".join(json.dumps(strict(line._asdict()), allow_nan=False) + "\n" for line in lines)
    if text:
        folder.write_atomically(name, text.encode())
    else:
        folder.remove(name)


def read_accounts(path: Path, name: str = ACCOUNTS) -> list[Line]:
    """Read the privacy costs in the file `name` in the run folder `path`.

    Returns an empty list if there is no such file. Call it within `sealed_message.intact`, which
    turns errors in the file into a `RunFolderError`.
    """
    file = path / name
    if not file.exists():
        return []
    lines = read_text(file, MOST_LINES_BYTES).splitlines()
    return [_line(number, line) for number, line in enumerate(lines, 1)]


def _line(number: int, text: str) -> Line:
    try:
        fields = read_line(text)
        line = Line(float(fields["epsilon"]), float(fields["delta"]), str(fields["what"]))
    except MALFORMED:  # whose texts are about Python
        line = Line(math.nan, 0.0, "")
    if not (line.epsilon >= 0 and 0 <= line.delta <= 1):
        raise MessageInvalid(f"line {number} is no privacy cost: it was edited or cut off")
    return line
