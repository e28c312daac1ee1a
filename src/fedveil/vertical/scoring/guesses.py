"""Counts the ids that others ask about. An id may be a guess, so the counts survive a restart."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from fedveil.base.message import take
from fedveil.base.untrusted import MOST_STATE_BYTES, read_bytes
from fedveil.base.validate import integer
from fedveil.errors import InvalidValue
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.vertical.rows import Ids

#: No count in a file is larger.
_MOST = 1 << 53


class Guesses:
    """Counts the ids that each other party or client has asked about, for one file of rows.

    `ids` are the ids of the rows. They identify the file, in any order. The counts of all files are
    saved together, in the file `name` in `folder`.
    """

    def __init__(self, folder: RunFolder, name: str, ids: Ids) -> None:
        self._folder, self._name = folder, name
        rows = hashlib.sha256(np.ascontiguousarray(np.sort(ids)).tobytes()).hexdigest()
        self._all: dict[str, dict[str, int]] = {}
        path = folder.path / name
        if path.exists():
            with intact(path):
                raw = unsealed(read_bytes(path, MOST_STATE_BYTES))
                self._all = _checked(json.loads(take(raw, "brought", str)))
        self._own = self._all.setdefault(rows, {})

    def __len__(self) -> int:
        """Return the number of parties or clients with a count for this file of rows."""
        return len(self._own)

    def of(self, who: str) -> int:
        return self._own.get(who, 0)

    def add(self, who: str, many: int) -> int:
        """Add `many` to the number of ids that `who` has asked about.

        Saves the new number, and then returns it.
        """
        self._own[who] = self.of(who) + many
        counts = json.dumps(self._all)
        self._folder.write_atomically(self._name, sealed({"brought": counts}))
        return self._own[who]


def _checked(counts: Any) -> dict[str, dict[str, int]]:
    """Return `counts`, loaded from a file, if they are valid. Raises InvalidValue otherwise.

    Valid counts map a digest of each file's ids to the numbers of ids, by who asked about them.
    """
    if not isinstance(counts, dict) or not all(isinstance(own, dict) for own in counts.values()):
        raise InvalidValue("it does not contain counts")
    for own in counts.values():
        for who, many in own.items():
            integer(who, many, 0, _MOST)
    return counts
