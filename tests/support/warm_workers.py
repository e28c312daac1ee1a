"""The simulator's workers, forked from a process that has imported everything.

A worker runs the real program. It only skips starting an interpreter and importing torch.
`tests/engine/test_interruptions.py` tests workers that are started normally.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import DupFd
from types import SimpleNamespace
from typing import Any

import pytest

import warm_process

#: Descriptors from this number on are unused.
_FREE = 200


class _Worker:
    """The interface of a pool to the process that it starts."""

    def __init__(
        self, command: Sequence[str], pass_fds: Sequence[int], env: Mapping[str, str], **_: Any
    ) -> None:
        assert command[1:4] == ["-P", "-m", "fedveil.engine.executors.worker"]
        held = {number: _Descriptor(number) for number in pass_fds}
        self._process = warm_process.forked(_serve, int(command[4]), held)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


class _Descriptor(int):
    """A descriptor that is duplicated into the process it is sent to."""

    def __reduce__(self) -> Any:
        return _detached, (DupFd(int(self)),)


def _detached(fd: Any) -> int:
    return int(fd.detach())


def _serve(descriptor: int, held: Mapping[int, int]) -> None:
    """Serve with the descriptors of the calling process, at the same numbers."""
    aside = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, _FREE) for number, fd in held.items()}
    for fd in held.values():
        os.close(fd)
    for number, fd in aside.items():
        os.dup2(fd, number)
        os.close(fd)
    from fedveil.engine.executors import worker

    worker.main(descriptor)


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedveil.engine.executors import pool

    own = SimpleNamespace(**{**vars(subprocess), "Popen": _Worker})
    monkeypatch.setattr(pool, "subprocess", own)
