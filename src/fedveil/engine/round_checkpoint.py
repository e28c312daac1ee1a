"""The state from which a run resumes after its last complete round, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.message import Message, decode, encode, only_fields, take
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_LINES_BYTES, MOST_STATE_BYTES, read_bytes
from fedveil.errors import RunFolderError
from fedveil.record.run_folder import CHECKPOINT, METRICS, MODEL, RunFolder
from fedveil.record.sealed_message import intact, sealed_parts, unsealed

LATEST = f"{CHECKPOINT}/latest"
_MESSAGES = ("optimizer", "protection", "ledger", "canaries", "best", "summed")
#: Fields omitted from the file if they are empty.
_RARE = ("canaries", "best", "summed")
_PLAIN = {"round": int, "metrics_bytes": int, "metrics_digest": str, "fingerprint": str}


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a complete round, `round`.

    `metrics_bytes` and `metrics_digest` are the length and the digest of the metrics file up to
    this round. `fingerprint` is the digest of job, model and data (`run_fingerprint`). `weights`
    are the global weights. The other fields are the states of the parts that they are named after.
    """

    round: int
    metrics_bytes: int
    metrics_digest: str
    fingerprint: str
    weights: npt.NDArray[np.float32]
    optimizer: Mapping[str, npt.NDArray[np.float64]]
    protection: Message
    ledger: Message
    #: The evidence of an audit's canaries.
    canaries: Message = field(default_factory=dict)
    #: The best model so far, if the job keeps it.
    best: Message = field(default_factory=dict)
    #: For each client, the last round whose sum has its report, if clients keep state.
    summed: Message = field(default_factory=dict)

    def write(self, folder: RunFolder) -> None:
        """Save this checkpoint in place of the folder's previous one."""
        held = vars(self) | {name: encode(vars(self)[name]) for name in _MESSAGES}
        for name in _RARE:
            if not vars(self)[name]:
                del held[name]
        folder.write_atomically(LATEST, sealed_parts(held))

    @classmethod
    def read(cls, folder: RunFolder, every: int | None = None) -> Checkpoint | None:
        """Return the folder's checkpoint, or None if the run was interrupted before its first one.

        `every` is the number of rounds between checkpoints. If it is given, raises `RunFolderError`
        if the checkpoint is missing although one was due: the folder has records of more than
        `every` rounds, or a final model. The caller must validate the checkpoint's fields, because
        the file's digest detects damage but is no signature.
        """
        found = cls.at(folder.path)
        if found is None and every is not None:
            _check_begins(folder, every)
        return found

    @classmethod
    def at(cls, run: Path) -> Checkpoint | None:
        """Return the checkpoint in the folder `run`, or None if the folder has none.

        Unlike `read`, this needs no opened (locked) run folder.
        """
        path = run / LATEST
        if not path.exists():
            return None
        with intact(path):
            held: dict[str, Any] = unsealed(read_bytes(path, MOST_STATE_BYTES))
            for name in _RARE:
                held.setdefault(name, encode({}))
            only_fields(held, *(field.name for field in fields(cls)))
            for name, kind in _PLAIN.items():
                take(held, name, kind)
            decoded = {name: decode(take(held, name, bytes)) for name in _MESSAGES}
            return cls(**held | decoded)


def _check_begins(folder: RunFolder, every: int) -> None:
    """Raise `RunFolderError` if a checkpoint was due in a folder that has none.

    It was due if more than `every` rounds, the number between checkpoints, have records, or if the
    run has ended.
    """
    rounds = recorded_rounds(folder.path)
    ended = (folder.path / MODEL).exists()  # it is written after the last checkpoint
    if rounds > every or ended:
        raise RunFolderError(
            f"{folder.path / LATEST} is missing, but {METRICS} holds the records of "
            f"{quantity(rounds, 'round')}. Restore the checkpoint from a copy, or start a new run "
            f"in another folder"
        )


def recorded_rounds(run: Path) -> int:
    """Return the number of rounds that have a record in the folder `run`."""
    metrics = run / METRICS
    if not metrics.exists():
        return 0
    with intact(metrics):
        return len(read_bytes(metrics, MOST_LINES_BYTES).splitlines())


def starting_over(run: Path) -> str | None:
    """Return a warning if the folder `run` has records of rounds but no checkpoint, else None."""
    if (run / LATEST).exists():
        return None
    rounds = recorded_rounds(run)
    if not rounds:
        return None
    return (
        f"{run / LATEST} does not exist, so the run starts over at round 1 and replaces the "
        f"records of {quantity(rounds, 'round')} in {METRICS}"
    )
