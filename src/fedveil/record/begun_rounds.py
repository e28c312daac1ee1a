"""Rounds that were begun: where reports leave a machine, one that was cut off has cost as well."""

from __future__ import annotations

import numpy as np

from fedveil.message import decode, encode, only_fields, take
from fedveil.record.run_folder import CHECKPOINT, RunFolder
from fedveil.record.sealed_message import intact

_FILE = f"{CHECKPOINT}/begun"


class Attempts:
    """How often each round after the last checkpoint was begun, written down before it begins."""

    def __init__(self, folder: RunFolder, done: int) -> None:
        self._folder = folder
        self._begun: dict[int, int] = {}
        path = folder.path / _FILE
        if path.exists():
            with intact(path):
                fields = decode(path.read_bytes())
                only_fields(fields, "rounds", "times")
                rounds, times = (take(fields, name, np.ndarray) for name in ("rounds", "times"))
                self._begun = dict(zip(rounds.tolist(), times.tolist(), strict=True))
            self.checkpointed(done)

    def before(self, round: int) -> int:
        """How often `round` was begun before."""
        return self._begun.get(round, 0)

    def begin(self, round: int) -> None:
        """Write down that `round` begins."""
        self._begun[round] = self.before(round) + 1
        rounds, times = np.array(sorted(self._begun.items()), np.int64).T
        self._folder.write_atomically(_FILE, encode({"rounds": rounds, "times": times}))

    def checkpointed(self, round: int) -> None:
        """Rounds up to `round` will not be begun again."""
        self._begun = {number: n for number, n in self._begun.items() if number > round}
