"""The page of a vertical run, from its parties' folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedveil.base.quantity import quantity
from fedveil.pages.curves import axis_of
from fedveil.pages.guarantee_text import returned, right
from fedveil.pages.page import Code, Fold, Page, Part, Points, Section
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.read_run import ReadRun, party_folders, read_party
from fedveil.pages.run_page import found, repeat
from fedveil.pages.run_summary import Ending
from fedveil.pages.table import Table
from fedveil.pages.vertical_summary import of_others, vertical_ending
from fedveil.privacy.guarantee_strength import MEANS, epsilon_text
from fedveil.privacy.ledger import Line
from fedveil.privacy.loss import format_delta
from fedveil.record.metric_names import title
from fedveil.record.recorder import CROSSES, Record
from fedveil.record.run_folder import EVENTS, JOB, METRICS, PRIVATE

_STEP = Axis("step")
#: Prefix of the names of metrics on held-out examples.
HELD_OUT = "test_"
#: Keys of the transferred bytes in a party's records.
CROSSED = {"bytes_sent_per_step": "sent", "bytes_received_per_step": "received"}


def is_vertical(run: ReadRun) -> bool:
    """Return True if the run is vertical, that is, trains a split model."""
    return "task" in run.job and "protection" not in run.job


def parties_of(run: ReadRun, *, growing: bool = False) -> dict[str, ReadRun]:
    """Return the records of the parties in a vertical run's folder, by the party's name.

    If the parties are on different machines, only the local party is there. `growing` is as in
    `read_run`.
    """
    folders = party_folders(run.folder, METRICS)
    return {folder.name: read_party(run, folder, growing=growing) for folder in folders}


def leader_of(run: ReadRun, parties: Mapping[str, ReadRun]) -> ReadRun:
    """Return the leader: the party whose records have metrics on held-out examples.

    If no party has such metrics, returns any local party. Without parties, returns the run itself.
    """
    has = f"{HELD_OUT}loss"
    looked = (party for party in parties.values() if any(has in r for r in party.records))
    return next(looked, next(iter(parties.values()), run))


def vertical_page(run: ReadRun) -> Page:
    """Return the page of a vertical run: parties, training, protection and every account."""
    parties = parties_of(run)
    leader = leader_of(run, parties)
    sections = [
        Section(
            "Every step", [*learning({run.name: leader}), *_crossed(parties), *_waited(parties)]
        ),
        Section("What was promised", list(_accounts(run, parties))),
        *found(run),
        *repeat(run, f"fedveil vertical run {JOB}"),
    ]
    events = [
        Fold(f"{EVENTS} of {name}", [Code("\n".join(party.events))])
        for name, party in parties.items()
    ] + [
        Fold(f"{PRIVATE} of {name}", [Code("\n".join(party.private))])
        for name, party in parties.items()
        if party.private
    ]
    sections += [Section("Events of every party", events), Section("Settings", [_settings(run)])]
    crossed = leader.all_said(CROSSES)
    return Page(run.name, [what_it_is(run), *crossed, *answers(run)], sections)


def _settings(run: ReadRun) -> Table:
    job = run.job
    blocks = {key: job[key] for key in ("optimizer", "privacy", "compression")}
    rows = {
        "job": job["name"],
        "task": job["task"]["name"],
        "parties": ", ".join(parties_of(run)),
        "training": f"{_epochs(job)}, on {job['device']}",
        "micro-batches in a step": job["in_flight"],
        **{name: _said(block) for name, block in blocks.items()},
        "seed": job["seed"],
    }
    return Table(["", ""], [[name, str(value)] for name, value in rows.items() if value != ""])


def _said(block: Any) -> str:
    """Format a block of settings as text, without the settings that are None or empty."""
    if not isinstance(block, Mapping):
        return "" if block is None else str(block)
    on = {key: _said(value) for key, value in block.items() if value not in (None, {}, [])}
    return ", ".join(
        f"{key}: ({text})" if isinstance(block[key], Mapping) else f"{key} {text}"
        for key, text in on.items()
    )


def what_it_is(run: ReadRun) -> str:
    """Return a sentence that describes the run and says if it has ended."""
    job, parties = run.job, parties_of(run)
    ended = how_ended(leader_of(run, parties))
    return (
        f"Job {job['name']}: {job['task']['name']}, {' and '.join(parties) or 'nobody yet'}: "
        f"{_epochs(job)}; {ended}."
    )


def how_ended(leader: ReadRun) -> str:
    """Return the leader's event about the run's end, or a text which says that there is none."""
    return leader.ended or "still running, or killed"


def answers(run: ReadRun) -> Ending:
    parties = parties_of(run)
    return vertical_ending(
        run, leader_of(run, parties), accounts_of(parties), apart=is_apart(parties)
    )


def is_apart(parties: Mapping[str, ReadRun]) -> bool:
    """Return True if a run's folder has only one of its parties: the others are elsewhere."""
    return len(parties) == 1


