"""What parties on different machines agree on before they train or look together.

    begin    leader -> followers   the attempt, the run, what for, the key of the ids' digests
    apply    follower -> leader    its job, parts, ids and the steps it holds, for that attempt
    agreed   leader -> followers   the step to go on from, and which of their examples are used

The leader begins anew, with the next attempt, whenever a party has started again; whatever was
under way then is void. It compares, and refuses with one sentence; a follower keeps to its own
job, whatever the leader says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedveil.entropy import Secure
from fedveil.errors import DataInvalid, ExchangeError, FedveilError, MessageInvalid
from fedveil.link.channel import Exchange, Send, received
from fedveil.message import Message, Value, take
from fedveil.settings.differences import differences
from fedveil.vertical.apart import alignment
from fedveil.vertical.rows import Ids, Positions
from fedveil.vertical.split import SplitModel
from fedveil.vertical.task import SUBSETS, Subset

TRAIN = "train"
RUN_BYTES = 16


class Unfit(FedveilError):
    """A follower that cannot take part, for the reason that it is told too."""

    def __init__(self, follower: str, reason: str) -> None:
        self.follower = follower
        super().__init__(reason)


@dataclass(frozen=True, eq=False)
class Standing:
    """What a party brings: its copy of what must agree, its examples' ids, the steps it holds.

    `run` is the identity of the run that its folder holds; empty where that is still to come.
    """

    party: str
    job: Mapping[str, Any]
    parts: Mapping[str, Any]
    ids: Mapping[Subset, Ids]
    steps: tuple[int, ...] = (0,)
    run: bytes = b""


@dataclass(frozen=True, eq=False)
class Agreement:
    """What all parties hold to: the run, what for, the step, and this party's rows in order."""

    run: bytes
    purpose: str
    step: int
    order_seed: int
    positions: Mapping[Subset, Positions]
    notes: tuple[str, ...]

    def same_examples(self, other: Agreement) -> bool:
        return all(np.array_equal(self.positions[s], other.positions[s]) for s in SUBSETS)


def described(split: SplitModel) -> dict[str, Any]:
    """The parts and crossings of a model, in words that can be compared."""
    # A module is its owner's affair.
    parts = {part.name: asdict(replace(part, module=None)) for part in split.parts}
    for fields in parts.values():
        del fields["name"], fields["module"]
    return {"order": list(parts), **parts}


def lead(
    own: Standing, followers: tuple[str, ...], *, attempt: int, purpose: str, order_seed: int
) -> Exchange[Agreement]:
    """The leader's side; raises Unfit for a follower that cannot take part."""
    key = Secure().token(alignment.KEY_BYTES)
    begin: dict[str, Value] = {
        "kind": "begin",
        "attempt": attempt,
        "run": own.run,
        "purpose": purpose,
        "order_seed": order_seed,
        "key": key,
    }
    for follower in followers:
        yield Send(follower, begin)
    applications: dict[str, Message] = {}
    for follower in followers:
        message = yield from received(follower)
        while (message.get("kind"), message.get("attempt")) != ("apply", attempt):
            message = yield from received(follower)  # it was on its way when the attempt began
        _check_application(own, follower, message, purpose)
        applications[follower] = message
    try:
        aligned = {subset: _aligned(own, applications, subset, key) for subset in SUBSETS}
    except DataInvalid as error:
        raise ExchangeError(str(error)) from None
    steps = set(own.steps).intersection(*(_steps(message) for message in applications.values()))
    if not steps:
        raise ExchangeError("there is no step that all parties hold: start every party anew")
    for follower in followers:
        rows = {f"rows_{subset}": found[follower] for subset, (found, _) in aligned.items()}
        yield Send(follower, {"kind": "agreed", "step": max(steps), **rows})
    return Agreement(
        run=own.run,
        purpose=purpose,
        step=max(steps),
        order_seed=order_seed,
        positions={subset: found[own.party] for subset, (found, _) in aligned.items()},
        notes=tuple(note for _, notes in aligned.values() for note in notes),
    )


def follow(own: Standing, leader: str, begin: Message | None = None) -> Exchange[Agreement]:
    """A follower's side; `begin` is the leader's, where that has come already."""
    message = begin if begin is not None else (yield from received(leader))
    try:
        while True:
            if take(message, "kind", str) != "begin":
                raise MessageInvalid(f"it sent {message['kind']!r} where 'begin' was due")
            begin = message
            yield Send(leader, _application(own, begin))
            message = yield from received(leader)
            if take(message, "kind", str) == "agreed":
                return _understood(own, begin, message)
    except MessageInvalid as error:
        raise ExchangeError(f"{leader} does not agree as a leader does: {error}") from None


