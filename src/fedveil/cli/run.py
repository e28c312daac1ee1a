"""`fedveil run`: trains a model and writes a run folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import fedveil
from fedveil.base.plain_text import console
from fedveil.cli.job_arguments import JobPath, Overrides, job_of_run, load
from fedveil.cli.json_answer import AsJson, answer, only_json
from fedveil.cli.path_argument import RunOut, path_option
from fedveil.errors import ClaimRefuted, JobError
from fedveil.record.run_folder import refuse_taken
from fedveil.starter import DEFAULT_JOB


def run(
    job: JobPath = None,
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Annotated[
        Path | None,
        path_option(
            help="Resume the run in this folder. To train longer, add --set rounds=N, where N "
            "is the new total."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Where the simulated clients train: here (this machine, the default), ray"
            " (a Ray cluster that is already running here), or a cluster's address, "
            "such as ray://HOST:10001."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Train a model and write the results to a run folder."""
    # The job is checked before torch is imported.
    if resume is not None:
        others = [key for key in overrides or [] if key.partition("=")[0].strip() != "rounds"]
        if job is not None or others or out is not None:
            raise JobError(
                ["--resume uses the run's own job: remove JOB, --out and every --set except "
                 "--set rounds=N"]
            )  # fmt: skip
        settings = job_of_run(resume, overrides)
    else:
        refuse_taken(out)
        if on is not None:
            overrides = [*(overrides or []), f"simulation.on={on}"]
        settings = load(job, overrides, default=DEFAULT_JOB, runs=True)
    from fedveil.engine.precompile import precompiling
    from fedveil.pages.read_run import read_run
    from fedveil.run_display import RunDisplay, of_run

    with only_json(json):
        with RunDisplay(console(), settings.rounds) as display, precompiling(settings):
            if resume is None:  # the first use of a name that imports torch
                train = partial(fedveil.simulate, settings, out)
            else:
                rounds = settings.rounds if overrides else None
                train = partial(fedveil.resume, resume, rounds=rounds, on=on)
            result = train(progress=display.show, warn=display.warn, starting=display.starting)
        found = read_run(result.folder)
        display.summary(found)
    if json:
        answer(of_run(found))
    if result.audit is not None and result.audit.refutes:
        raise ClaimRefuted(f"the audit refutes the run's guarantee: {result.audit.refutation}")
