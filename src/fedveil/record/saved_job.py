"""Saves a run's job. A second copy shows whether the job file was edited before a resumption."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Protocol, Self, TypeVar

from fedveil.base import validate
from fedveil.base.untrusted import MOST_JOB_BYTES, read_bytes
from fedveil.errors import RunFolderError
from fedveil.record.finding_lines import FINDINGS
from fedveil.record.run_folder import CHECKPOINT, IMPORTS, JOB, RunFolder
from fedveil.record.sealed_message import intact

#: The copy of the job. A run writes it first, so a folder without it holds no run.
BEGAN = f"{CHECKPOINT}/{JOB}"


class AnyJob(Protocol):
    """A job of any kind, with the methods that are needed to save and resume it."""

    def to_yaml(self) -> str: ...

    def changes(self, before: Self) -> Sequence[str]: ...


J = TypeVar("J", bound=AnyJob)


def keep_job(folder: RunFolder, job: AnyJob, names: Iterable[str]) -> None:
    """Save a job, and the paths from which the user's modules in `names` were imported.

    `JOB` is written last. A folder with `JOB` holds a run that can be resumed, and if this process
    is killed earlier, a new run may use the folder.
    """
    yaml = job.to_yaml().encode()
    folder.write_atomically(BEGAN, yaml)
    keep_imports(folder, names)
    folder.write_atomically(JOB, yaml)


def keep_imports(folder: RunFolder, names: Iterable[str]) -> None:
    """Save the paths from which the modules in `names` (`module:function`) were imported."""
    roots = dict.fromkeys(root for name in names for root in import_roots(name))
    folder.write_atomically(IMPORTS, os.fsencode("".join(f"{root}\n" for root in roots)))


def reopen(path: str | Path, load: Callable[[Path], J], stack: ExitStack) -> tuple[RunFolder, J]:
    """Open the folder of an earlier run, and load its job with `load`, which reads a job file.

    `stack` closes the folder. Raises `RunFolderError` if the folder holds no run or is a part of
    one, or if the job file was edited.
    """
    at = validate.path("folder", path)
    refuse_part(at)
    folder = RunFolder.reopen(at)
    stack.callback(folder.close)
    looked = look_where_a_run_looked(folder.path)
    job = load(folder.path / JOB)
    began = folder.path / BEGAN
    if began.exists():
        with intact(began):
            now = read_bytes(folder.path / JOB, MOST_JOB_BYTES)
            alike = read_bytes(began, MOST_JOB_BYTES) == now
            changes = [] if alike else job.changes(load(began))
        if changes:
            raise RunFolderError(
                f"{folder.path / JOB} was changed after the run began: {'; '.join(changes)}: put "
                f"that back, or begin a new run in another folder"
            )
    elif looked:  # the imports are written after the job's copy
        raise RunFolderError(f"{began} is missing, the job that the run began with")
    elif (folder.path / FINDINGS).exists():
        raise RunFolderError(
            f"{folder.path} holds what attacks found of a job, and no run that could go on"
        )
    else:
        raise RunFolderError(
            f"{folder.path} holds a job file, and no run that could be resumed: start one from "
            f"{folder.path / JOB}"
        )
    return folder, job


def refuse_part(path: Path) -> None:
    """Raise `RunFolderError` if `path` is a folder inside a run's folder, and has no run itself."""
    if not path.is_dir() or (path / BEGAN).exists():
        return
    outer = chain(path.parents, path.resolve().parents)
    run = next((folder for folder in outer if (folder / BEGAN).exists()), None)
    if run is not None:
        raise RunFolderError(
            f"{path} is not a run's folder: it is a part of the run in {run}. Name that folder"
        )


def look_beside(job: Path) -> None:
    """Append a job file's folder, and the import paths saved there, to the module search path."""
    sys.path.append(str(job.parent.resolve()))
    look_where_a_run_looked(job.parent)


def look_where_a_run_looked(path: Path) -> bool:
    """Append the import paths saved in `path` to sys.path. Returns False if none are saved."""
    imports = path / IMPORTS
    if not imports.exists():
        return False
    with intact(imports):
        lines = os.fsdecode(read_bytes(imports, MOST_JOB_BYTES)).split("\n")
        roots = [line for line in lines if line]
    sys.path += [root for root in roots if root not in sys.path]
    return True


def import_roots(name: str) -> Iterator[Path]:
    """Yield the folder from which the module of `name` (`module:function`) was imported, if any."""
    module_name, is_own, _ = name.partition(":")
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if is_own and file is not None:
        path = Path(file).resolve()
        yield path.parents[module_name.count(".") + (path.name == "__init__.py")]
