"""The records of a run, one per round: counts, reasons for missing reports, and validation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np

from fedveil.base.example_arrays import Shape
from fedveil.errors import MessageInvalid, RunStopped
from fedveil.privacy.guarantee_strength import Promise
from fedveil.protections.base import Protection, State
from fedveil.protections.description import Whose
from fedveil.protections.own_errors import job_line, own_errors
from fedveil.record.metric_names import CLIENTS, LOSS, MEASURES, Better, measures
from fedveil.record.recorder import LOST, NEEDED, SEVERAL, UNUSABLE, Record
from fedveil.rounds.loop import Outcome

#: The key for the number of canaries among a round's clients and reports.
CANARIES = "canaries"

#: The key for the trainer's name, if the run knows it.
TRAINER = "trainer"

#: The key for what each machine of a cluster did: clients, seconds of work, and the idle share of
#: its time. And the key for the number of clients that trained again because theirs was lost.
MACHINES = "machines"
RETRAINED = "retrained"
#: Prefix of the keys for the seconds of a round and of its parts.
SECONDS = "seconds_"
#: The keys of fedveil's own values. A task's metrics and a protection's figures need other names.
_TAKEN = {*NEEDED, *CLIENTS, MEASURES, TRAINER, CANARIES, MACHINES, RETRAINED}
_NAME = r"[a-z][a-z0-9_]*"
_NOT_FINITE = "not finite"


def counted(outcome: Outcome) -> dict[str, Any]:
    """Return a round's counts for its record: clients by outcome and reason, and bytes sent."""
    arrived = len(outcome.arrived)
    return {
        "rejected": dict(outcome.rejected),
        "withheld": dict(outcome.withheld),
        "failed": dict(outcome.failed),
        UNUSABLE: dict(outcome.unusable),
        "dropped": len(outcome.dropped),
        "void": str(outcome.void) if outcome.void else None,
        "bytes_up": outcome.bytes_up,
        "bytes_up_per_client": outcome.bytes_up / arrived if arrived else 0,
        "bytes_down": outcome.bytes_down,
    }


def is_free(name: object) -> bool:
    """Return True if a user's metric or protection may add `name` as a key to a round's record.

    A valid name consists of small letters, digits and underscores. fedveil must not use it as a key
    of its own.
    """
    known = isinstance(name, str) and bool(re.fullmatch(_NAME, name))
    return known and name not in _TAKEN and not str(name).startswith(SECONDS)


def figures_of(protection: Protection, state: State, metrics: Collection[str]) -> dict[str, float]:
    """Return the numbers that the protection adds to a round's record (`Protection.shown`).

    `state` is the protection's state at the round's start, and `metrics` are the names of the
    model's metrics. Raises `RunStopped` if a value is not a number, or if its name is invalid
    (`is_free`) or the name of a metric.
    """
    with own_errors(protection):
        found = dict(protection.shown(state))
    for name, value in found.items():
        where = f"{job_line(protection)}: shown() returns {name!r}"
        if not is_free(name) or name in (LOSS, *metrics):
            raise RunStopped(
                f"{where}, which cannot be a record's key. Use small letters, digits and "
                f"underscores, and no name of a metric or of a round's own figures"
            )
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise RunStopped(f"{where} as a {type(value).__name__}, not a number")
        found[name] = float(value)
    return found


def several_inputs(shape: Shape) -> Iterator[str]:
    """Yield a line for the event log that names an example's arrays, if it has several.

    Yields nothing if `shape`, the shape of one example, has only one array.
    """
    if isinstance(shape, dict):
        yield f"{SEVERAL}{', '.join(shape)}"


def without_report(record: Record) -> str | None:
    """Return the reason why a round has no usable report, or None if it has one."""
    return None if _usable(record) else _reasons([record])


def without_result(records: Sequence[Record], stopped: str | None) -> str | None:
    """Return the reason why a run has no result, or None if it has one.

    A run has a result if any round has a usable report. `stopped` says why the run ended early, or
    is None.
    """
    if any(_usable(record) for record in records):
        return None
    if not records:
        return f"the run ended before its first round: {stopped}"
    reasons = _reasons(records)
    advice = "; a lower training.lr may help" if _NOT_FINITE in reasons else ""
    rounds = "the only round" if len(records) == 1 else f"any of {len(records)} rounds"
    ended = "" if stopped is None else f"; {stopped}"
    return f"no report was usable in {rounds}: {reasons}{advice}{ended}"


def all_failed(number: int, reason: str) -> str:
    """Return the sentence that ends a run because every client failed in round `number`."""
    said = f"every client of round {number} failed: {reason}"
    return f"{said}; resuming fails again until this is fixed"


def check(records: Sequence[Record], rounds: int) -> None:
    """Raise `MessageInvalid` unless `records` are valid records of exactly `rounds` rounds."""
    if len(records) != rounds:
        raise MessageInvalid(f"it has {len(records)} records after {rounds} rounds")
    for number, record in enumerate(records, start=1):
        quality = {LOSS, *measures(record)}
        if not set(record) >= set(NEEDED) or quality & set(record) not in (set(), quality):
            raise MessageInvalid(f"the record of round {number} lacks a key")
        several = [name for name, value in record.items() if isinstance(value, list)]
        wrong = [name for name, value in record.items() if not _fits(name, value)]
        wrong += [name for name in several if name in quality or _is_one(name)]
        if wrong or record["round"] != number:
            raise MessageInvalid(
                f"the record of round {number} has an invalid {[*wrong, 'round'][0]}"
            )


def _usable(record: Record) -> bool:
    reports = record["reports"] - record.get(CANARIES, 0)
    return bool(reports > sum(record[UNUSABLE].values()))


def _fits(name: str, value: object) -> bool:
    if name == "in_clear":
        return isinstance(value, list) and all(isinstance(text, str) for text in value)
    if name in (*LOST, UNUSABLE):
        return isinstance(value, Mapping) and all(type(times) is int for times in value.values())
    if name.startswith("promise_"):
        return value in get_args(Promise)
    if name == "unit":
        return value in get_args(Whose)
    if name in ("void", "randomness"):
        return isinstance(value, str) or (value is None and name == "void")
    if name == "rests_on_server":
        return type(value) is bool
    if name == TRAINER:
        return isinstance(value, str)
    if name == MACHINES:
        return isinstance(value, Mapping) and all(
            isinstance(of, list) and len(of) == 3 and all(_fits(name="", value=v) for v in of)
            for of in value.values()
        )
    if name == MEASURES:
        return isinstance(value, Mapping) and set(value.values()) <= set(get_args(Better))
    if isinstance(value, list):
        return all(_fits(name, item) for item in value)
    return type(value) is int or (type(value) is float and name != "round")


def _is_one(name: str) -> bool:
    return (name in NEEDED and name != "in_clear") or name.startswith(SECONDS)


def _reasons(records: Sequence[Record]) -> str:
    times: Counter[str] = Counter()
    for record in records:
        for kind in (*LOST, UNUSABLE):
            times.update(record[kind])
    if not times:
        silent = sum(record["dropped"] for record in records)
        nobody = sum(not record["clients"] for record in records)
        times.update({"the client dropped out": silent} if silent else {})
        times.update({"no client was drawn": nobody} if nobody else {})
        times.update(record["void"] for record in records if record["void"] and record["clients"])
    return ", ".join(f"{reason} ({number}x)" for reason, number in times.most_common(3))
