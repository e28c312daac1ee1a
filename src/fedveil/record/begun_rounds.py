"""Rounds that were begun: where reports leave a machine, one that was cut off has cost as well."""

from __future__ import annotations

import numpy as np

from fedveil.message import decode, encode, take
from fedveil.privacy.client_tally import Kind
from fedveil.privacy.ledger_message import kinds_from_state, kinds_to_state
from fedveil.record.run_folder import CHECKPOINT, RunFolder
from fedveil.record.sealed_message import intact

_FILE = f"{CHECKPOINT}/begun"


class Attempts:
    """The rounds begun since the last checkpoint, in their order, and what a report of each costs.

    A round that is begun again may cost something else than before: both are written down before
    a report is asked for. A checkpoint has all that came before it in its own ledger.
    """

    def __init__(self, folder: RunFolder, done: int) -> None:
        self._folder = folder
        self._done = done
        self.begun: list[tuple[int, Kind]] = []
        path = folder.path / _FILE
        if path.exists():
            with intact(path):
                fields = decode(path.read_bytes())
                rounds, kinds = (take(fields, n, np.ndarray).tolist() for n in ("rounds", "kinds"))
                known = kinds_from_state(fields)
                if take(fields, "since", int) == done:
                    self.begun = [(r, known[k]) for r, k in zip(rounds, kinds, strict=True)]

    def begin(self, round: int, cost: Kind) -> None:
        """Write down that `round` begins, and what a report of it costs."""
        self.begun.append((round, cost))
        kinds = list(dict.fromkeys(kind for _, kind in self.begun))
        rows = [(number, kinds.index(kind)) for number, kind in self.begun]
        rounds, of_kind = np.array(rows, np.int64).T
        fields = {"since": self._done, "rounds": rounds, "kinds": of_kind}
        self._folder.write_atomically(_FILE, encode({**fields, **kinds_to_state(kinds)}))

    def checkpointed(self, round: int) -> None:
        """A checkpoint after `round` has all of them."""
        self._done, self.begun = round, []
