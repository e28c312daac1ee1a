"""`fedveil watch`: shows a running or finished run by reading its folder or a copy of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from fedveil.base.validate import integer
from fedveil.errors import RunFolderError
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.pages.vertical_page import is_vertical, leader_of, parties_of
from fedveil.record.run_folder import EVENTS, METRICS, in_use
from fedveil.record.sealed_message import intact
from fedveil.run_display import RunDisplay, summary

Wait = Callable[[float], None]

#: Seconds between two reads of the folder.
_POLL_S = 0.5
#: The number of reads during which a finished run may still write its page.
_LAST_LOOKS = 20


def watch(folder: Path, console: Console, patience_s: float, wait: Wait = time.sleep) -> ReadRun:
    """Show a run's records on `console` as they are written, until the run ends. Returns the run.

    Raises `RunFolderError` if nothing is new for `patience_s` seconds and no process is writing.
    `wait(seconds)` waits between two looks into the folder.
    """
    with intact(folder):
        if is_vertical(read_run(folder, growing=True)):
            _watch_parties(folder, console, patience_s, wait)
        else:
            _watch_rounds(folder, console, patience_s, wait)
        return read_run(folder)


def _watch_rounds(folder: Path, console: Console, patience_s: float, wait: Wait) -> None:
    def rounds() -> ReadRun:
        return read_run(folder, growing=True)

    run, shown = rounds(), 0
    with RunDisplay(console, integer("rounds", run.job["rounds"], 1)) as display:
        for run in _new_states(folder, rounds, patience_s, wait):
            for record in run.records[shown:]:
                display.show(record)
            shown = max(shown, len(run.records))
    if run.finished:
        display.summary(run)
    else:
        console.print(run.ended)


def _watch_parties(folder: Path, console: Console, patience_s: float, wait: Wait) -> None:
    from fedveil.vertical.log_lines import line

    def leader() -> ReadRun:
        run = read_run(folder, growing=True)
        return leader_of(run, parties_of(run, growing=True))

    shown = 0
    for run in _new_states(folder, leader, patience_s, wait):
        for record in run.records[shown:]:
            console.print(line(record), soft_wrap=True)
        shown = max(shown, len(run.records))
    summary(console, read_run(folder))


def _new_states(
    folder: Path, read: Callable[[], ReadRun], patience_s: float, wait: Wait
) -> Iterator[ReadRun]:
    """Yield each new state of a run: whenever `read()` finds new records or log lines.

    Ends when the run has ended. Raises `RunFolderError` if nothing is new for `patience_s` seconds
    and no process is writing to `folder`. `wait(seconds)` waits between two calls of `read`.
    """
    held, looks, waited_s = None, _LAST_LOOKS, 0.0
    while True:
        run = read()
        if (now := (len(run.records), len(run.events))) != held:
            held, waited_s = now, 0.0
            yield run
        elif (
            run.ended is None
            # The clock that dated the files may be ahead of this one.
            and max(_quiet_s(run), waited_s) > patience_s
            and not in_use(folder)
        ):
            raise RunFolderError(
                f"{folder} has not grown for {patience_s:g} s and no process on this machine is "
                "writing it: the run was interrupted, or this is a copy that is not updated"
            )
        if run.ended is not None:
            looks -= 1
            if not looks or not in_use(folder):
                return
        wait(_POLL_S)
        waited_s += _POLL_S


def _quiet_s(run: ReadRun) -> float:
    files = (path for path in (run.folder / METRICS, run.folder / EVENTS) if path.exists())
    return time.time() - max((path.stat().st_mtime for path in files), default=0.0)
