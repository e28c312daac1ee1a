"""The files that `fedveil init` writes, and the job that is run without a file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fedveil.errors import RunFolderError

#: What `fedveil run` does without a file.
DEFAULT_JOB = Path(__file__).parent / "private_digits.yaml"
_FILES = ("job.yaml", "model.py")


def write_starter(directory: Path) -> list[Path]:
    """Copy the files into `directory`; an existing one is never overwritten."""
    taken = [name for name in _FILES if (directory / name).exists()]
    if taken:
        raise RunFolderError(f"{directory} already holds {' and '.join(taken)}; nothing is written")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (directory / name).write_text(files(__package__).joinpath(name).read_text())
    except OSError as error:
        raise RunFolderError(f"{directory} cannot be written: {error.strerror}") from error
    return [directory / name for name in _FILES]
