"""Counts the ids that others ask about. An id may be a guess, so the counts survive a restart.

A count's file is created with the folder. If it is missing later, it was deleted: the count would
begin anew, and others could ask about as many ids again.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from fedveil.base.message import take
from fedveil.base.untrusted import MOST_STATE_BYTES, read_bytes
from fedveil.base.validate import integer
from fedveil.errors import InvalidValue, RunFolderError
from fedveil.record.run_folder import EVENTS, RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.vertical.bundle import REMEDY, SCORED
from fedveil.vertical.rows import Ids

#: The file in a bundle's `state` that counts the ids that each other party has sent.
GUESSES = "guesses"
#: The file there that counts the unknown ids of each client of the service.
UNKNOWN = "unknown"
#: No count in a file is larger.
_MOST = 1 << 53


def begin_counts(state: RunFolder) -> None:
    """Create all files of counts in `state`, unless the bundle has been used before.

    Call it before the log is created. A folder with a log then also has these files.
    """
    if (state.path / EVENTS).exists():
        return
    for name, empty in ((SCORED, b""), (GUESSES, _file_of({})), (UNKNOWN, _file_of({}))):
        if not (state.path / name).exists():
            state.write_atomically(name, empty)


class Guesses:
    """Counts the ids that each other party or client has asked about, for one file of rows.

    `ids` are the ids of the rows. They identify the file, in any order. The counts of all files are
    saved together, in the file `name` in `folder`. Raises RunFolderError if this file is missing or
    damaged.
    """

    def __init__(self, folder: RunFolder, name: str, ids: Ids) -> None:
        self._folder, self._name = folder, name
        rows = hashlib.sha256(np.ascontiguousarray(np.sort(ids)).tobytes()).hexdigest()
        path = folder.path / name
        if not path.exists():
            raise RunFolderError(
                f"{path} is missing: it counts the ids that others have asked about. {REMEDY}"
            )
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
        self._folder.write_atomically(self._name, _file_of(self._all))
        return self._own[who]


def _file_of(counts: dict[str, dict[str, int]]) -> bytes:
    return sealed({"brought": json.dumps(counts)})


def _checked(counts: Any) -> dict[str, dict[str, int]]:
    """Return `counts`, loaded from a file, if they are valid. Raises InvalidValue otherwise.

    Valid counts map the digest of a file's ids to a second mapping. It has the number of ids that
    each party or client has asked about.
    """
    if not isinstance(counts, dict) or not all(isinstance(own, dict) for own in counts.values()):
        raise InvalidValue("it does not contain counts")
    for own in counts.values():
        for who, many in own.items():
            integer(who, many, 0, _MOST)
    return counts
