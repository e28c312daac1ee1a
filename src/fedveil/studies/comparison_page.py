"""A comparison as one page: tables, plots, and the command that repeats it."""

from __future__ import annotations

from collections.abc import Sequence

from fedveil.base.quantity import quantity
from fedveil.pages.page import Code, Fact, Fold, Page, Section
from fedveil.pages.table import Table
from fedveil.settings.yaml_file import write
from fedveil.studies.comparison import Comparison, Goal
from fedveil.studies.comparison_choice import choice, unequal
from fedveil.studies.comparison_table import Line, plots, tables


def page(comparison: Comparison, found: Sequence[Line], goal: Goal | None) -> Page:
    """Return the page of a comparison. `found` has one `Line` of results per setting.

    `goal` is the metric and the value that the runs should reach, or None.
    """
    job, asked = comparison.job, comparison.asked
    number = job.clients.number
    clients = "the clients that the data has" if number is None else quantity(number, "client")
    seeds = f"{asked.seeds} seeds from {job.seed} on" if asked.seeds > 1 else f"seed {job.seed}"
    unlike, card = unequal(found), choice(found)
    lead: list[str | Fact] = [
        f"{job.model} on {job.data.name}, {clients}, {quantity(job.rounds, 'round')}, {seeds}. "
        f"All settings of "
        f"a seed have the same data, partition, initial model and cohorts.",
        *comparison.notes,
        *([] if unlike is None else [unlike]),
        *([] if card is None else [card]),
    ]
    kept = (("the job", job), ("what was asked", asked))
    again = [Code(write(what.model_dump(mode="json")), name) for name, what in kept]
    sections = (
        Section("Plots", [*plots(found)]),
        Section("Side by side", [*tables(found, goal)]),
        Section("To repeat it", [Fold("The job, and what was asked", again)]),
    )
    return Page(f"{job.name}, compared", lead, [section for section in sections if section.parts])


def _text(part: str | Fact) -> str:
    return part if isinstance(part, str) else f"**{part.label}: {part.value}.** {part.text}"


def markdown(shown: Page) -> str:
    parts = [f"# {shown.title}\n", *(f"{_text(part)}\n" for part in shown.lead)]
    for section in shown.sections:
        parts += [part.markdown() for part in section.parts if isinstance(part, Table)]
    parts += [plot.markdown(f"report-{plot.file}.svg") for plot in shown.plots]
    return "\n".join(parts)
