"""A comparison's folder: the request in a file, and one folder per run.

    comparison.yaml     the job, the options, and the parameters that searches found
    runs/CELL/          a run's folder, as `fedveil run` makes it
    report.html ...     the page, its plots and its text, written at the end

CELL names the protection, its settings and the seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from fedveil.attacks.effort import Watch
from fedveil.attacks.membership import membership
from fedveil.attacks.target import Target
from fedveil.engine.federation import Progress
from fedveil.errors import (
    AttackImpossible,
    MessageInvalid,
    ModelInvalid,
    RunFailed,
    RunFolderError,
    RunStopped,
)
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.privacy.finding import timed
from fedveil.record.finding_lines import add_finding
from fedveil.record.run_folder import RunFolder, explained, held_in, refuse_taken
from fedveil.record.saved_job import keep_imports, look_where_a_run_looked
from fedveil.record.sealed_message import intact
from fedveil.settings import allowed
from fedveil.settings.yaml_file import read, write
from fedveil.studies.comparison import Asked, Cell, Comparison, Tell
from fedveil.studies.several_runs import ended_run, refuse_other, resumed_by

COMPARISON = "comparison.yaml"
RUNS = "runs"
#: Errors that end a cell, and not the comparison.
_OWN_END = (RunFailed, RunStopped, ModelInvalid)


@dataclass(frozen=True)
class Result:
    """The outcome of one `Cell` of a comparison: its run or, in `failure`, why it has none.

    `unattacked` is the reason why the run could not be attacked, or "".
    """

    cell: Cell
    run: ReadRun | None
    failure: str = ""
    unattacked: str = ""


class ComparisonFolder:
    """The folder of a comparison. It is locked while in use."""

    def __init__(self, folder: RunFolder, comparison: Comparison) -> None:
        self.path = folder.path
        self.comparison = comparison
        self._folder = folder

    @classmethod
    def open(cls, path: Path | None, comparison: Comparison, stack: ExitStack) -> ComparisonFolder:
        """Open the folder `path`: a new one, or that of a comparison with the same job.

        If `path` is None, a new folder is created under runs/. `stack` closes the folder.
        """
        _ = comparison.settings  # fail before a folder is created
        if path is not None and (path / COMPARISON).is_file():
            before = cls.reopen(path, stack)
            changes = comparison.job_of_runs.changes(before.comparison.job_of_runs)
            if changes:
                raise RunFolderError(
                    f"{path} compares another job: {'; '.join(changes)}: put that back, or name "
                    f"another folder"
                )
            known = before.comparison.solutions
            return cls(before._folder, replace(comparison, solutions=known))
        refuse_taken(path, None)
        name = f"compare-{comparison.job.name}"
        opened = RunFolder.create(path, name, None)
        stack.callback(opened.close)
        return cls(opened, comparison)

    @classmethod
    def reopen(cls, path: Path, stack: ExitStack) -> ComparisonFolder:
        """Open an earlier comparison's folder, with its job and options. `stack` closes it."""
        file = held_in(path, COMPARISON, "a comparison's folder")
        look_where_a_run_looked(path)
        with intact(file):
            kept = read(file)
            job, asked = Job.read(kept["job"], ()), _asked(kept["asked"])
            comparison = Comparison(job, asked, dict(kept["solutions"]))
        opened = RunFolder.of_many(path)
        stack.callback(opened.close)
        return cls(opened, comparison)

    def cells(self, tell: Tell) -> list[Cell]:
        """Return the comparison's runs, and save the parameters that searches found for them.

        `tell` is called with a text before each search. Raises an error if the folder of a run has
        a run of another job.
        """
        found, cells = 0, []
        self._keep()
        for cell in self.comparison.cells(tell):
            cells.append(cell)
            if len(self.comparison.solutions) > found:
                found = len(self.comparison.solutions)
                self._keep()
        for cell in cells:
            if cell.job is not None:
                refuse_other(self._path(cell), cell.job)
        return cells

    def run(self, cell: Cell, progress: Progress) -> Result:
        """Return the result of `cell`: start its run, resume it, or read it if it has finished.

        `progress` is called with each round's record. Raises an error if the run's folder cannot be
        written or read: the cell has no result of its own then, and can be resumed.
        """
        if cell.job is None:
            return Result(cell, None, cell.reason)
        path = self._path(cell)
        try:
            with explained(path.parent):
                path.parent.mkdir(exist_ok=True)
            return Result(cell, ended_run(cell.job, path, progress))
        except _OWN_END as error:
            if isinstance(error.__cause__, RunFolderError):  # such as of a full disk
                raise
            return Result(cell, None, str(error))

    def attacked(self, result: Result, step: Callable[[int, int, str], None]) -> Result:
        """Attack a result's run if the comparison asks for it. Returns the result with the finding.

        Attacks only runs of the first seed. A run that already has a finding of this attack with
        this effort, such as "quick", is not attacked again. `step` shows the attack's progress.
        """
        asked, run = self.comparison.asked, result.run
        if asked.attack is None or run is None or result.cell.seed != self.comparison.job.seed:
            return result
        if any((f.attack, f.effort) == (asked.attack, asked.effort) for f in run.findings):
            return result
        with ExitStack() as stack:
            folder = RunFolder.reopen(run.folder)
            stack.callback(folder.close)
            try:
                target, watch = Target.of_run(run.folder), Watch(step)
                found = timed(partial(membership.attack, target, asked.effort, watch))
            except AttackImpossible as error:
                return replace(result, unattacked=str(error))
            add_finding(folder, found)
        return replace(result, run=read_run(run.folder))

    def resumed(self) -> AbstractContextManager[None]:
        """Return a context in which errors name the command that resumes the comparison."""
        return resumed_by(f"fedveil compare --resume {quote(str(self.path))}")

    def write(self, name: str, data: bytes) -> Path:
        self._folder.write_atomically(name, data)
        return self.path / name

    def _path(self, cell: Cell) -> Path:
        return self.path / RUNS / cell.name

    def _keep(self) -> None:
        comparison = self.comparison
        job = comparison.job.model_dump(mode="json")
        if not comparison.says_weighting:
            del job["server"]["weighting"]
        kept = {
            "job": job,
            "asked": comparison.asked.model_dump(mode="json"),
            "solutions": comparison.solutions,
        }
        self._folder.write_atomically(COMPARISON, write(kept).encode())
        swept = itertools.chain(*comparison.asked.sweep.values())
        keep_imports(
            self._folder, [*comparison.job.own_names, *comparison.asked.protections, *swept]
        )


def _asked(options: dict[str, Any]) -> Asked:
    """Return a comparison's saved options. Raises `MessageInvalid` if one is wrong."""
    try:
        return Asked(**options)
    except ValidationError as error:
        raise MessageInvalid("; ".join(allowed.sentences(error, Asked).values())) from None
