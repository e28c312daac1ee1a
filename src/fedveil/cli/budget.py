"""`fedveil budget`: a run's privacy cost before it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from fedveil.base.plain_text import console, say
from fedveil.base.validate import positive
from fedveil.cli.job_arguments import JobPath, Overrides, load
from fedveil.cli.json_answer import AsJson, answer
from fedveil.errors import MissingExtra
from fedveil.starter import DEFAULT_JOB

if TYPE_CHECKING:
    from fedveil.federated.job import Job
    from fedveil.privacy.ledger import Line


def budget(
    job: JobPath = None,
    overrides: Overrides = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Compute the noise (or another setting that determines epsilon) so that a "
            "whole run costs at most this epsilon at the job's delta. Default: none, "
            "or 2 with --try."
        ),
    ] = None,
    parameters: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The model's number of parameters, on which the epsilon of some protections "
            "depends. Default: build the model and count, which needs torch.",
        ),
    ] = None,
    trial: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Train at most ten rounds under each protection that has an epsilon, with "
            "the noise that a whole run at --target-epsilon needs. Then name the "
            "protection with the best model.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Compute the privacy cost (epsilon) of a run before it starts.

    A smaller epsilon protects better. Delta is a small probability that epsilon does not hold.
    """
    if target_epsilon is not None:
        positive("target epsilon", target_epsilon)
    settings = load(job, overrides, default=DEFAULT_JOB)
    if trial:
        from fedveil.cli.trials import show_trials

        start = " ".join(["fedveil run", *([quote(str(job))] if job is not None else [])])
        sets = (f"--set {quote(one)}" for one in overrides or ())
        show_trials(settings, target_epsilon or 2.0, " ".join([start, *sets]), as_json=json)
        return
    from fedveil.engine.budget import project_job, solve_job
    from fedveil.engine.known_accuracy import measured

    solved = None
    try:
        if target_epsilon is None:
            lines = list(project_job(settings, parameters))
        else:
            solved, found = solve_job(settings, target_epsilon, parameters)
            lines = list(found)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        error = MissingExtra("torch", "torch", "counting the model's parameters")
        error.add_note("or state their number: fedveil budget --parameters N")
        raise error from None
    if json:
        costs = [{"for": ln.what, "epsilon": ln.epsilon, "delta": ln.delta} for ln in lines]
        known = [row._asdict() for row in measured(settings)]
        answer(
            {"solved": None if solved is None else str(solved), "costs": costs, "measured": known}
        )
        return
    if solved is not None:
        say(str(solved))
    _show(lines, settings)


def _show(lines: Sequence[Line], settings: Job) -> None:
    """Print the costs as a table, and the accuracy that was measured with similar settings."""
    from rich.table import Table

    from fedveil.engine.known_accuracy import measured
    from fedveil.pages.guarantee_text import attackers, listed
    from fedveil.privacy.loss import format_delta, format_epsilon

    table = Table(box=None, pad_edge=False)
    for column in ("epsilon", "delta", "promise", "for"):
        table.add_column(column)
    subjects: dict[tuple[str, str, str], list[str]] = {}
    for line in lines:
        figure = format_epsilon(line.epsilon), format_delta(line.delta), str(line.figure.promise)
        subjects.setdefault(figure, []).append(line.what)
    for shown, names in subjects.items():
        table.add_row(*shown, listed(names))
    console().print(table)
    seen = attackers(settings.model_dump())
    if seen and any(math.isfinite(line.epsilon) for line in lines):
        say(f"These figures hold against {seen}.")
    for row in measured(settings):
        say(str(row))
