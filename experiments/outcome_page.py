"""The page of an experiment: its runs, and its results beside those of the source."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.arms import COPIED
from experiments.catalog import takes_about
from experiments.evidence import LEAST_SEEDS, mean_of
from experiments.experiment import Experiment, Outcome, Scale, Verdict
from fedveil import __version__
from fedveil.pages.table import Table

#: A table with more rows is a file beside the page, which contains the verdicts.
LONGEST_TABLE = 2
#: The sources by the numbers with which the experiments name them.
_MINDSPORE = "MindSpore Federated's document on"
SOURCES = {
    "000": f"{_MINDSPORE} SignDS",
    "001": f"{_MINDSPORE} DP_ENCRYPT and PW_ENCRYPT",
    "002": "Zhang Hao, Towards federated learning local differential privacy design, 2022",
    "003": f"{_MINDSPORE} EmbeddingDP",
}
_COLUMNS = (
    "Each row compares a result of the source with ours (here). The verdict is `agrees` if our "
    "result meets the criterion. It is `says nothing` if a run that it needs ended at chance level "
    "(no better than guessing), or if its seeds are too few to decide. The last column explains "
    "the verdict. Accuracies and rates are fractions: 0.967 is 96.7%. The documentation's page on "
    "the switch explains the protections."
)


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
    """Return the experiment's page in Markdown. Pictures and long tables are files beside it."""
    return "\n".join(_parts(repeated))


def _parts(repeated: Repeated) -> Iterator[str]:
    experiment, outcome = repeated.experiment, repeated.outcome
    yield f"# {experiment.name}\n"
    yield f"{experiment.what} Source: {_source(experiment.source)}.\n"
    yield f"**{tally(outcome)}** Scale: {repeated.scale}.\n"
    smaller = why_smaller(experiment, repeated.scale)
    yield f"{outcome.ran}{smaller and f' {smaller}'}{_seeds(outcome.seeds)}\n"
    yield f"{_COLUMNS}\n"
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
    took = f"It took {repeated.seconds:,.0f} s on {machine()}, with fedveil {__version__}"
    copied = len([*repeated.folder.glob(f"*/{COPIED}")])
    read = [run for run in outcome.curves.values() if not run.folder.exists()]
    took += _without(copied, "that it copied from another experiment")
    took += _without(len(read), "whose published curves it read")
    yield f"{took}. {scales(experiment)}"
    yield ""


def scales(experiment: Experiment) -> str:
    """Return a sentence with the experiment's scales, and how long each of them takes."""
    each = [f"`{scale}` ({takes_about(experiment, scale)})" for scale in experiment.scales]
    return f"Scales, with estimated times on two cores: {', '.join(each)}."


def _without(count: int, which: str) -> str:
    runs = "1 run" if count == 1 else f"{count} runs"
    return f", without the {runs} {which}" if count else ""


def why_smaller(experiment: Experiment, scale: Scale) -> str:
    """Return a sentence that says why a page has this scale and not `full`, or ""."""
    if scale == "full":
        return ""
    if scale in experiment.smaller:
        return experiment.smaller[scale]
    full = takes_about(experiment, "full")
    return f"This page is not at scale `full`, because that takes about {full} on two cores."


def _source(named: str) -> str:
    """Add the source's title to `named`, a place in a source such as "002, figure 1"."""
    number, _, place = named.partition(",")
    title = SOURCES.get(number)
    return f"{number} ({title}),{place}" if title else named


def _seeds(seeds: int) -> str:
    if not seeds:
        return ""
    if seeds < LEAST_SEEDS:
        return (
            f" Each figure comes from {seeds} seed{'s' if seeds > 1 else ''}, so it has no "
            "confidence interval."
        )
    said = mean_of(seeds)
    return f" {said[0].upper()}{said[1:]}."


def tally(outcome: Outcome) -> str:
    """Return a sentence that says how many results of the source were reproduced."""
    answers = [verdict.answer for verdict in outcome.verdicts]
    agree, silent = answers.count("agrees"), answers.count("says nothing")
    said = f"; {silent} say{'s' if silent == 1 else ''} nothing" if silent else ""
    return f"{agree} of {len(answers)} results agree with the source{said}."


def verdicts(outcome: Outcome) -> Table:
    """Return a table of the source paper's results beside ours."""
    columns = ("measure", "the source", "here", "criterion", "verdict", "why")
    said: set[str] = set()
    return Table(columns, [_row(verdict, said) for verdict in outcome.verdicts])


def _row(verdict: Verdict, said: set[str]) -> tuple[str, ...]:
    """Format a verdict as a table row. A reason in `said`, of an earlier row, is not repeated."""
    why = "as above" if verdict.why in said else verdict.why
    said.add(verdict.why)
    ours = (verdict.source, verdict.ours, verdict.held_to, verdict.answer)
    return (verdict.what, *ours, why)


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
