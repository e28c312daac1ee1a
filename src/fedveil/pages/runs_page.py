"""The page of several runs: common plots of their curves, and a table that can be sorted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_JOB_BYTES, read_text
from fedveil.pages import curves
from fedveil.pages.guarantee_text import (
    ALONE,
    FOR_A_CLIENT,
    RUN,
    at_delta,
    attackers,
    cell,
    figure_of,
    from_seed,
    whose,
)
from fedveil.pages.page import Code, Fact, Fold, Page, Section
from fedveil.pages.read_run import ReadRun
from fedveil.pages.run_page import duration, found, how_far, seconds
from fedveil.pages.run_summary import TONES, best_round
from fedveil.pages.table import Table
from fedveil.pages.vertical_page import (
    CROSSED,
    HELD_OUT,
    accounts_of,
    how_ended,
    is_apart,
    is_vertical,
    leader_of,
    learning,
    parties_of,
    what_it_is,
)
from fedveil.pages.vertical_summary import worst_of
from fedveil.privacy.guarantee_strength import epsilon_text
from fedveil.record.byte_count import shown_bytes
from fedveil.record.metric_names import deciding, digits, figures, word
from fedveil.record.run_folder import JOB
from fedveil.settings.differences import differences

_NOTHING = "-"
_APART = (
    "Federated and vertical runs have separate tables and plots: a round of clients cannot be "
    "compared with a step of two parties."
)


def runs_page(runs: Sequence[ReadRun]) -> Page:
    """Return a page of the runs in order. Federated and vertical runs have separate tables."""
    named = _named(runs)
    vertical = {name: run for name, run in named.items() if is_vertical(run)}
    federated = {name: run for name, run in named.items() if name not in vertical}
    mixed = bool(federated and vertical)
    count = quantity(len(runs), "run")
    lead = f"A comparison of {count}. The differences of their jobs are listed below."
    attacks = [
        Section(f"{section.title} in {name}", section.parts)
        for name, run in named.items()
        for section in found(run)
    ]
    jobs = [
        Fold(name, [says(run), Code(read_text(run.folder / JOB, MOST_JOB_BYTES), JOB)])
        for name, run in named.items()
        for says in [what_it_is if name in vertical else how_far]
    ]
    return Page(
        count,
        [f"{lead} {_APART}" if mixed else lead, *_best(federated)],
        [
            *(_federated(federated, " of federated runs" if mixed else "") if federated else ()),
            *(_vertical(vertical, " of vertical runs" if mixed else "") if vertical else ()),
            *attacks,
            Section("The jobs", jobs),
        ],
    )


def _best(runs: Mapping[str, ReadRun]) -> Iterator[Fact]:
    """Yield cards that name the best federated run by quality, by epsilon and by upload."""
    known = {name: run for name, run in runs.items() if run.records}
    if len(known) < 2:
        return
    metric, better = deciding(next(iter(known.values())).last)
    trained = {name: run for name, run in known.items() if not run.failed}
    reached = {name: run.last[metric] for name, run in trained.items() if metric in run.last}
    reached = {name: value for name, value in reached.items() if not math.isnan(value)}
    if reached:
        best = (max if better == "higher" else min)(reached, key=reached.__getitem__)
        shown = {name: digits(metric, value) for name, value in reached.items()}
        text = f"{word(metric)} {shown[best]} after the last round"
        yield Fact("Best model", _equal(shown, best, len(known)), text)
    spent = {name: figure_of(run.last, RUN) for name, run in known.items()}
    least = min(spent, key=lambda name: spent[name].epsilon)
    if spent[least].epsilon < math.inf:
        text = f"{spent[least]}, for {whose(known[least].last)} that takes part in every round"
        holds = attackers(known[least].job)
        text += f", against {holds}" if holds else ""
        assumed = from_seed([known[least].last])
        text += f". {assumed}" if assumed else ""
        named = _equal({name: str(one) for name, one in spent.items()}, least, len(known))
        yield Fact("Smallest epsilon", named, text, TONES[spent[least].promise])
    sent = {name: run.last["bytes_up_per_client"] for name, run in known.items()}
    fewest = min(sent, key=sent.__getitem__)
    shown = {name: shown_bytes(size) for name, size in sent.items()}
    named = _equal(shown, fewest, len(known))
    yield Fact("Smallest upload", named, f"{shown[fewest]} of a client in a round")


def _equal(shown: Mapping[str, str], best: str, runs: int) -> str:
    """Return the names of all runs whose text in `shown` equals that of `best`, joined by "and".

    `shown` maps the name of a run to the text that stands for its value, and `best` is one of the
    names. Returns "all runs" if there are `runs` such runs.
    """
    names = [name for name, figure in shown.items() if figure == shown[best]]
    return "all runs" if len(names) == runs else " and ".join(names)


def _federated(runs: Mapping[str, ReadRun], of: str) -> Iterator[Section]:
    keys = list(dict.fromkeys(key for run in runs.values() for key in figures(run.last)))
    first, *others = (word(key) for key in keys)
    spent = [figure_of(run.last, RUN) for run in runs.values() if run.last]
    bounded = [
        run.last
        for run in runs.values()
        if run.last and figure_of(run.last, RUN).epsilon < math.inf
    ]
    caption = (
        f"After the last round; epsilon{at_delta(spent, 'run')} {FOR_A_CLIENT}; upload of a client "
        f"in a round. A click on a column's name sorts by it. {from_seed(bounded)}"
    )
    table = Table(
        ["run", "protection", "rounds", first, "best", *others, "epsilon", "upload", "time"],
        [[name, *_row(run, keys)] for name, run in runs.items()],
        caption.strip(),
    )
    plots = [
        *curves.quality(runs),
        *curves.at_clients(runs),
        *curves.epsilon(runs),
        *curves.upload(runs),
    ]
    yield Section(f"Every round{of}", plots)
    yield Section(f"At the end{of}", [table])
    if len(runs) > 1:
        yield Section(f"What differs{of}", [_different(runs)])


def _vertical(runs: Mapping[str, ReadRun], of: str) -> Iterator[Section]:
    parties = {name: parties_of(run) for name, run in runs.items()}
    leaders = {name: leader_of(run, parties[name]) for name, run in runs.items()}
    told_of = [key for leader in leaders.values() for key in leader.last]
    keys = [*dict.fromkeys(key for key in told_of if key.startswith(HELD_OUT))]
    rows = []
    for name, run in runs.items():
        last = leaders[name].last
        crossed = sum(last.get(key, 0) for key in CROSSED)
        rows.append([
            name, str(run.job["task"]["name"]), how_ended(leaders[name]),
            *(
                digits(key.removeprefix(HELD_OUT), last[key]) if key in last else _NOTHING
                for key in keys
            ),
            _largest(parties[name]),
            shown_bytes(crossed) if crossed else _NOTHING,
        ])  # fmt: skip
    columns = ["run", "task", "how far", *(key.removeprefix(HELD_OUT) for key in keys),
               "epsilon", "sent per step"]  # fmt: skip
    note = (
        "On the held-out examples. Epsilon is the largest in the parties' accounts, for an "
        "example's own reports. Parties on other machines have accounts of their own."
    )
    yield Section(f"Every step{of}", [*learning(leaders)])
    yield Section(f"At the end{of}", [Table(columns, rows, note)])
    if len(runs) > 1:
        yield Section(f"What differs{of}", [_different(runs)])


def _largest(parties: Mapping[str, ReadRun]) -> str:
    """Return the largest epsilon in the accounts of a vertical run's local parties."""
    worst = worst_of(accounts_of(parties))
    text = f"{epsilon_text(*worst.figure)} for {worst.what}" if worst else epsilon_text(math.inf)
    return f"{text}{ALONE}" if is_apart(parties) else text


