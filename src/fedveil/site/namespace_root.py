"""A script that `unshare` starts: sets up a file system, and then replaces itself by a command.

The argument is JSON with the parameters of `main`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

_RDONLY, _NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 0x1, 0x2, 0x4, 0x1000, 0x4000, 0x40000
_DETACH = 2
_HERE, _RECURSIVE, _MOUNT_SETATTR, _PIVOT_ROOT = -100, 0x8000, 442, {"aarch64": 41, "x86_64": 155}
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_PDEATHSIG, _SIGKILL = 24, 38, 1, 9
_DEVICES = ("null", "zero", "urandom")
_libc = ctypes.CDLL(None, use_errno=True)


def main(root: str, shown: dict[str, str], scratch: int, words: list[str]) -> None:
    """Set up the file system, hide everything else, drop all privileges, and run `words`.

    `root` is an empty folder. `shown` maps each path that the command sees to the real path.
    `scratch` is the number of bytes that the command may write to /tmp.
    """
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("none", root, "tmpfs", _NOSUID | _NODEV, "size=1m")
    for folder in ("tmp", "proc"):
        Path(root, folder).mkdir()
    _mount("none", f"{root}/tmp", "tmpfs", _NOSUID | _NODEV, f"size={scratch},nr_inodes=1000")  # noqa: S108
    _mount("none", f"{root}/proc", "proc", _NOSUID | _NODEV)
    _set_read_only(f"{root}/proc", 0, _RDONLY)  # otherwise root could change kernel settings there
    for device in _DEVICES:
        _show(f"/dev/{device}", f"{root}/dev/{device}", read_only=False)
    for seen, path in shown.items():
        _show(path, f"{root}{seen}")
    os.chdir(root)
    _call("pivot_root", _libc.syscall, _PIVOT_ROOT[os.uname().machine], b".", b".")
    _call("umount", _libc.umount2, b".", _DETACH)
    os.chdir("/tmp")  # noqa: S108 - the process's own
    _set_read_only("/", 0, _RDONLY)
    _drop_privileges()
    os.execv(words[0], words)  # noqa: S606


def _show(path: str, seen: str, *, read_only: bool = True) -> None:
    """Make the file or folder `path` visible at the path `seen`, with the mounts inside it.

    If `read_only` is True, nothing can write to it there.
    """
    if os.path.isdir(path):  # noqa: PTH112
        os.makedirs(seen, exist_ok=True)  # noqa: PTH103
    else:
        os.makedirs(os.path.dirname(seen), exist_ok=True)  # noqa: PTH103, PTH120
        Path(seen).touch()
    _mount(path, seen, None, _BIND | _REC)
    if read_only:
        _set_read_only(seen, _RECURSIVE, _RDONLY | _NOSUID | _NODEV)


def _drop_privileges() -> None:
    none = ctypes.c_long(0)
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_long(capability), none, none, none)
    _call("prctl", _libc.prctl, _PR_SET_NO_NEW_PRIVS, ctypes.c_long(1), none, none, none)
    _call("prctl", _libc.prctl, _PR_SET_PDEATHSIG, ctypes.c_long(_SIGKILL), none, none, none)


def _set_read_only(path: str, recursive: int, flags: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    place, flag = ctypes.c_long(_HERE), ctypes.c_long(recursive)
    number = ctypes.c_long(_MOUNT_SETATTR)
    _call(f"read-only {path}", _libc.syscall, number, place, path.encode(), flag, attributes, size)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    words = (None if word is None else word.encode() for word in (source, target, kind))
    data = None if options is None else options.encode()
    _call(f"mount {target}", _libc.mount, *words, ctypes.c_ulong(flags), data)


def _call(what: str, function: object, *arguments: object) -> None:
    assert callable(function)
    if function(*arguments):
        raise OSError(ctypes.get_errno(), what)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
