"""What a run needs to go on from its last complete round, in one file that is replaced whole.

The file is a message (data only, every length checked) and its SHA-256. All randomness is named
by seed, round and client, so that the seed and the round's number are the random state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.errors import MessageInvalid, RunFolderError
from fedveil.message import Message, Value, decode, encode
from fedveil.record.run_folder import CHECKPOINT, RunFolder

_FILE = f"{CHECKPOINT}/latest"
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Checkpoint:
    """The state after a complete round."""

    round: int
    metrics_bytes: int
    fingerprint: str
    weights: npt.NDArray[np.float32]
    optimizer: Mapping[str, npt.NDArray[np.float64]]
    protection: Message
    ledger: Message

    def write(self, folder: RunFolder) -> None:
        """Replace the folder's checkpoint."""
        fields: dict[str, Value] = {
            "round": self.round,
            "metrics_bytes": self.metrics_bytes,
            "fingerprint": self.fingerprint,
            "weights": self.weights,
            "optimizer": encode(self.optimizer),
            "protection": encode(self.protection),
            "ledger": encode(self.ledger),
        }
        data = encode(fields)
        folder.write_atomically(_FILE, data + hashlib.sha256(data).digest())

    @classmethod
    def read(cls, folder: RunFolder) -> Checkpoint | None:
        """The folder's checkpoint; None where the run ended before its first."""
        path = folder.path / _FILE
        if not path.exists():
            return None
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise RunFolderError(f"{path} cannot be read: {error.strerror}") from error
        data, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
        try:
            if hashlib.sha256(data).digest() != digest:
                raise MessageInvalid("its digest does not match")
            fields = dict(decode(data))
            for name in ("optimizer", "protection", "ledger"):
                fields[name] = decode(fields[name])  # type: ignore[arg-type,assignment]
            return cls(**fields)  # type: ignore[arg-type]
        except (MessageInvalid, TypeError) as error:
            raise RunFolderError(f"{path} is damaged: {error}") from None
