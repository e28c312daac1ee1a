"""The table of all experiments with links to their pages, for the site."""

from __future__ import annotations

import re
from pathlib import Path

from experiments import EXPERIMENTS, ldp_jobs
from experiments.arms import settings
from experiments.catalog import find, takes_about
from fedveil.pages.table import Table

_TALLY = re.compile(r"^\*\*(.*)\.\*\* Scale: (\w+)\.$", re.MULTILINE)
_HEAD = """# The sources' experiments again

The experiments are in the folder `experiments/` of the repository. In a checkout:

    fedveil reproduce                      # what there is
    fedveil reproduce NAME --scale small   # minutes
    fedveil reproduce NAME --scale medium  # of some: as much of it as half an hour allows
    fedveil reproduce NAME                 # the source's own size; cut off, it goes on where it was

Every page says what was run and what was not as in the source, and sets the source's figures
beside ours. A verdict is computed from the figures and names the bound that it was held to. It says
nothing if a run that it needs ended at chance level. Where the sources' curves are pictures alone,
what their text says of a curve is what is tested.
[The list of statements](statements.md) has every testable statement of the sources.
Accuracies and rates are fractions, as the sources print them: 0.967 is 96.7%.
"""


def index(folder: Path) -> str:
    """Return an index of the experiments' pages in `folder`."""
    columns = ("experiment", "what", "verdicts", "scale", "full takes about")
    pages = Table(columns, [_row(folder, name) for name in EXPERIMENTS])
    small = ldp_jobs.tasks_of("small")[: len(ldp_jobs.TASKS)]
    jobs = [ldp_jobs.job("small", task, task, protection="rr") for task in small]
    sources = ldp_jobs.SOURCE.values()
    tables = [settings(source, job) for source, job in zip(sources, jobs, strict=True)]
    parts = (_HEAD, pages.markdown(), "## What the pages of 002 share\n", ldp_jobs.SHARED)
    return "\n".join([*parts, *(f"{table.markdown()}" for table in tables)])


def _row(folder: Path, name: str) -> tuple[str, ...]:
    experiment, page = find(name), folder / f"{name}.md"
    full = takes_about(experiment, "full")
    found = _TALLY.search(page.read_text("utf-8")) if page.exists() else None
    if found is None:
        return (name, experiment.what, "not run", "", full)
    tally, scale = found.groups()
    tally = tally.replace(" with the source", "")
    return (f"[{name}]({name}.md)", experiment.what, tally, scale, full)
