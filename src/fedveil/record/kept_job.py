"""The job of a run: written down twice, so that one that was edited is not gone on with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, Self, TypeVar

from fedveil._untrusted import MOST_JOB_BYTES, read_bytes, read_text
from fedveil.errors import RunFolderError
from fedveil.record.finding_lines import FINDINGS
from fedveil.record.run_folder import CHECKPOINT, IMPORTS, JOB, RunFolder
from fedveil.record.sealed_message import intact

_BEGAN = f"{CHECKPOINT}/{JOB}"


class AnyJob(Protocol):
    """A job, of whatever kind."""

    def to_yaml(self) -> str: ...

    def changes(self, before: Self) -> Sequence[str]:
        """What is set otherwise than in `before`, a key each."""


J = TypeVar("J", bound=AnyJob)


def keep_job(folder: RunFolder, job: AnyJob, names: Iterable[str]) -> None:
    """Write down a job, and the folders of the modules that it names as `module:function`."""
    yaml = job.to_yaml().encode()
    folder.write_atomically(JOB, yaml)
    folder.write_atomically(_BEGAN, yaml)
    keep_imports(folder, names)


def keep_imports(folder: RunFolder, names: Iterable[str]) -> None:
    """Write down the folders of the modules that are named as `module:function`."""
    roots = dict.fromkeys(root for name in names for root in _import_root(name))
    folder.write_atomically(IMPORTS, "".join(f"{root}\n" for root in roots).encode())


def reopen(path: str | Path, load: Callable[[Path], J], stack: ExitStack) -> tuple[RunFolder, J]:
    """The folder of a run that was begun before, to be closed with `stack`, and its job.

    Refuses a job file that was edited. The user's own modules are looked for where they were
    found then too, after everywhere else.
    """
    folder = RunFolder.reopen(Path(path))
    stack.callback(folder.close)
    looked = look_where_a_run_looked(folder.path)
    job = load(folder.path / JOB)
    began = folder.path / _BEGAN
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
    elif looked:  # which is written later
        raise RunFolderError(f"{began} is missing, the job that the run began with")
    elif (folder.path / FINDINGS).exists():
        raise RunFolderError(
            f"{folder.path} holds what attacks found of a job, and no run that could go on"
        )
    return folder, job


def look_beside(job: Path) -> None:
    """Find the user's own modules beside a job's file, and where a run had them whose job it is."""
    sys.path.append(str(job.parent.resolve()))
    look_where_a_run_looked(job.parent)


def look_where_a_run_looked(path: Path) -> bool:
    """Find the user's own modules in the folders that a run had them from, after all others.

    Whether the run wrote those down.
    """
    imports = path / IMPORTS
    if not imports.exists():
        return False
    with intact(imports):
        roots = read_text(imports, MOST_JOB_BYTES).splitlines()
    sys.path += [root for root in roots if root not in sys.path]
    return True


def _import_root(name: str) -> Iterator[Path]:
    module_name, is_own, _ = name.partition(":")
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if is_own and file is not None:
        path = Path(file).resolve()
        yield path.parents[module_name.count(".") + (path.name == "__init__.py")]