# --- what the leader makes of an application


def _check_application(own: Standing, follower: str, message: Message, purpose: str) -> None:
    try:
        job = json.loads(take(message, "job", str))
        parts = json.loads(take(message, "parts", str))
        run, steps = take(message, "run", bytes), _steps(message)
        for subset in SUBSETS:
            digests = take(message, f"ids_{subset}", np.ndarray)
            if digests.dtype != np.uint8 or digests.shape[1:] != (alignment.DIGEST_BYTES,):
                raise MessageInvalid(f"its {subset} ids are not digests")
    except (MessageInvalid, ValueError) as error:
        raise Unfit(follower, f"{follower} does not apply as a follower does: {error}") from None
    for what, theirs, mine in (("job", job, own.job), ("model", parts, own.parts)):
        for key, their, my in differences(theirs, json.loads(json.dumps(mine))):
            raise Unfit(
                follower,
                f"the {what} of {follower} is another one: {key} = {their} where {own.party} has "
                f"{my}",
            )
    _check_run(own, follower, run, steps, purpose)


def _check_run(own: Standing, follower: str, run: bytes, steps: set[int], purpose: str) -> None:
    if run not in (b"", own.run):
        raise Unfit(
            follower,
            f"{follower} goes on with another run than {own.party}: start all parties with "
            f"--resume and the folders of one run, or all without",
        )
    if not run and (max(own.steps) > 0 or purpose != TRAIN):
        raise Unfit(
            follower,
            f"{follower} has nothing of this run, which is at step {max(own.steps)}: start it "
            f"with --resume and the folder that it trained in",
        )


def _steps(message: Message) -> set[int]:
    steps = take(message, "steps", np.ndarray)
    if steps.dtype != np.int64 or steps.ndim != 1:
        raise MessageInvalid("its steps are not a row of whole numbers")
    return set(steps.tolist())


def _aligned(
    own: Standing, applications: Mapping[str, Message], subset: Subset, key: bytes
) -> alignment.Aligned:
    held = {own.party: alignment.digests(own.ids[subset], key)}
    for follower, message in applications.items():
        held[follower] = take(message, f"ids_{subset}", np.ndarray)
        if alignment.holds_twice(held[follower]):
            raise Unfit(follower, f"{follower} has a {subset} id twice")
    return alignment.align_digests(held, own.party, subset)


# --- what a follower says and hears


def _application(own: Standing, begin: Message) -> dict[str, Value]:
    key = take(begin, "key", bytes)
    if len(key) != alignment.KEY_BYTES:
        raise MessageInvalid(f"its key has {len(key)} bytes")
    return {
        "kind": "apply",
        "attempt": take(begin, "attempt", int),
        "job": json.dumps(own.job),
        "parts": json.dumps(own.parts),
        "run": own.run,
        "steps": np.array(own.steps, np.int64),
        **{f"ids_{subset}": alignment.digests(own.ids[subset], key) for subset in SUBSETS},
    }


def _understood(own: Standing, begin: Message, agreed: Message) -> Agreement:
    step, run = take(agreed, "step", int), take(begin, "run", bytes)
    if step not in own.steps:
        raise MessageInvalid(f"it goes on from step {step}, which {own.party} does not hold")
    if len(run) != RUN_BYTES:
        raise MessageInvalid(f"its run is named in {len(run)} bytes")
    rows = {subset: _checked_rows(own, subset, agreed) for subset in SUBSETS}
    return Agreement(
        run=run,
        purpose=take(begin, "purpose", str),
        step=step,
        order_seed=take(begin, "order_seed", int),
        positions=rows,
        notes=tuple(
            f"{subset}: {len(rows[subset]):,} of {len(own.ids[subset]):,} examples are held by "
            f"all parties, and no others are used"
            for subset in SUBSETS
            if 0 < len(own.ids[subset]) != len(rows[subset])
        ),
    )


def _checked_rows(own: Standing, subset: Subset, agreed: Message) -> Positions:
    rows: Positions = take(agreed, f"rows_{subset}", np.ndarray)
    held = len(own.ids[subset])
    if rows.dtype != np.int64 or rows.ndim != 1 or not len(rows):
        raise MessageInvalid(f"its {subset} rows are not a row of positions")
    if held and (rows.min() < 0 or rows.max() >= held or len(np.unique(rows)) != len(rows)):
        raise MessageInvalid(f"its {subset} rows are not some of the {held} that are here")
    return rows.copy()  # what came is read-only
