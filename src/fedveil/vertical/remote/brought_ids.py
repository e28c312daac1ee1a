"""The file in a run's folder that counts the ids that each other party has sent.

An id may be a guess, so the counts survive a restart. The file is created before the file with the
party's own seed. If only the seed is there, the counts were deleted, and would begin anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedveil.base.message import take
from fedveil.base.untrusted import MOST_STATE_BYTES, read_bytes
from fedveil.errors import InvalidValue, RunFolderError
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.vertical.bundle import REMEDY
from fedveil.vertical.party_run import OWN_SEED

#: The file's name.
BROUGHT = "guesses"


def keep_brought(root: RunFolder, brought: Mapping[str, int]) -> None:
    counts = json.dumps(brought, sort_keys=True)
    root.write_atomically(BROUGHT, sealed({"brought": counts}))


def read_brought(run: Path) -> dict[str, int]:
    """Read the number of ids that each other party has sent, from the run folder `run`.

    Raises RunFolderError if the file is damaged, or was deleted.
    """
    path = run / BROUGHT
    if not path.exists():
        if (run / OWN_SEED).exists():
            raise RunFolderError(
                f"{path} is missing: it counts the ids that other parties have sent. {REMEDY}"
            )
        return {}
    with intact(path):
        counts = json.loads(take(unsealed(read_bytes(path, MOST_STATE_BYTES)), "brought", str))
        if not all(type(many) is int and many >= 0 for many in counts.values()):
            raise InvalidValue("it contains invalid counts")
        return dict(counts)
