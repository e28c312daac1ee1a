"""What a party needs to go on after a step: one file a step, data only, each replaced whole.

All parties save after the same steps. A party keeps its last two: it may have been killed before
or after its peers saved, and since no party enters a step before all have ended the one before,
one of the two is the last that all hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import safetensors.torch
import torch

from fedveil.errors import MessageInvalid, RunFolderError
from fedveil.message import Message, decode, encode, take
from fedveil.record.run_folder import CHECKPOINT, RunFolder

_DIGEST_BYTES = 32
_KEPT = 2


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A party's state after a step.

    `metrics_bytes` of its metrics had been written, and `window` is what its next line adds to.
    """

    step: int
    fingerprint: str
    metrics_bytes: int
    window: Message
    tensors: Mapping[str, torch.Tensor]

    def write(self, folder: RunFolder) -> None:
        """Add this to the folder's checkpoints, and let those go that nobody goes back to.

        Those of later steps are gone since `forget_after`.
        """
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.tensors.items()}
        data = encode(
            {
                "step": self.step,
                "fingerprint": self.fingerprint,
                "metrics_bytes": self.metrics_bytes,
                "window": encode(self.window),
                "tensors": safetensors.torch.save(_untied(tensors)),
            }
        )
        folder.write_atomically(_file(self.step), data + hashlib.sha256(data).digest())
        for step in held(folder)[:-_KEPT]:
            (folder.path / _file(step)).unlink()

    @classmethod
    def read(cls, folder: RunFolder, step: int) -> Checkpoint:
        """The folder's checkpoint of a step."""
        path = folder.path / _file(step)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}") from None
        data, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
        try:
            if hashlib.sha256(data).digest() != digest:
                raise MessageInvalid("its digest does not match")
            fields = decode(data)
            return cls(
                step=take(fields, "step", int),
                fingerprint=take(fields, "fingerprint", str),
                metrics_bytes=take(fields, "metrics_bytes", int),
                window=decode(take(fields, "window", bytes)),
                tensors=safetensors.torch.load(take(fields, "tensors", bytes)),
            )
        except MessageInvalid as error:
            raise RunFolderError(f"{path} is damaged: {error}") from None


def held(folder: RunFolder) -> list[int]:
    """The steps that a folder holds checkpoints of, in order."""
    names = (path.name for path in (folder.path / CHECKPOINT).glob("[0-9]*"))
    return sorted(int(name) for name in names if name.isdigit())


def forget_after(folder: RunFolder, step: int) -> None:
    """Let the checkpoints of later steps go: what follows `step` now may be another history."""
    for later in held(folder):
        if later > step:
            (folder.path / _file(later)).unlink()


def _file(step: int) -> str:
    return f"{CHECKPOINT}/{step:09d}"


def _untied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, each on memory of its own: parts may share parameters, a file may not."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return result
