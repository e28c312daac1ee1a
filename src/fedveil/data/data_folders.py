"""Finds data sets' files: in the folder that FEDVEIL_DATA names, then in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fedveil.base.files import from_home
from fedveil.errors import DataUnavailable

VARIABLE = "FEDVEIL_DATA"


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/fedveil, or ~/.cache/fedveil if that variable is no absolute path."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    if Path(configured).is_absolute():
        return Path(configured) / "fedveil"
    try:
        return Path.home() / ".cache" / "fedveil"
    except RuntimeError:
        raise DataUnavailable(
            f"there is no home folder for the data cache: set {VARIABLE} or XDG_CACHE_HOME to a "
            "folder"
        ) from None


def folders(subfolder: str) -> Iterator[Path]:
    """Yield the folders to search for a data set's files: `subfolder` in each place, in order.

    The places are the folder that FEDVEIL_DATA names, if any, and then the user's cache. Raises
    `DataUnavailable` if FEDVEIL_DATA is set but is not a folder.
    """
    configured = os.environ.get(VARIABLE, "")
    if configured:
        root = from_home(configured)
        if not root.is_dir():
            raise DataUnavailable(f"{VARIABLE} = {configured!r} is not a folder")
        yield root / subfolder
    yield cache_folder() / subfolder


def located(how: str) -> str:
    """Return `how` with the cache folder in place of $FEDVEIL_DATA, if that variable is not set."""
    if os.environ.get(VARIABLE):
        return how
    return how.replace(f"${VARIABLE}/", f"{cache_folder()}/")


def find(subfolder: str, *names: str) -> Path | None:
    """Return the path of the first file or folder that exists, or None if none does.

    Searches `folders(subfolder)` in order, and each of them for all `names` in order.
    """
    for folder in folders(subfolder):
        for name in names:
            if (folder / name).exists():
                return folder / name
    return None


@contextmanager
def reading(path: Path, done: str = "read") -> Iterator[None]:
    """Convert an OSError in a `with` block into `DataUnavailable` about the file `path`.

    The message is "PATH cannot be DONE", where `done` is "read" or "written".
    """
    try:
        yield
    except OSError as error:
        where = ""
        if isinstance(error, FileNotFoundError) and not Path(path).is_absolute():
            where = f"; it was looked for from the current folder, {Path.cwd()}"
        raise DataUnavailable(
            f"{path} cannot be {done}: {error.strerror or error}{where}"
        ) from None


writing = partial(reading, done="written")
