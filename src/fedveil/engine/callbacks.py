"""What a user's own code may see of a run while it goes: its beginning, its rounds and its end."""

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
    """A run that begins, or goes on after `done` rounds."""

    job: Job
    folder: Path
    done: int


class Callback:
    """Derive from it, and name the class in `record.callbacks` or give objects to `simulate`.

    What raises ends the run as an interruption does: it can be gone on with.
    """

    def begin(self, run: Beginning) -> None:
        """Before the first round."""

    def round(self, record: Record) -> str | None:
        """After a round, with its record. A sentence ends the run, for that reason."""
        return None

    def end(self, run: Any) -> None:
        """After the last round, with the finished `Run`; with None where the run was cut off."""


class Callbacks:
    """All of a run's, in their order."""

    def __init__(self, names: Sequence[str], given: Iterable[Callback] = ()) -> None:
        self._all: list[tuple[str, Callback]] = [
            (f"callbacks: {type(callback).__name__}", callback) for callback in given
        ]
        for name in names:
            key = f"record.callbacks = {name!r}"
            made = own_code.load(name, key=key, error=InvalidValue)
            with own_code.told(key, InvalidValue):
                self._all.append((key, made()))
        for key, callback in self._all:
            if not isinstance(callback, Callback):
                raise InvalidValue(
                    f"{key} is a {type(callback).__name__}, which is not derived from "
                    f"fedveil.engine.callbacks.Callback"
                )

    def begin(self, run: Beginning) -> None:
        for key, callback in self._all:
            with own_code.told(key, RunStopped, "begin"):
                callback.begin(run)

    def round(self, record: Record) -> str | None:
        """Why the run ends, where one says so; all are told."""
        why = []
        for key, callback in self._all:
            with own_code.told(key, RunStopped, "round"):
                why.append(callback.round(record))
        return next(filter(None, why), None)

    def end(self, run: Any) -> None:
        for key, callback in self._all:
            with own_code.told(key, RunStopped, "end"):
                callback.end(run)
