"""Carries a user's own modules to other machines, as the text of their files."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedveil.record.saved_job import import_roots


def packed_sources(names: Iterable[str]) -> bytes:
    """Return a zip archive of all Python files in the folders from which `names` were imported.

    `names` are the job's names of the form `module:function`. Returns b"" without such folders.
    """
    roots = dict.fromkeys(root for name in names for root in import_roots(name))
    archive = io.BytesIO()
    # Files of some reproducible images are dated before 1980, which zip cannot express.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as held:
        for number, root in enumerate(roots):
            for path in _sources(root):
                held.write(path, f"{number}/{path.relative_to(root)}")
    return archive.getvalue() if roots else b""


def unpack_sources(archive: bytes, folder: Path) -> None:
    """Write an archive from `packed_sources` into `folder`, and make its modules importable."""
    if not archive:
        return
    with zipfile.ZipFile(io.BytesIO(archive)) as held:
        held.extractall(folder)
    sys.path += [str(path) for path in sorted(folder.iterdir(), key=lambda path: int(path.name))]


def _sources(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.is_file():
            yield path
        elif path.is_dir() and (path / "__init__.py").is_file():
            yield from _sources(path)
