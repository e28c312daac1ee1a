"""A party's checkpoints: one file for each saved step, written atomically, with data but no code.

A party keeps its last two checkpoints, because it may be killed before or after its peers save. One
of the two is the last checkpoint that all parties have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from shlex import quote

import torch

from fedveil.base.message import Message, decode, encode, only_fields, take
from fedveil.errors import MessageInvalid, ModelInvalid, RunFolderError
from fedveil.record.run_folder import CHECKPOINT, METRICS, MODEL, RunFolder
from fedveil.record.sealed_message import intact, sealed_parts
from fedveil.vertical import tensor_fields
from fedveil.vertical.account import has_begun
from fedveil.vertical.crossing import is_finite
from fedveil.vertical.party import Party

_KEPT = 2
_WINDOW = {"loss": float, "losses": int, "steps": int, "sent": int, "received": int}


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A party's state after a step.

    `fingerprint` has digests of the job, the model and the data. `metrics_bytes` and
    `metrics_digest` identify the metrics file at that step. `window` has sums over the steps since
    the last training record in that file, such as the loss and the bytes sent.
    """

    step: int
    fingerprint: str
    metrics_bytes: int
    metrics_digest: str
    window: Message
    tensors: Mapping[str, torch.Tensor]

    def write(self, folder: RunFolder) -> None:
        """Save this checkpoint in `folder`, and delete all but the last two checkpoints.

        Checkpoints of later steps must already be deleted (`forget_after`). Raises ModelInvalid,
        and changes no file, if a tensor contains NaN or infinity: such a state cannot be loaded.
        """
        self._check_finite(folder)
        own = {name: value for name, value in vars(self).items() if name != "tensors"}
        message = {**own, "window": encode(self.window), **tensor_fields.fields_of(self.tensors)}
        folder.write_atomically(_file(self.step), sealed_parts(message))
        for step in saved_steps(folder)[:-_KEPT]:
            (folder.path / _file(step)).unlink()

    def _check_finite(self, folder: RunFolder) -> None:
        for place, tensor in self.tensors.items():
            if tensor.is_floating_point() and not is_finite(tensor):
                found = f"{place} contains NaN or infinity after step {self.step}"
                if not (steps := saved_steps(folder)):
                    raise ModelInvalid(f"{found}, before any training")
                raise ModelInvalid(
                    f"{found}: the training has diverged. {folder.path} still has the state after "
                    f"step {steps[-1]}. Start a new run with a lower learning rate"
                )

    @classmethod
    def read(cls, folder: RunFolder, step: int) -> Checkpoint:
        path = folder.path / _file(step)
        with intact(path):
            held, tensors = tensor_fields.read(path)
            only_fields(held, *(field.name for field in fields(cls) if field.name != "tensors"))
            found = take(held, "step", int)
            if found != step:
                raise MessageInvalid(f"it is of step {found}")
            return cls(
                step=step,
                fingerprint=take(held, "fingerprint", str),
                metrics_bytes=take(held, "metrics_bytes", int),
                metrics_digest=take(held, "metrics_digest", str),
                window=_window(decode(take(held, "window", bytes))),
                tensors=tensors,
            )

    def give(self, folder: RunFolder, party: Party) -> None:
        """Load this state into `party`. Raises RunFolderError if a tensor does not fit."""
        with intact(folder.path / _file(self.step)):
            party.restore(self.tensors)


def saved_steps(folder: RunFolder) -> list[int]:
    names = (path.name for path in (folder.path / CHECKPOINT).glob("[0-9]*"))
    return sorted(int(name) for name in names if re.fullmatch("[0-9]{9}", name))


def check_begins(folder: RunFolder) -> None:
    """Raise `RunFolderError` if a party's folder has no checkpoint, but signs of earlier steps.

    Such a sign is a record, or a note that a step has begun. Call this function before anything is
    drawn: labels or noise that were lost with the checkpoints would otherwise be drawn and sent a
    second time.
    """
    metrics = folder.path / METRICS
    has_records = metrics.exists() and metrics.stat().st_size
    if has_records or has_begun(folder.path):
        sign = f"{METRICS} holds records of some" if has_records else "a step has begun"
        raise RunFolderError(
            f"{folder.path / CHECKPOINT} holds no step, but {sign}. "
            f"Restore the checkpoints from a copy, or start a new run in another folder"
        )


def last_common(path: Path, folders: Mapping[str, RunFolder]) -> int:
    """Return the last step that all parties of the run in `path` have saved.

    `folders` has each party's folder. Raises RunFolderError if there is no such step.
    """
    steps = {name: set(saved_steps(folder)) for name, folder in folders.items()}
    common = set.intersection(*steps.values())
    if not common:
        missing = ", ".join(name for name, own in steps.items() if not own)
        raise RunFolderError(
            f"{path} has no step that all parties have saved"
            + (f": it contains nothing of {missing}" if missing else "")
        )
    return max(common)


def trained_step(path: Path, folders: Mapping[str, RunFolder]) -> int:
    """Return `last_common`. Raises RunFolderError if no training step was done before it."""
    step = last_common(path, folders)
    if not step:
        raise RunFolderError(untrained(path))
    return step


def untrained(path: Path) -> str:
    """Return a sentence that says that the run in `path` has no model to use."""
    return f"{path} has no trained model: all parties have saved no training step. Resume the run"


def unfinished(folder: RunFolder, step: int, total: int | None = None) -> str:
    """Return a sentence if the state after `step` is not a party's trained model, else "".

    `total` is the number of the run's steps, or None if the caller does not know it. A run may end
    early, at a limit. It then has a model of its last saved step.
    """
    ended = step == saved_steps(folder)[-1] and (folder.path / MODEL).exists()
    of = "" if total is None else f" of {total}"
    text = f"the run is unfinished: using the state after step {step}{of}"
    return "" if ended or step == total else text


def from_last_step(command: str, path: Path) -> str:
    """Return a sentence on how to resume the run in `path` with `command`."""
    return (
        f"resume it with `{command} --resume {quote(str(path))}`, from the last step that all "
        f"parties have saved"
    )


def forget_after(folder: RunFolder, step: int) -> None:
    """Delete the checkpoints of steps after `step`."""
    for later in saved_steps(folder):
        if later > step:
            (folder.path / _file(later)).unlink()


def _file(step: int) -> str:
    return f"{CHECKPOINT}/{step:09d}"


def _window(counts: Message) -> Message:
    only_fields(counts, *_WINDOW)
    for name, kind in _WINDOW.items():
        if take(counts, name, kind) < 0 and kind is int:
            raise MessageInvalid(f"field {name} is negative")
    return counts