def accounts_of(parties: Mapping[str, ReadRun]) -> list[Line]:
    return [line for party in parties.values() for line in party.accounts]


def steps(records: Sequence[Record], key: str) -> tuple[list[int], list[float]]:
    """Return the numbers of the steps that have the metric `key`, and the metric's values.

    The numbers continue from one epoch to the next.
    """
    having = [record for record in records if key in record and "step" in record]
    return (
        [record["epoch"] * record["steps"] + record["step"] for record in having],
        [record[key] for record in having],
    )


def learning(leaders: Mapping[str, ReadRun]) -> Iterator[Plot]:
    """Yield plots of the loss and of each held-out metric over the steps, with a curve per run.

    `leaders` has the records of each run's leader, by the run's name.
    """
    curves = [Curve(name, *steps(leader.records, "loss")) for name, leader in leaders.items()]
    if drawn := [curve for curve in curves if curve.x]:
        yield Plot(
            "loss",
            "Training loss",
            _STEP,
            Axis("loss"),
            drawn,
            "The mean over the steps since the previous record.",
        )
    figures = [key for leader in leaders.values() for key in leader.last]
    for key in dict.fromkeys(key for key in figures if key.startswith(HELD_OUT)):
        having = {
            name: [record for record in leader.records if "look" in record and key in record]
            for name, leader in leaders.items()
        }
        curves = [
            Curve(name, [r["look"] for r in looks], [r[key] for r in looks], marks=True)
            for name, looks in having.items()
            if looks
        ]
        name = key.removeprefix(HELD_OUT)
        note = "On the held-out examples."
        yield Plot(f"held-out-{name}", title(name), _STEP, axis_of(name), curves, note)


def _crossed(parties: dict[str, ReadRun]) -> Iterator[Plot]:
    curves = [
        Curve(f"{name}: {what}", *steps(party.records, key))
        for name, party in parties.items()
        for key, what in CROSSED.items()
    ]
    if drawn := [curve for curve in curves if curve.x]:
        yield Plot("bytes", "Bytes", _STEP, Axis("bytes per step", zero=True, unit="bytes"), drawn)


def _waited(parties: dict[str, ReadRun]) -> Iterator[Plot]:
    curves = [
        Curve(name, *steps(party.records, "seconds_waiting")) for name, party in parties.items()
    ]
    if drawn := [curve for curve in curves if curve.x]:
        note = "Waiting for the other parties, since the previous record."
        yield Plot(
            "waiting", "Waiting", _STEP, Axis("seconds", zero=True, unit="seconds"), drawn, note
        )


def _accounts(run: ReadRun, parties: dict[str, ReadRun]) -> Iterator[Part]:
    rows = [
        [name, line.what, epsilon_text(line.epsilon, line.delta), format_delta(line.delta),
         right(line.figure)]
        for name, party in parties.items()
        for line in party.accounts
    ]  # fmt: skip
    if not rows:
        elsewhere = is_apart(parties) and run.job["privacy"].get("embedding_dp")
        nothing = "Nothing: the parties' messages are sent without protection."
        yield of_others(run.job) if elsewhere else nothing
        return
    columns = ["of", "for", "epsilon", "delta", "the best attacker"]
    yield Table(columns, rows)
    words = dict.fromkeys(
        line.figure.promise for party in parties.values() for line in party.accounts
    )
    yield Points([f"{word}: the best attacker is {MEANS[word]}." for word in words])
    yield returned(run.job)


def _epochs(job: Mapping[str, Any]) -> str:
    return f"{quantity(job['epochs'], 'epoch')} in batches of {job['batch_size']}"
