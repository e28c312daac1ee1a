"""Processes that help the server to take masks off.

A helper is `fedveil.secagg.unmasking` run as a program. It is started while the server waits for
the clients' shares; its part of the work comes through its standard input, and the sum of its
masks goes back through its standard output. It ends with its pipes.
"""

from __future__ import annotations

import os
import subprocess
import sys

#: Work below this many bytes of keystream, about half a second, is not worth a process; a mask
#: counts as this many more for its key agreement.
BYTES_A_PROCESS = 2 << 30
BYTES_A_MASK = 300_000


def helpers_worth_having(masks: int, vector_bytes: int, processes: int) -> int:
    """How many helpers so many masks are worth, where `processes` in all may be used."""
    work = masks * (vector_bytes + BYTES_A_MASK)
    return max(1, min(processes, work // BYTES_A_PROCESS)) - 1


class Helper:
    """One process, waiting for its work."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedveil.secagg.unmasking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def give(self, work: bytes) -> None:
        """Its work, all of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(work)
        self._process.stdin.close()

    def result(self) -> bytes:
        """What came of it."""
        assert self._process.stdout is not None
        data = self._process.stdout.read()
        if self._process.wait() != 0:
            raise ChildProcessError("a helper process of the unmasking ended early")
        return data

    def close(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
