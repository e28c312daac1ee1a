"""Code of a job's own that tries to reach what it must not, and reports in its update what it did.

It answers in place of fedveil's half: entry n of its update is 1 if attempt n succeeded. The last
attempt is permitted, so the test can fail. A file `where` beside it names the site's folder.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Set in the site's process, and looked for here.
SECRET = "FEDVEIL_TEST_SECRET"
_HERE = Path(__file__).parent


def _called(name: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def _listed(folder: str | Path) -> None:
    list(Path(folder).iterdir())


def _write(path: str) -> None:
    Path(path).write_text("changed")


def _disk() -> None:
    for number in range(9):
        Path(f"/tmp/{number}").write_bytes(bytes(1 << 25))


def _other_processes() -> None:
    others = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    if others == [os.getpid()]:
        raise OSError(2, "none")


def _inherited() -> None:
    mine = {0, 1, 2, *map(int, sys.argv[2:4])}
    for number in set(range(256)) - mine:
        with suppress(OSError):
            os.fstat(number)
            return
    raise OSError(9, "none")


ATTEMPTS: dict[str, Callable[[], Any]] = {
    "connects": lambda: socket.create_connection(("127.0.0.1", 22), 1),
    "opens a datagram socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "opens a local socket": lambda: socket.socket(socket.AF_UNIX),
    "opens a pair of sockets": socket.socketpair,
    "forks": os.fork,
    "forks by number": lambda: _called("syscall", ctypes.c_long(57)),
    "starts a program": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "becomes a program": lambda: os.execv(sys.executable, [sys.executable, "-c", ""]),
    "kills its parent": lambda: os.kill(os.getppid() or 1, signal.SIGKILL),
    "kills all": lambda: os.kill(-1, signal.SIGKILL),
    "hides memory": lambda: os.memfd_create("hidden"),
    "mounts": lambda: _called("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "makes a namespace": lambda: _called("unshare", 0x10000000),
    "traces": lambda: _called("ptrace", 0, 0, None, None),
    "sees other processes": _other_processes,
    "reads the environment": lambda: os.environ[SECRET],
    "reads the parent's files": lambda: _listed(f"/proc/{os.getppid() or 'none'}/fd"),
    "raises its limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)),
    "fills memory": lambda: [bytearray(1 << 29) for _ in range(20)],
    "fills the disk": _disk,
    "has inherited a file": _inherited,
    "reads the policy": lambda: (_site() / "policy.yaml").read_text(),
    "reads the key": lambda: (_site() / "account.key").read_bytes(),
    "reads the accounts": lambda: _listed(_site() / "accounts"),
    "lists the data's folder": lambda: _listed(_site().parent),
    "reads the users": lambda: Path("/etc/passwd").read_text(),
    "changes its code": lambda: _write(__file__),
    "changes the system": lambda: _write("/usr/changed"),
    "changes the root": lambda: _write("/changed"),
    "writes to shared memory": lambda: _write("/dev/shm/changed"),
    "changes the kernel": lambda: _write("/proc/sys/kernel/domainname"),
    "reads its code": lambda: (_HERE / "hostile_code.py").read_text(),
}


def _site() -> Path:
    return Path((_HERE / "where.txt").read_text())


def net() -> None:
    """Try everything, report it, and write to every output."""
    import numpy as np

    from fedveil.site.code_child import _send

    done = np.array([_succeeds(attempt) for attempt in ATTEMPTS.values()], np.float32)
    for out in (sys.stdout, sys.stderr):
        print("patient 4711", file=out, flush=True)
    _send(int(sys.argv[3]), {"update": done})
    raise SystemExit("patient 4711")


def _succeeds(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except (OSError, MemoryError, KeyError, ValueError, subprocess.SubprocessError):
        return False
    return True
