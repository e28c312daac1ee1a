"""The table of all experiments with links to their pages, for the site."""

from __future__ import annotations

import re
from pathlib import Path

from experiments import EXPERIMENTS, ldp_jobs
from experiments.arms import settings
from experiments.catalog import find, takes_about
from experiments.outcome_page import SOURCES
from fedveil.pages.table import Table
from fedveil.studies.checkout import SCALE_RULES

_TALLY = re.compile(r"^\*\*(.*)\.\*\* Scale: (\w+)\.$", re.MULTILINE)
_LIST = "\n".join(f"- **{number}**: {title}" for number, title in SOURCES.items())
_HEAD = f"""# Reproductions

`fedveil reproduce` repeats the experiments of the four sources that fedveil implements, and
compares the results. An interrupted experiment is resumed if you run its command again. The
experiments are in the folder `experiments/` of the repository. In a clone of the repository:

    fedveil reproduce                      # list the experiments
    fedveil reproduce NAME --scale small   # {SCALE_RULES["small"]}
    fedveil reproduce NAME --scale medium  # {SCALE_RULES["medium"]} (not all have it)
    fedveil reproduce NAME                 # scale full: {SCALE_RULES["full"]}
    fedveil reproduce NAME --published     # train only runs without a curve beside the pages

The sources have numbers:

{_LIST}

Every page says what was run, how it differs from the source, and how our figures compare with the
source's. A verdict is computed from the figures by the criterion beside it. It says nothing if a
run that it needs ended at chance level (no better than guessing), or if its seeds are too few to
decide. If a source shows a curve only as a picture, the verdict tests what its text says about the
curve. [The list of statements](statements.md) has every testable statement of the sources.
Accuracies and rates are fractions, as in the sources: 0.967 is 96.7%.

A page whose scale is not `full` says why. The last column says how long all runs of `full` take on
two cores; `-` means that the experiment has no such scale. Every page says how many seeds its
figures have.
"""


def index(folder: Path) -> str:
    """Return an index of the experiments' pages in `folder`."""
    columns = ("experiment", "what", "verdicts", "scale", "full takes about")
    pages = Table(columns, [_row(folder, name) for name in EXPERIMENTS])
    small = ldp_jobs.tasks_of("small")[: len(ldp_jobs.TASKS)]
    jobs = [ldp_jobs.job("small", task, protection="rr") for task in small]
    sources = ldp_jobs.SOURCE.values()
    tables = [settings(source, job) for source, job in zip(sources, jobs, strict=True)]
    parts = (_HEAD, pages.markdown(), "## Common settings of the pages of 002\n", ldp_jobs.SHARED)
    return "\n".join([*parts, *(f"{table.markdown()}" for table in tables)])


def _row(folder: Path, name: str) -> tuple[str, ...]:
    experiment, page = find(name), folder / f"{name}.md"
    full = takes_about(experiment, "full")
    found = _TALLY.search(page.read_text("utf-8")) if page.exists() else None
    if found is None:
        return (name, experiment.what, "not run", "", full)
    tally, scale = found.groups()
    tally = tally.replace(" results agree with the source", " agree")
    return (f"[{name}]({name}.md)", experiment.what, tally, scale, full)
