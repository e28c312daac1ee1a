"""The page of several runs: the same curves together, and one table that sorts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedveil.pages import curves
from fedveil.pages.ending import best_round
from fedveil.pages.page import Code, Fold, Page, Section
from fedveil.pages.promised import RUN, figure_of
from fedveil.pages.read_run import ReadRun
from fedveil.pages.run_page import duration, found, how_far, seconds
from fedveil.pages.table import Table
from fedveil.privacy.promise import told
from fedveil.record.byte_count import shown_bytes
from fedveil.record.measures import figures, word
from fedveil.record.run_folder import JOB
from fedveil.settings.differences import differences

_NOTHING = "-"


def runs_page(runs: Sequence[ReadRun], title: str = "") -> Page:
    """Federated runs beside each other, in their order; each is called by its folder."""
    named = _named(runs)
    keys = list(dict.fromkeys(key for run in runs for key in figures(run.last)))
    shown = [word(key) for key in keys]
    table = Table(
        ["run", "protection", "rounds", shown[0], "best", *shown[1:], "epsilon", "upload", "time"],
        [[name, *_row(run, keys)] for name, run in named.items()],
        "After the last round; epsilon for a client drawn in every round; upload of a client in a "
        "round. A click on a column's name sorts by it.",
    )
    plots = [
        *curves.quality(named),
        *curves.at_clients(named),
        *curves.epsilon(named),
        *curves.upload(named),
    ]
    attacks = [
        Section(f"{section.title} in {name}", section.parts)
        for name, run in named.items()
        for section in found(run)
    ]
    jobs = [
        Fold(name, [how_far(run), Code((run.folder / JOB).read_text("utf-8"), JOB)])
        for name, run in named.items()
    ]
    return Page(
        title or f"{len(runs)} runs",
        [f"{len(runs)} runs beside each other; what their jobs differ in stands below."],
        [
            Section("At the end", [table]),
            Section("Every round", plots),
            Section("What differs", [_different(named)]),
            *attacks,
            Section("The jobs", jobs),
        ],
    )


def _named(runs: Sequence[ReadRun]) -> dict[str, ReadRun]:
    """Each by its folder's name, or by the whole path where that is another's too."""
    names = [run.folder.resolve().name for run in runs]
    return {
        name if names.count(name) == 1 else str(run.folder): run
        for name, run in zip(names, runs, strict=True)
    }


def _row(run: ReadRun, keys: Sequence[str]) -> list[str]:
    last, best = run.last, best_round(run)
    shown = [f"{last[key]:.4f}" if key in last else _NOTHING for key in keys]
    shown.insert(1, _NOTHING if best is None else f"{best.figure:.4f} (round {best.round})")
    return [
        str(run.job["protection"]["name"]),
        f"{len(run.records)} of {run.job['rounds']}",
        *shown,
        told(*figure_of(last, RUN)) if last else _NOTHING,
        shown_bytes(last["bytes_up_per_client"]) if last else _NOTHING,
        duration(seconds(run.records)),
    ]


def _different(runs: Mapping[str, ReadRun]) -> Table | str:
    """The keys in which any job is another than the first one's, and the value in each."""
    first = next(iter(runs.values()))
    keys: dict[str, dict[str, str]] = {}
    for name, run in runs.items():
        for key, here, there in differences(run.job, first.job):
            keys.setdefault(key, dict.fromkeys(runs, there))[name] = here
    if not keys:
        return "Nothing: all have the same job."
    return Table(["key", *runs], [[key, *values.values()] for key, values in keys.items()])
