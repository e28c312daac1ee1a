"""Rounds that were started since the last checkpoint. They cost privacy even if interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.message import Value, encode, take, take_array
from fedveil.base.untrusted import MOST_LINES_BYTES, MOST_STATE_BYTES, read_bytes, read_text
from fedveil.base.validate import integer
from fedveil.errors import MessageInvalid, RunFolderError
from fedveil.privacy.client_tally import Kind
from fedveil.privacy.ledger_message import kinds_from_state, kinds_to_state
from fedveil.record.recorder import PRIVACY, Record, read_line, revived, strict
from fedveil.record.run_folder import CHECKPOINT, RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed

_FILE = f"{CHECKPOINT}/begun"
#: In this file: what the record of the last started round would state about privacy if no report
#: were lost. Runs of earlier versions have it in a file of its own, which has no digest.
_STATED = "stated"
_EARLIER = f"{CHECKPOINT}/started.json"
#: No run starts more rounds between two checkpoints.
_MOST = 1 << 20


class Attempts:
    """The rounds started since the last checkpoint, in order, and the cost of a report in each.

    A round may be started several times, with different costs. Each start is recorded in a file
    before a report is requested. `done` is the last round in the checkpoint. Raises
    `RunFolderError` if a later checkpoint was saved, which alone has the costs of its rounds. If
    `is_kept` is True, an earlier process has called `keep`, so a missing file is an error.
    """

    def __init__(self, folder: RunFolder, done: int, *, is_kept: bool = False) -> None:
        self._folder = folder
        self._done = done
        self.begun: list[tuple[int, Kind]] = []
        self._stated: str | None = None
        path = folder.path / _FILE
        if path.exists():
            with intact(path):
                since, begun, self._stated = _read(_fields(path))
            if since > done:
                raise RunFolderError(
                    f"{folder.path / CHECKPOINT} has an older copy of the checkpoint: it ends with "
                    f"round {done}, and {path} follows round {since}. The privacy cost of the "
                    "rounds between them is only in the newest checkpoint. Put that back"
                )
            if since == done:
                self.begun = begun
        elif is_kept:
            raise RunFolderError(f"{path} is missing: it says which rounds were begun")

    def keep(self) -> None:
        """Create the file of started rounds, unless it exists.

        Call it before the run writes any other record. Then every run that may have requested
        reports has the file, even before its first checkpoint. If it is missing later, the cost of
        started rounds is unknown, and `Attempts` raises an error (`is_kept`).
        """
        if not (self._folder.path / _FILE).exists():
            self._write()

    def begin(self, round: int, cost: Kind, stated: Mapping[str, Any]) -> None:
        """Record on disk that `round` is started, and that each of its reports costs `cost`.

        Also saves `stated`, for the run's pages (`read_started`). It has the highest number of a
        round started so far, which is above `round` if a resumed run repeats earlier rounds. It
        also has the run's privacy guarantees, computed as if clients send every report that was
        requested.
        """
        self._stated = json.dumps(strict(stated), allow_nan=False)
        self.begun.append((round, cost))
        self._write()

    def _write(self) -> None:
        kinds = list(dict.fromkeys(kind for _, kind in self.begun))
        rows = [(number, kinds.index(kind)) for number, kind in self.begun]
        rounds, of_kind = np.array(rows, np.int64).reshape(-1, 2).T
        fields: dict[str, Value] = {"since": self._done, "rounds": rounds, "kinds": of_kind}
        if self._stated is not None:
            fields[_STATED] = self._stated
        self._folder.write_atomically(_FILE, sealed(fields | kinds_to_state(kinds)))
        (self._folder.path / _EARLIER).unlink(missing_ok=True)

    def without_record(self, recorded: int) -> bool:
        """Return True if the last started round has no record in the metrics.

        `recorded` is the number of the last round with a record, or 0.
        """
        return bool(self.begun) and self.begun[-1][0] > recorded

    def checkpointed(self, round: int) -> None:
        """Forget all started rounds, because the checkpoint after `round` contains their costs."""
        self._done, self.begun = round, []


def read_started(run: Path, recorded: int, *, is_kept: bool = False) -> Record:
    """Read what `Attempts.begin` has saved about the last started round, if it has no record.

    Returns the round's number, and the privacy guarantees of everything that may have been sent so
    far. Returns an empty record if that round has a record, or if no round was started. `run` is
    the run's folder, and `recorded` the number of the last round with a record, or 0. Raises
    `RunFolderError` if the file of started rounds was edited. If `is_kept` is True, raises it also
    if the file is missing.
    """
    path, earlier = run / _FILE, run / _EARLIER
    if not path.exists():
        if is_kept or earlier.exists():
            raise RunFolderError(f"{path} is missing: it says which rounds were begun")
        return {}
    with intact(path):
        _, begun, text = _read(_fields(path))
    last = begun[-1][0] if begun else 0  # a resumed run may begin earlier rounds again
    if text is None and begun and earlier.exists():
        path = earlier
        with intact(path):
            text = read_text(path, MOST_LINES_BYTES)
    with intact(path):
        if text is None:
            if last > recorded:
                raise MessageInvalid("it does not state the privacy of a started round")
            return {}
        found = read_line(text)
        if not isinstance(found, dict) or set(found) != {"round", *PRIVACY}:
            raise MessageInvalid("it does not state the privacy of a started round")
        started = integer("round", found["round"], 1)
        if started < last:
            raise MessageInvalid("it does not state the privacy of the last started round")
    return revived(found) if started > recorded else {}


def _fields(path: Path) -> dict[str, Value]:
    return unsealed(read_bytes(path, MOST_STATE_BYTES))


def _read(fields: dict[str, Value]) -> tuple[int, list[tuple[int, Kind]], str | None]:
    """Return the fields of a file of started rounds: the checkpoint's round, the rounds, the text.

    A round comes with the cost of a report. The text states the privacy of the last one, or is None
    if no round was started.
    """
    stated = take(fields, _STATED, str) if _STATED in fields else None
    since = take(fields, "since", int)
    rounds = take_array(fields, "rounds", np.int64, (None,))
    kinds = take_array(fields, "kinds", np.int64, rounds.shape)
    known = kinds_from_state(fields)
    if since < 0 or (rounds <= since).any():
        raise MessageInvalid("field rounds does not name rounds after the checkpoint's")
    if len(rounds) > _MOST or (kinds < 0).any() or (kinds >= len(known)).any():
        raise MessageInvalid("field kinds does not say what each round cost")
    written: dict[str, Value] = {"since": since, "rounds": rounds, "kinds": kinds}
    written |= kinds_to_state(known) | ({} if stated is None else {_STATED: stated})
    if encode(written) != encode(fields):
        raise MessageInvalid("it is not written as a run writes it")
    begun = [(r, known[k]) for r, k in zip(rounds.tolist(), kinds.tolist(), strict=True)]
    return since, begun, stated
