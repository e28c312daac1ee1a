"""`fedveil reproduce`: repeats the experiments of the papers on which fedveil is based."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedveil.base.plain_text import console, remark, say
from fedveil.cli.path_argument import path_option
from fedveil.studies.checkout import SCALE_RULES, Scale, module


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="The experiment. Default: list all experiments.")
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(
            help=f"{'. '.join(f'{scale}: {rule}' for scale, rule in SCALE_RULES.items())}. "
            "--list shows each duration, and which scales an experiment has."
        ),
    ] = "full",
    out: Annotated[
        Path | None,
        path_option(
            help="The experiment's folder; an unfinished experiment in it is resumed. "
            "Default: runs/reproduce-NAME-SCALE."
        ),
    ] = None,
    published: Annotated[
        bool,
        typer.Option(help="Judge the published curves again. Trains only runs that have none."),
    ] = False,
    everything: Annotated[
        bool, typer.Option("--list", help="List the experiments and their durations.")
    ] = False,
) -> object:
    """Repeat a published experiment and compare the results with the published ones.

    Needs a clone of fedveil's repository.
    """
    if name is None or everything:
        table = module("catalog").table()
        console().print(table)
        return table.records()
    reproduction = module("reproduction")
    page, outcome = reproduction.reproduce(name, scale, out, remark, published=published)
    shown = module("outcome_page")
    console().print(shown.verdicts(outcome))
    say(shown.tally(outcome))
    say(f"written to {page}")
    found = [{**asdict(verdict), "agrees": verdict.agrees} for verdict in outcome.verdicts]
    return {"page": page, "verdicts": found}
