"""Processes that help the server to remove masks.

A helper is `fedveil.secagg.unmasking` run as a program. It is started while the server waits for
the clients' shares. It reads its part of the work from its standard input and writes the sum of its
masks to its standard output. It ends when its pipes close.
"""

from __future__ import annotations

import os
import subprocess
import sys

#: Less than this many bytes of keystream, about half a second, is not worth a process. Each mask
#: counts as this many more bytes for its key agreement.
BYTES_A_PROCESS = 2 << 30
BYTES_A_MASK = 300_000


def helpers_worth_having(masks: int, vector_bytes: int, processes: int) -> int:
    """Return how many helpers pay off for `masks` masks, using at most `processes` in all."""
    work = masks * (vector_bytes + BYTES_A_MASK)
    return max(1, min(processes, work // BYTES_A_PROCESS)) - 1


class Helper:
    """One process that waits for its work."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedveil.secagg.unmasking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def give(self, work: bytes) -> None:
        """Send the helper all of its work."""
        assert self._process.stdin is not None
        self._process.stdin.write(work)
        self._process.stdin.close()

    def result(self) -> bytes:
        """Return the helper's result."""
        assert self._process.stdout is not None
        data = self._process.stdout.read()
        if self._process.wait() != 0:
            raise ChildProcessError("a helper process of the unmasking ended early")
        return data

    def close(self) -> None:
        """Kill the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
