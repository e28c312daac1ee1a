"""Isolates a process: it has no network and sees only the files that it is given.

Bubblewrap does this if it is installed, otherwise `unshare` of util-linux. The file system contains
only the given files, read-only, and a small /tmp in memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import fedveil
from fedveil.record.run_folder import temporary_folder
from fedveil.site import namespace_root, system_calls

Means = Literal["bubblewrap", "namespaces"]
#: The largest number of bytes that the process may write to /tmp.
_SCRATCH = 1 << 28
_TRY_S = 20.0
_TMP = "/tmp"  # noqa: S108 - the process's own
#: The system's files that an interpreter needs.
_SYSTEM = ("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache")
_PACKAGES = ("site-packages", "dist-packages")
_UNSHARE = ("--user", "--map-root-user", "--net", "--mount", "--pid", "--ipc", "--uts", "--cgroup",
            "--fork", "--kill-child")  # fmt: skip
_BUBBLEWRAP = ("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session",
               "--as-pid-1", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev",
               "--size", str(_SCRATCH), "--tmpfs", _TMP)  # fmt: skip


class Interpreter(NamedTuple):
    """This process's Python interpreter, its module search path, and all files that it reads."""

    file: str
    path: list[str]
    reads: list[Path]

    @classmethod
    def own(cls) -> Interpreter:
        """Return this process's interpreter.

        Its search path has the standard library and installed packages, not the current folder.
        """
        ours = str(Path(str(fedveil.__file__)).parents[1])
        base = Path(sys.base_prefix)
        path = [
            one for one in dict.fromkeys([*sys.path, ours])
            if one == ours or Path(one).name in _PACKAGES or Path(one).is_relative_to(base)
        ]  # fmt: skip
        found = [one for one in (base, *map(Path, [*_SYSTEM, *path])) if one.exists()]
        reads = [
            one for n, one in enumerate(found)
            if not any(one.is_relative_to(o) and (o != one or m < n) for m, o in enumerate(found))
        ]  # fmt: skip
        return cls(str(Path(sys.executable).resolve()), path, reads)


def isolated(words: list[str], means: Means, shown: Mapping[str, Path], scratch: Path) -> list[str]:
    """Return a command that runs the command `words` in isolation.

    `means` names the tool that isolates. `shown` maps each path that the process sees to the real
    file or folder. `scratch` is an empty folder, where `unshare` builds the new root.
    """
    binds = {**{str(path): str(path) for path in Interpreter.own().reads},
             **{at: str(path) for at, path in shown.items()}}  # fmt: skip
    if means == "bubblewrap":
        show = [word for at, path in binds.items() for word in ("--ro-bind", path, at)]
        sealed = [word for at in ("/proc", "/dev", "/") for word in ("--remount-ro", at)]
        return [_found("bwrap"), *_BUBBLEWRAP, *show, *sealed, "--chdir", _TMP, "--", *words]
    said = {"root": str(scratch), "shown": binds, "scratch": _SCRATCH, "words": words}
    script = [sys.executable, "-I", "-S", str(namespace_root.__file__), json.dumps(said)]
    return [_found("unshare"), *_UNSHARE, "--", *script]


@cache
def working() -> list[Means]:
    """Return the kinds of isolation that work on this system, the strongest first."""
    known = get_args(Means) if system_calls.can_forbid() else ()
    return [means for means in known if _works(means)]


def _works(means: Means) -> bool:
    words = [Interpreter.own().file, "-I", "-S", "-c", ""]
    with temporary_folder() as scratch:
        try:
            tried = isolated(words, means, {}, scratch)
            subprocess.run(tried, check=True, capture_output=True, timeout=_TRY_S)
        except (OSError, subprocess.SubprocessError):
            return False
    return True


def reasons(site: Path) -> Iterator[str]:
    """Yield every reason why this system cannot hide the folder `site` from a process."""
    if not working():
        yield (
            "this system cannot isolate a process: install bubblewrap, permit user namespaces, or "
            "write code.isolation: weak"
        )
    for folder in Interpreter.own().reads:
        if site.resolve().is_relative_to(folder):
            yield f"the site's folder is in {folder}, which every process may read: move it"


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise FileNotFoundError(program)
    return path
