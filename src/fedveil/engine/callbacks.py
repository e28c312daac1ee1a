"""Hooks for a user's own code: at the start of a run, after each round, and at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.base import own_code
from fedveil.errors import InvalidValue, RunStopped
from fedveil.federated.job import Job
from fedveil.record.recorder import Record


@dataclass(frozen=True)
class Beginning:
    """Describes a run to `Callback.begin`. `done` is the number of rounds completed so far."""

    job: Job
    folder: Path
    done: int


class Callback:
    """Base class of callbacks, which are named in `record.callbacks` or passed to `simulate`.

    An exception in a callback interrupts the run, which can be resumed.
    """

    def begin(self, run: Beginning) -> None:
        """Called when the run starts or resumes, before its next round."""

    def round(self, record: Record) -> str | None:
        """Called after each round, with its record. Returns a reason to stop the run, or None."""
        return None

    def end(self, run: Any) -> None:
        """Called at the end with the finished `Run`, or with None after an interruption."""


class Callbacks:
    """Calls all callbacks of a run: first the callbacks passed as objects, then the job's."""

    def __init__(self, names: Sequence[str], given: Iterable[Callback] = ()) -> None:
        if not isinstance(given, Iterable):
            raise InvalidValue(f"callbacks = {given!r} is not a list: use callbacks=[...]")
        self._all: list[tuple[str, Callback]] = [
            (f"callbacks: {type(callback).__name__}", callback) for callback in given
        ]
        for name in names:
            key = f"record.callbacks = {name!r}"
            made = own_code.load(name, key=key, error=InvalidValue)
            with own_code.own_code_errors(key, InvalidValue):
                self._all.append((key, made()))
        for key, callback in self._all:
            if not isinstance(callback, Callback):
                raise InvalidValue(
                    f"{key} is a {type(callback).__name__}, not a subclass of "
                    f"fedveil.engine.callbacks.Callback"
                )

    def begin(self, run: Beginning) -> None:
        for key, callback in self._all:
            with own_code.own_code_errors(key, RunStopped, "begin"):
                callback.begin(run)

    def round(self, record: Record) -> str | None:
        """Call every callback with a round's record. Returns the first reason to stop, or None."""
        why = []
        for key, callback in self._all:
            with own_code.own_code_errors(key, RunStopped, "round"):
                why.append(callback.round(record))
        return next(filter(None, why), None)

    def end(self, run: Any) -> None:
        for key, callback in self._all:
            with own_code.own_code_errors(key, RunStopped, "end"):
                callback.end(run)
