"""Where data files are looked for: the folder that FEDVEIL_DATA names, then the per-user cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedveil.errors import DataUnavailable

VARIABLE = "FEDVEIL_DATA"


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/fedveil, or ~/.cache/fedveil where that is not an absolute path."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    if Path(configured).is_absolute():
        return Path(configured) / "fedveil"
    try:
        return Path.home() / ".cache" / "fedveil"
    except RuntimeError:
        raise DataUnavailable(
            f"there is no home folder to cache data in: name a folder in {VARIABLE} or in "
            f"XDG_CACHE_HOME"
        ) from None


def folders(subfolder: str) -> Iterator[Path]:
    """The folders that may hold a data set, best first; one that FEDVEIL_DATA names must exist."""
    configured = os.environ.get(VARIABLE, "")
    if configured:
        root = Path(configured).expanduser()
        if not root.is_dir():
            raise DataUnavailable(f"{VARIABLE} = {configured!r} is not a folder")
        yield root / subfolder
    yield cache_folder() / subfolder


def find(subfolder: str, *names: str) -> Path | None:
    """The first that exists, by folder and then by name."""
    for folder in folders(subfolder):
        for name in names:
            if (folder / name).exists():
                return folder / name
    return None


@contextmanager
def reading(path: Path, done: str = "read") -> Iterator[None]:
    """Turn what the file system refuses into one sentence."""
    try:
        yield
    except OSError as error:
        where = ""
        if isinstance(error, FileNotFoundError) and not Path(path).is_absolute():
            where = f"; it is looked for from {Path.cwd()}, where the command stands"
        raise DataUnavailable(
            f"{path} cannot be {done}: {error.strerror or error}{where}"
        ) from None


writing = partial(reading, done="written")
