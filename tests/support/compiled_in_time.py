"""Runs a job's clients in this process, and prints what native code they load in their fixed time.

    python tests/support/compiled_in_time.py SETTINGS FOLDER

The output is a JSON list with an entry for each report: the names of the functions that numba
compiled, or loaded from its cache, after the time of the answer had begun.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

from fedveil.base.kernels import _Kernel
from fedveil.flower.fixed_time import FixedTime
from fedveil.flower.job import job_client
from flower_parts import LocalGrid, app_of, job, serve


def loaded() -> dict[str, int]:
    """Return the number of compiled versions of each native function in this process."""
    from fedveil.compiled.native import Native

    found = {}
    for each in gc.get_objects():
        if type(each) is _Kernel and "jitted" in vars(each):
            found[each._loop.__qualname__] = len(each.jitted.signatures)
        elif type(each) is Native:
            found[each._loop.__qualname__] = len(each._made)
    return found


def main(settings: str, folder: Path) -> None:
    in_time: list[list[str]] = []

    class Watched(FixedTime):
        def __enter__(self) -> FixedTime:
            self.before = loaded()
            return super().__enter__()

        def __exit__(self, *error: object) -> None:
            if self.is_set:
                after = loaded().items()
                in_time.append([name for name, n in after if n != self.before.get(name, 0)])
            self._seconds = None  # the answer need not wait

    changed: Any = vars(job_client)
    changed["FixedTime"] = Watched
    app, _ = app_of(folder / "app", job(rounds=1, **json.loads(settings)))
    record = serve(app, LocalGrid(app, folder / "state"), folder / "run").metrics[0]
    assert record["reports"] == len(in_time) == 6, record
    print(json.dumps(in_time))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
