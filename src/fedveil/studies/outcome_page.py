"""The page of an experiment: its runs, and its results beside those of the source."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedveil import __version__
from fedveil.pages.table import Table
from fedveil.studies.experiment import Experiment, Outcome, Scale, Verdict

#: A table with more rows is a file beside the page, which contains the verdicts.
LONGEST_TABLE = 2


@dataclass(frozen=True)
class Repeated:
    """A repeated experiment. `figures` maps the names of its plots to their files."""

    experiment: Experiment
    scale: Scale
    outcome: Outcome
    figures: Mapping[str, str]
    seconds: float
    command: str
    folder: Path


def long_tables(name: str, outcome: Outcome) -> dict[str, Table]:
    """Return the tables that are files beside the page of `name`, by their file names."""
    numbered = enumerate(outcome.tables, 1)
    return {f"{name}-{n}.csv": table for n, table in numbered if len(table.rows) > LONGEST_TABLE}


def page(repeated: Repeated) -> str:
    """Return the experiment's page in Markdown.

    Its pictures and long tables are files beside it.
    """
    return "\n".join(_parts(repeated))


def _parts(repeated: Repeated) -> Iterator[str]:
    experiment, outcome = repeated.experiment, repeated.outcome
    yield f"# {experiment.name}\n"
    yield f"{experiment.what} Source: {experiment.source}.\n"
    yield f"**{tally(outcome)}** Scale: {repeated.scale}.\n"
    yield f"{outcome.ran}\n"
    yield verdicts(outcome).markdown()
    for plot in outcome.plots:
        yield plot.markdown(repeated.figures[plot.name])
    for picture in outcome.pictures:
        yield f"![{picture.stem}]({os.path.relpath(picture, repeated.folder)})\n"
    files = {id(table): file for file, table in long_tables(experiment.name, outcome).items()}
    for table in outcome.tables:
        if file := files.get(id(table)):
            said = f"{table.caption.rstrip('.')}: " if table.caption else ""
            yield f"{said}[the table]({file}).\n"
        else:
            yield table.markdown()
    yield f"    {repeated.command}\n"
    yield f"{repeated.seconds:,.0f} s on {machine()}; fedveil {__version__}."
    yield ""


def tally(outcome: Outcome) -> str:
    """Say how many of the source paper's numbers and trends were reproduced."""
    agree = sum(verdict.agrees for verdict in outcome.verdicts)
    return f"{agree} of {len(outcome.verdicts)} agree with the source."


def verdicts(outcome: Outcome) -> Table:
    """Return a table of the source paper's results beside ours."""
    columns = ("what", "the source", "here", "verdict", "why")
    said: set[str] = set()
    return Table(columns, [_row(verdict, said) for verdict in outcome.verdicts])


def _row(verdict: Verdict, said: set[str]) -> tuple[str, ...]:
    """Format a verdict as a table row. Omits its reason if an earlier row has it (`said`)."""
    word = "agrees" if verdict.agrees else "differs"
    why = "as above" if verdict.why in said else verdict.why
    said.add(verdict.why)
    return (verdict.what, verdict.source, verdict.ours, word, why)


def machine() -> str:
    """Describe this machine: its processor and number of cores."""
    cores = len(os.sched_getaffinity(0))
    return f"{_processor()}, {cores} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
