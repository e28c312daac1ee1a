"""The page of a vertical run: what its parties' folders hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedveil.pages.ending import Ending, vertical_ending
from fedveil.pages.page import Code, Fold, Page, Part, Points, Section
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.promised import right
from fedveil.pages.read_run import ReadRun, read_party
from fedveil.pages.run_page import found, repeat
from fedveil.pages.table import Table
from fedveil.privacy.loss import format_delta
from fedveil.privacy.promise import MEANS, told
from fedveil.record.recorder import Record
from fedveil.record.run_folder import EVENTS, JOB, METRICS

_STEP = Axis("step")


def is_vertical(run: ReadRun) -> bool:
    """Whether a folder's job is one of split training."""
    return "task" in run.job and "protection" not in run.job


def parties_of(run: ReadRun) -> dict[str, ReadRun]:
    """What each party in a run's folder has written: all of them, or the one that was here."""
    folders = sorted(path.parent for path in run.folder.glob(f"*/{METRICS}"))
    return {folder.name: read_party(run, folder) for folder in folders}


def leader_of(run: ReadRun, parties: dict[str, ReadRun]) -> ReadRun:
    """The party whose records have the task's figures, or any other that is here."""
    looked = (party for party in parties.values() if any("test_loss" in r for r in party.records))
    return next(looked, next(iter(parties.values()), run))


def vertical_page(run: ReadRun) -> Page:
    """What was trained by whom, how it went, and what every party's account says."""
    parties = parties_of(run)
    leader = leader_of(run, parties)
    job = run.job
    lead = (
        f"{job['task']['name']}, {' and '.join(parties) or 'nobody yet'}: {job['epochs']} epochs "
        f"in batches of {job['batch_size']}; {leader.ended or 'it goes on, or was killed'}."
    )
    sections = [
        Section("Every step", [*_losses(parties, leader), *_looks(leader)]),
        Section("What was promised", list(_accounts(parties))),
        Section("Bytes and time", [*_crossed(parties), *_waited(parties)]),
        *found(run),
        *repeat(run, f"fedveil vertical run {JOB}"),
    ]
    events = [
        Fold(f"{EVENTS} of {name}", [Code("\n".join(party.events))])
        for name, party in parties.items()
    ]
    sections.append(Section("What every party wrote down", events))
    return Page(str(job["name"]), [lead, *answers(run)], sections)


def answers(run: ReadRun) -> Ending:
    """How good, what was promised, and what to do next."""
    parties = parties_of(run)
    accounts = [line for party in parties.values() for line in party.accounts]
    return vertical_ending(run, leader_of(run, parties), accounts)


def _steps(records: Sequence[Record], key: str) -> tuple[list[int], list[float]]:
    """The steps whose record has that figure, counted from the first epoch on, and the figure."""
    having = [record for record in records if key in record and "step" in record]
    return (
        [record["epoch"] * record["steps"] + record["step"] for record in having],
        [record[key] for record in having],
    )


def _losses(parties: dict[str, ReadRun], leader: ReadRun) -> Iterator[Plot]:
    x, y = _steps(leader.records, "loss")
    if x:
        curve = Curve("loss", x, y)
        yield Plot("loss", "Training loss", _STEP, Axis("loss"), [curve], "Of the steps between.")


def _looks(leader: ReadRun) -> Iterator[Plot]:
    looks = [record for record in leader.records if "look" in record]
    names = dict.fromkeys(key for look in looks for key in look if key.startswith("test_"))
    for key in names:
        name = key.removeprefix("test_")
        having = [look for look in looks if key in look]
        curve = Curve(name, [r["look"] for r in having], [r[key] for r in having], marks=True)
        note = "On the held-out examples."
        yield Plot(f"held-out-{name}", name.capitalize(), _STEP, Axis(name), [curve], note)


def _crossed(parties: dict[str, ReadRun]) -> Iterator[Plot]:
    curves = [
        Curve(f"{name}: {what}", *_steps(party.records, f"bytes_{what}_per_step"))
        for name, party in parties.items()
        for what in ("sent", "received")
    ]
    if drawn := [curve for curve in curves if curve.x]:
        yield Plot("bytes", "Bytes", _STEP, Axis("bytes a step", zero=True), drawn)


def _waited(parties: dict[str, ReadRun]) -> Iterator[Plot]:
    curves = [
        Curve(name, *_steps(party.records, "seconds_waiting")) for name, party in parties.items()
    ]
    if drawn := [curve for curve in curves if curve.x]:
        note = "For the other parties, since the line before."
        yield Plot("waiting", "Waiting", _STEP, Axis("seconds", zero=True), drawn, note)


def _accounts(parties: dict[str, ReadRun]) -> Iterator[Part]:
    rows = [
        [name, line.what, told(line.epsilon, line.delta), format_delta(line.delta),
         right(line.figure)]
        for name, party in parties.items()
        for line in party.accounts
    ]  # fmt: skip
    if not rows:
        yield "Nothing: what crosses between the parties crosses as it is."
        return
    columns = ["of", "for", "epsilon", "delta", "an attacker is right at most"]
    yield Table(columns, rows)
    words = dict.fromkeys(
        line.figure.promise for party in parties.values() for line in party.accounts
    )
    yield Points([f"{word}: the best attacker is {MEANS[word]}." for word in words])
    yield (
        "Parts whose output crosses without EmbeddingDP, and the gradients that come back, have no "
        "account: they cross as they are."
    )
