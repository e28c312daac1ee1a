"""Rounds that were begun: where reports leave a machine, one that was cut off has cost as well."""

from __future__ import annotations

import numpy as np

from fedveil.errors import MessageInvalid, RunFolderError
from fedveil.message import Value, only_fields, take_array
from fedveil.record.run_folder import CHECKPOINT, RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed

_FILE = f"{CHECKPOINT}/begun"
#: No round is begun more often.
_MOST = 1 << 20


class Attempts:
    """How often each round after the last checkpoint was begun, written down before it begins.

    A run that `has_begun` rounds has the file, and is refused without it.
    """

    def __init__(self, folder: RunFolder, done: int, *, has_begun: bool = False) -> None:
        self._folder = folder
        self._begun: dict[int, int] = {}
        path = folder.path / _FILE
        if path.exists():
            with intact(path):
                self._begun = _read(unsealed(path.read_bytes()))
            self.checkpointed(done)
        elif has_begun:
            raise RunFolderError(f"{path} is missing: it says which rounds were begun")

    def before(self, round: int) -> int:
        """How often `round` was begun before."""
        return self._begun.get(round, 0)

    def begin(self, round: int) -> None:
        """Write down that `round` begins."""
        self._begun[round] = self.before(round) + 1
        rounds, times = np.array(sorted(self._begun.items()), np.int64).T
        self._folder.write_atomically(_FILE, sealed({"rounds": rounds, "times": times}))

    def checkpointed(self, round: int) -> None:
        """Rounds up to `round` will not be begun again."""
        self._begun = {number: n for number, n in self._begun.items() if number > round}


def _read(fields: dict[str, Value]) -> dict[int, int]:
    """How often each round was begun, by a file's fields."""
    only_fields(fields, "rounds", "times")
    rounds = take_array(fields, "rounds", np.int64, (None,))
    times = take_array(fields, "times", np.int64, rounds.shape)
    if (rounds < 1).any() or (np.diff(rounds) < 1).any():
        raise MessageInvalid("field rounds does not name rounds in their order")
    if (times < 1).any() or (times > _MOST).any():
        raise MessageInvalid(f"field times holds a number outside [1, {_MOST}]")
    return dict(zip(rounds.tolist(), times.tolist(), strict=True))
