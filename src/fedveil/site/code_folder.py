"""The modules of a study that a site keeps in its folder.

The policy permits each module by its digest.

    code/heart_net.py    the module heart_net
    code/lung/           the package lung
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedveil.base.untrusted import read_bytes
from fedveil.errors import SiteRefused

FOLDER = "code"
_MOST_FILES, _MOST_BYTES = 1000, 1 << 24
_CACHE = "__pycache__"


class Module(NamedTuple):
    """A top-level module or package of Python code: its files, by path in the folder `code`."""

    files: dict[str, bytes]

    @property
    def digest(self) -> str:
        """The SHA-256 of the names, lengths and bytes of all files, in the order of their names."""
        whole = hashlib.sha256(b"fedveil site code\x00")
        for name, data in sorted(self.files.items()):
            for part in (name.encode(), data):
                whole.update(len(part).to_bytes(8) + part)
        return whole.hexdigest()

    def write(self, folder: Path) -> None:
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def top(name: str) -> str:
    """Return the name of the top-level module of a function `package.module:function`."""
    return name.partition(":")[0].partition(".")[0]


def read(site: Path, name: str) -> Module:
    """Read the top-level module or package `name` from the folder `code` of a site's folder.

    Raises `SiteRefused` if it is missing or too large.
    """
    folder = site / FOLDER
    single, package = folder / f"{name}.py", folder / name
    inside = (p for p in package.rglob("*") if _CACHE not in p.relative_to(folder).parts)
    module = files_of(folder, [single] if single.is_file() else sorted(inside))
    if not module.files:
        raise SiteRefused(f"the module {name} is neither {single} nor in {package}: copy it there")
    return module


def files_of(folder: Path, paths: Sequence[Path]) -> Module:
    """Read the files in `paths`, and name them relative to `folder`. Skips folders.

    Raises `SiteRefused` if a file cannot be read, or if the files are too many or too large.
    """
    files: dict[str, bytes] = {}
    left = _MOST_BYTES
    for path in paths:
        if path.is_dir():
            continue
        try:
            data = read_bytes(path, left)
        except OSError as error:
            raise SiteRefused(f"{path} cannot be read: {error.strerror or error}") from None
        files[path.relative_to(folder).as_posix()] = data
        left -= len(data)
        if len(files) > _MOST_FILES:
            raise SiteRefused(f"{folder} has more than {_MOST_FILES:,} files: remove the others")
    return Module(files)
