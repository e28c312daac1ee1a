"""`fedveil reproduce`: the sources' experiments again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedveil.plain_text import console, remark, say
from fedveil.reproductions.experiment import Scale


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="The experiment; without it, the table of all.")
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(help="The source's own size; minutes; or, of some, what half an hour allows."),
    ] = "full",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The experiment's folder, gone on with where it is there; without it, "
            "runs/reproduce-NAME-SCALE."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--list", help="What experiments there are.")] = False,
) -> object:
    """Repeat an experiment of the sources, and set their figures beside ours."""
    if name is None or everything:
        from fedveil.reproductions.experiments import table

        console().print(table().terminal())
        return table().records()
    from fedveil.reproductions.outcome_page import tally, verdicts
    from fedveil.reproductions.reproduction import reproduce as repeat

    page, outcome = repeat(name, scale, out, remark)
    console().print(verdicts(outcome).terminal())
    say(tally(outcome))
    say(f"written to {page}")
    found = [{**asdict(verdict), "agrees": verdict.agrees} for verdict in outcome.verdicts]
    return {"page": page, "verdicts": found}