def _named(runs: Sequence[ReadRun]) -> dict[str, ReadRun]:
    """Return the runs by folder name, or by the whole path if two names are equal."""
    names = [run.name for run in runs]
    return {
        name if names.count(name) == 1 else str(run.folder): run
        for name, run in zip(names, runs, strict=True)
    }


def _row(run: ReadRun, keys: Sequence[str]) -> list[str]:
    last, best = run.last, best_round(run)
    metrics = [digits(key, last[key]) if key in last else _NOTHING for key in keys]
    at_best = best and f"{digits(best.name, best.figure)} (round {best.round})"
    metrics.insert(1, at_best or _NOTHING)
    return [
        str(run.job["protection"]["name"]),
        f"{len(run.records)} of {run.job['rounds']}",
        *metrics,
        cell(figure_of(last, RUN), last["unit"]) if last else _NOTHING,
        shown_bytes(last["bytes_up_per_client"]) if run.records else _NOTHING,
        duration(seconds(run.records)),
    ]


def _different(runs: Mapping[str, ReadRun]) -> Table | str:
    """Return a table of the settings in which any run's job differs from the first run's job.

    The table has a column for each run. Returns a sentence instead if all jobs are equal.
    """
    first = next(iter(runs.values()))
    keys: dict[str, dict[str, str]] = {}
    for name, run in runs.items():
        for key, here, there in differences(run.job, first.job):
            keys.setdefault(key, dict.fromkeys(runs, there))[name] = here
    if not keys:
        return "Nothing: all have the same job."
    return Table(["key", *runs], [[key, *values.values()] for key, values in keys.items()])
