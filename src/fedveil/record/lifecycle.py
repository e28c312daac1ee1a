"""How a run begins, how it goes on, and what is said of both: alike for every kind of run."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from fedveil._version import __version__
from fedveil.errors import FedveilError
from fedveil.record.run_folder import IMPORTS, JOB, RunFolder

J = TypeVar("J")


def keep_job(folder: RunFolder, yaml: str, names: Iterable[str]) -> None:
    """Write down a job, and the folders of the modules that it names as `module:function`."""
    folder.write_atomically(JOB, yaml.encode())
    roots = dict.fromkeys(root for name in names for root in _import_root(name))
    folder.write_atomically(IMPORTS, "".join(f"{root}\n" for root in roots).encode())


def reopen(path: str | Path, load: Callable[[Path], J], stack: ExitStack) -> tuple[RunFolder, J]:
    """The folder of a run that was begun before, to be closed with `stack`, and its job.

    The user's own modules are looked for where they were found then too, after everywhere else.
    """
    folder = RunFolder.reopen(Path(path))
    stack.callback(folder.close)
    imports = folder.path / IMPORTS
    roots = imports.read_text().splitlines() if imports.exists() else []
    sys.path += [root for root in roots if root not in sys.path]
    return folder, load(folder.path / JOB)


def beginning(unit: str, done: int) -> str:
    """How a run starts that has done so many rounds or steps."""
    return f"went on after {unit} {done}" if done else "began"


def introduce(event: Callable[[str], None], what: str, began: float, lines: Iterable[str]) -> None:
    """The first events of a process; it `began` to get ready at that time of the clock."""
    event(
        f"{what}: fedveil {__version__}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, torch {torch.__version__}, {platform.machine()}; "
        f"ready after {time.perf_counter() - began:.1f} s"
    )
    for line in lines:
        event(line)


@contextmanager
def how_to_resume(
    note: Callable[[], str], ends: type[FedveilError] = FedveilError
) -> Iterator[None]:
    """Let what ends a run early say how it is gone on with; an empty note is left out."""
    try:
        yield
    except (ends, KeyboardInterrupt) as end:
        if text := note():
            end.add_note(text)
        raise


def _import_root(name: str) -> Iterator[Path]:
    module_name, is_own, _ = name.partition(":")
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if is_own and file is not None:
        path = Path(file).resolve()
        yield path.parents[module_name.count(".") + (path.name == "__init__.py")]
