"""Trains every party of a vertical job in this process, and writes the run's page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedveil.base import validate
from fedveil.entry.presentation import html_of
from fedveil.pages.run_folder_page import keep_page
from fedveil.record.recorder import Record
from fedveil.record.run_folder import RunFolder
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import threads
from fedveil.vertical.one_process import COMMAND, Parties, VerticalRun, reopened


def train(
    job: VerticalJob | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    progress: Callable[[Record], None] | None = None,
    say: Callable[[str], None] | None = None,
    encoded: bool = False,
) -> VerticalRun:
    """Run every party of a job in this process.

    `job` may also be the path of a job's file, or the keys of a job. `out` is the run folder (by
    default a new one under runs/). `progress` is called with each of the leader's records, `say`
    with every other log line. With `encoded`, every message is encoded and decoded as between
    machines, which changes only the run time.
    """
    validate.functions(progress=progress, say=say)
    job = VerticalJob.of(job)
    with ExitStack() as stack:
        stack.enter_context(threads(job.threads))
        parties = Parties(job, None, encoded)
        folder = RunFolder.create(out, job.name, COMMAND)
        stack.callback(folder.close)
        parties.enter(folder, stack, progress, say)
        return _trained(parties, 0)


def resume(
    folder: str | Path,
    *,
    progress: Callable[[Record], None] | None = None,
    say: Callable[[str], None] | None = None,
    encoded: bool = False,
) -> VerticalRun:
    """Resume an interrupted run from the last step that all parties have saved.

    With seeded randomness the run produces the same bytes as an uninterrupted run. `progress` is
    first called with the records of earlier steps. `say` and `encoded` are as in `train`.
    """
    validate.functions(progress=progress, say=say)
    with ExitStack() as stack:
        parties = reopened(folder, stack, progress, say, encoded)
        return _trained(parties, parties.last_common_step())


def _trained(parties: Parties, step: int) -> VerticalRun:
    run = parties.train(step)
    keep_page(parties.folder, parties.runs[run.leader].log.event)
    return replace(run, html=html_of)
