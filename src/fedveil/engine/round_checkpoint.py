"""What a run needs to go on from its last complete round, in one file that is replaced whole.

All randomness is named by seed, round and client, so that the seed and the round's number are the
random state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.message import Message, decode, encode, take
from fedveil.record.run_folder import CHECKPOINT, RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed

_FILE = f"{CHECKPOINT}/latest"
_MESSAGES = ("optimizer", "protection", "ledger")


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
        fields = vars(self)
        encoded = {name: encode(fields[name]) for name in _MESSAGES}
        folder.write_atomically(_FILE, sealed(fields | encoded))

    @classmethod
    def read(cls, folder: RunFolder) -> Checkpoint | None:
        """The folder's checkpoint; None where the run ended before its first."""
        path = folder.path / _FILE
        if not path.exists():
            return None
        with intact(path):
            fields: dict[str, Any] = unsealed(path.read_bytes())
            decoded = {name: decode(take(fields, name, bytes)) for name in _MESSAGES}
            return cls(**fields | decoded)
