"""The privacy costs that an event log states, which show that a file of accounts was edited."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedveil.errors import RunFolderError
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import ACCOUNTS, TEXT
from fedveil.record.event_log import on_one_line
from fedveil.record.run_folder import EVENTS

#: The beginnings of the event at the end of a run, and of those at the start of a session.
FINISHED = "finished after "
BEGINS = ("began", "went on after ", "train from ")


def check_logged(folder: Path, accounts: Sequence[Line], events: Sequence[str]) -> bool:
    """Return True if a session began after the last account in the log `events`.

    Raises `RunFolderError` if the `accounts` of `folder` are not the last ones in the log.
    """
    logged, later = _last(events)
    if [on_one_line(str(line)) for line in accounts] != logged:
        raise RunFolderError(
            f"{folder / ACCOUNTS} is not the account in {folder / EVENTS}: a line was edited, "
            f"added or removed, or the run was killed. Resume the run, and let it end, or put the "
            f"file back"
        )
    return later and bool(logged)


def _last(events: Sequence[str]) -> tuple[list[str], bool]:
    """Return the lines of the last account in a log.

    The second result is True if a session began after this account. There are no lines if this
    session finished without an account.
    """
    lines: list[str] = []
    logged: list[str] = []
    later = False
    for event in (*events, ""):
        text = event.partition(" ")[2]
        if text.startswith("epsilon "):
            # Two sessions may write their accounts one after the other, and all begin alike. The
            # cost of a text that the parties continued comes before an account.
            before = [] if lines and _what(lines[0]) == _what(text) else lines
            lines = [] if _what(text).startswith(TEXT) else [*before, text]
            continue
        if lines:
            logged, lines, later = lines, [], False
        later |= text.startswith(BEGINS)
        if later and text.startswith(FINISHED):
            logged, later = [], False
    return logged, later


def _what(text: str) -> str:
    """Return what a line of an account is about."""
    return text.partition(" for ")[2]
