"""The handshake of parties on different machines before they train, evaluate or predict.

    begin    leader -> followers   the attempt, the run, the purpose, the leader's number of ids
    apply    follower -> leader    the follower's job, parts, number of ids and saved steps
             (`alignment`)         the common examples, unless all have saved the same ones
    agreed   leader -> followers   the step to resume from, and the follower's rows to use

Whenever a party has restarted, the leader begins a new attempt. A follower uses only its own job.
If it has not saved the common examples, and ids are aligned by `intersection`, the leader must
prove to it that the leader has sent the id of every common example.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from fedveil.base.message import MOST_CARRIED, Message, Value, quoted, take, take_array
from fedveil.base.untrusted import MALFORMED, MOST_JOB_BYTES
from fedveil.entropy import Secure
from fedveil.errors import DataInvalid, ExchangeError, FewCommon, MessageInvalid, Unfit
from fedveil.link.channel import Exchange, Send, received
from fedveil.rounds.outcomes import short
from fedveil.settings.differences import differences
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.remote import alignment, intersection
from fedveil.vertical.remote.found_examples import NAME_BYTES, FoundExamples
from fedveil.vertical.remote.handshake_state import Agreement, Standing, last_common_step
from fedveil.vertical.rows import Positions, with_hint
from fedveil.vertical.split import SplitModel
from fedveil.vertical.task import SUBSETS, Subset

TRAIN = "train"
RUN_BYTES = 16
#: The largest number of saved steps in an application, and of ids: one message must be able to
#: number them, with 8 bytes for each.
_MOST_STEPS, _MOST_IDS = 1 << 20, MOST_CARRIED // 8

#: The messages that a leader may send to a follower, by the follower's state since `begin`.
_DUE: Mapping[str, frozenset[str]] = {
    "new": frozenset({"begin"}),
    "applied, to exchange ids": frozenset({"begin", "blinded", "agreed"}),
    "applied": frozenset({"begin", "agreed"}),
    "exchanged": frozenset({"begin", "agreed"}),
}


def described(split: SplitModel) -> dict[str, Any]:
    """Describe the parts of a split model as plain data, so that parties can compare them."""
    # Only the owner has a module or a task's own optimiser.
    parts = {part.name: asdict(replace(part, module=None)) for part in split.parts}
    for part in split.parts:
        del parts[part.name]["name"], parts[part.name]["module"]
        if not isinstance(part.optimizer, Optimizer):
            parts[part.name]["optimizer"] = "a function"
    return {"order": list(parts), **parts}


def lead(
    own: Standing,
    followers: tuple[str, ...],
    *,
    attempt: int,
    purpose: str,
    order_seed: int,
    keep_run: Callable[[], None] = lambda: None,
) -> Exchange[Agreement]:
    """Run the leader's side of the handshake. Raises Unfit if a follower cannot take part.

    `own` is the leader's state. `attempt` numbers the handshakes of a session, and `order_seed`
    determines the order of training. `keep_run` is called before any follower saves the run's
    identity, so that the leader can save it first.
    """
    key = Secure().token(alignment.KEY_BYTES) if own.align_by == "digests" else b""
    begin: dict[str, Value] = {
        "kind": "begin",
        "attempt": attempt,
        "run": own.run,
        "purpose": purpose,
        "order_seed": order_seed,
        "align_by": own.align_by,
        **({"key": key} if key else {}),
        "examples": b"" if own.examples is None else own.examples.name,
        **own.counts,
    }
    for follower in followers:
        yield Send(follower, begin)
    applications: dict[str, Message] = {}
    for follower in followers:
        message = yield from alignment.application(follower, attempt)
        _check_application(own, follower, message, purpose)
        applications[follower] = message
    theirs = {follower: _steps(message) for follower, message in applications.items()}
    step = last_common_step({own.party: set(own.steps), **theirs})
    if own.examples is not None and all(
        message["examples"] == own.examples.name for message in applications.values()
    ):
        examples = own.examples
        aligned: Mapping[Subset, alignment.Aligned] = {}
        proofs: Mapping[str, Mapping[str, Value]] = {}
    else:
        aligned, proofs = yield from _aligned(own, applications, key, attempt)
        found = {subset: positions[own.party] for subset, (positions, _) in aligned.items()}
        examples = FoundExamples(Secure().token(NAME_BYTES), found)
    keep_run()
    for follower in followers:
        rows = {f"rows_{subset}": positions[follower] for subset, (positions, _) in aligned.items()}
        said: dict[str, Value] = {"kind": "agreed", "step": step, "examples": examples.name}
        yield Send(follower, {**said, **rows, **proofs.get(follower, {})})
    return Agreement(
        run=own.run,
        purpose=purpose,
        step=step,
        order_seed=order_seed,
        examples=examples,
        notes=tuple(note for _, notes in aligned.values() for note in notes),
    )


def follow(own: Standing, leader: str, begin: Message | None = None) -> Exchange[Agreement]:
    """Run a follower's side of the handshake. Raises ExchangeError for a message that it rejects.

    `begin` is the leader's first message, if it was already received.
    """
    message = begin if begin is not None else (yield from received(leader))
    state = "new"
    exchanged: Mapping[Subset, intersection.Exchanged] = {}
    try:
        while True:
            kind = take(message, "kind", str)
            if kind not in _DUE[state]:
                due = " or ".join(f"{due!r}" for due in sorted(_DUE[state]))
                raise MessageInvalid(f"it sent {quoted(kind)} where {due} was due")
            if kind == "begin":
                own.check(_purpose(message))
                begin, exchanged = message, {}
                yield Send(leader, _application(own, begin))
                exchanges = own.align_by == "intersection"
                state = "applied, to exchange ids" if exchanges else "applied"
                message = yield from received(leader)
            elif kind == "blinded":
                assert begin is not None, "nothing else is due before"
                if (many := _brought(own, leader, _counts(begin))) > own.most_ids:
                    raise MessageInvalid(f"it {_too_many(many, own)}")
                attempt, state = take(begin, "attempt", int), "exchanged"
                message, exchanged = yield from intersection.follow(
                    own.ids, _counts(begin), leader, attempt, message
                )
            else:
                assert begin is not None, "nothing else is due before"
                return _understood(own, begin, message, exchanged)
    except FewCommon as error:
        told = f"{leader} broke the handshake: {error}"
        raise ExchangeError(with_hint(told, own.id_hint), told) from None
    except MessageInvalid as error:
        raise ExchangeError(f"{leader} broke the handshake: {error}") from None


# --- the leader's checks of an application


def _check_application(own: Standing, follower: str, message: Message, purpose: str) -> None:
    try:
        job, parts = _plain(message, "job"), _plain(message, "parts")
        run, steps = take(message, "run", bytes), _steps(message)
        take(message, "examples", bytes)
        counts = _counts(message)
        if own.align_by == "digests":
            for subset, count in counts.items():
                shape = (count, alignment.DIGEST_BYTES)
                take_array(message, f"digests_{subset}", "uint8", shape)
    except (MessageInvalid, *MALFORMED) as error:
        raise Unfit(follower, f"{follower} sent an invalid application: {error}") from None
    for what, theirs, mine in (("job", job, own.job), ("model", parts, own.parts)):
        for key, their, my in differences(theirs, json.loads(json.dumps(mine))):
            both = f"{short(key)} = {their}, but {own.party} has {my}"
            raise Unfit(follower, f"the {what} of {follower} differs: {both}")
    if (many := sum(counts.values())) > own.most_ids:
        raise Unfit(follower, f"{follower} {_too_many(many, own)}")
    _check_run(own, follower, run, steps, purpose)


def _check_run(own: Standing, follower: str, run: bytes, steps: set[int], purpose: str) -> None:
    if run not in (b"", own.run):
        raise Unfit(
            follower,
            f"{follower} resumes another run than {own.party}: start all parties with "
            f"--resume and the folders of one run, or all without",
        )
    if not run and (max(own.steps) > 0 or purpose != TRAIN):
        raise Unfit(
            follower,
            f"{follower} does not have this run, which is at step {max(own.steps)}: start "
            f"it with --resume and the folder that it trained in",
        )


def _plain(message: Message, name: str) -> Any:
    """Decode the JSON in the field `name`. Raises MessageInvalid if it is no text or too long."""
    text = take(message, name, str)
    if len(text) > MOST_JOB_BYTES:
        raise MessageInvalid(f"its {name} has {len(text):,} characters")
    return json.loads(text)


def _purpose(message: Message) -> str:
    purpose: str = take(message, "purpose", str)
    if short(purpose) != purpose:
        raise MessageInvalid(f"its purpose is {quoted(purpose)}")
    return purpose


def _steps(message: Message) -> set[int]:
    steps = take(message, "steps", np.ndarray)
    if steps.dtype != np.int64 or steps.ndim != 1 or len(steps) > _MOST_STEPS:
        raise MessageInvalid("its steps are not an array of whole numbers")
    return set(steps.tolist())


def _counts(message: Message) -> dict[Subset, int]:
    counts = {subset: take(message, f"ids_{subset}", int) for subset in SUBSETS}
    if min(counts.values()) < 0 or max(counts.values()) > _MOST_IDS:
        raise MessageInvalid(f"its number of ids is outside [0, {_MOST_IDS:,}]")
    return counts


def _too_many(many: int, own: Standing) -> str:
    return (
        f"brings {many:,} ids, and would learn of each whether {own.party} has it, but "
        f"alignment.most_ids = {own.most_ids:,}"
    )


def _brought(own: Standing, party: str, counts: Mapping[Subset, int]) -> int:
    """Add the numbers of ids in `counts` to `party`'s saved total, and return the new total."""
    own.brought[party] = own.brought.get(party, 0) + sum(counts.values())
    own.keep_brought()
    return own.brought[party]


def _aligned(
    own: Standing, applications: Mapping[str, Message], key: bytes, attempt: int
) -> Exchange[tuple[Mapping[Subset, alignment.Aligned], Mapping[str, Mapping[str, Value]]]]:
    """Find the common examples of all parties at the leader, by digests or by intersection.

    Returns each subset's common examples, and the message fields that prove them to each follower.
    `applications` are the followers' messages "apply", and `key` the key of the digests.
    """
    counts = {follower: _counts(message) for follower, message in applications.items()}
    try:
        if own.align_by == "digests":
            return {s: _aligned_by_digests(own, applications, s, key) for s in SUBSETS}, {}
        for follower, held in counts.items():
            if (many := _brought(own, follower, held)) > own.most_ids:
                raise Unfit(follower, f"{follower} {_too_many(many, own)}")
        found = yield from intersection.lead(own.ids, counts, attempt)
        aligned = {}
        proofs: dict[str, dict[str, Value]] = {follower: {} for follower in counts}
        for subset in SUBSETS:
            sizes = {own.party: len(own.ids[subset])}
            sizes |= {follower: held[subset] for follower, held in counts.items()}
            aligned[subset] = alignment.align_found(
                found.places[subset], sizes, own.party, subset, own.order_secret
            )
            if found.places[subset]:
                own.check_common(subset, len(aligned[subset][0][own.party]))
            for follower, fields in proofs.items():
                fields |= found.proof(subset, follower, aligned[subset][0][follower])
        return aligned, proofs
    except FewCommon as error:
        # The hint reveals something about this party's ids, so it is not sent.
        raise ExchangeError(with_hint(str(error), own.id_hint), told=str(error)) from None
    except DataInvalid as error:
        raise ExchangeError(str(error)) from None


def _aligned_by_digests(
    own: Standing, applications: Mapping[str, Message], subset: Subset, key: bytes
) -> alignment.Aligned:
    held = {own.party: alignment.digests(own.ids[subset], key)}
    for follower, message in applications.items():
        held[follower] = take(message, f"digests_{subset}", np.ndarray)
        if alignment.holds_twice(held[follower]):
            raise Unfit(follower, f"{follower} has a {subset} id twice")
    return alignment.align_digests(held, own.party, subset, own.order_secret)


# --- a follower's messages and checks


def _application(own: Standing, begin: Message) -> dict[str, Value]:
    if (align_by := take(begin, "align_by", str)) != own.align_by:
        raise MessageInvalid(f"it aligns by {quoted(align_by)}, but this job by {own.align_by!r}")
    by_digests = own.align_by == "digests"
    key = take(begin, "key", bytes) if by_digests else b""
    if by_digests and len(key) != alignment.KEY_BYTES:
        raise MessageInvalid(f"its key has {len(key)} bytes")
    if (many := sum(_counts(begin).values())) > own.most_ids:
        raise MessageInvalid(f"it {_too_many(many, own)}")
    known = own.known_by(take(begin, "examples", bytes))
    digests = {f"digests_{s}": alignment.digests(own.ids[s], key) for s in SUBSETS if by_digests}
    return {
        "kind": "apply",
        "attempt": take(begin, "attempt", int),
        "job": json.dumps(own.job),
        "parts": json.dumps(own.parts),
        "run": own.run,
        "steps": np.array(own.steps, np.int64),
        "examples": b"" if known is None else known.name,
        **own.counts,
        **digests,
    }


def _understood(
    own: Standing,
    begin: Message,
    agreed: Message,
    exchanged: Mapping[Subset, intersection.Exchanged],
) -> Agreement:
    step, run = take(agreed, "step", int), take(begin, "run", bytes)
    if step not in own.steps:
        raise MessageInvalid(f"it resumes from step {step}, which {own.party} has not saved")
    if len(run) != RUN_BYTES:
        raise MessageInvalid(f"its run has a name of {len(run)} bytes")
    if own.run not in (b"", run):
        raise MessageInvalid(f"it resumes another run than {own.party} has")
    if (order_seed := take(begin, "order_seed", int)) < 0:
        raise MessageInvalid(f"its seed of the order is {order_seed}")
    name = take(agreed, "examples", bytes)
    if len(name) != NAME_BYTES:
        raise MessageInvalid(f"its examples have a name of {len(name)} bytes")
    examples = own.known_by(name)
    known = examples is not None
    if examples is None:
        leads = _counts(begin)
        rows = {s: _checked_rows(own, s, agreed, leads[s], exchanged.get(s)) for s in SUBSETS}
        for subset in exchanged:
            own.check_common(subset, len(rows[subset]))
        examples = FoundExamples(name, rows)
    return Agreement(
        run=run,
        purpose=_purpose(begin),
        step=step,
        order_seed=order_seed,
        examples=examples,
        notes=(*(() if known else _left_out(own, examples)), *_guesses(own, exchanged)),
    )


def _guesses(own: Standing, exchanged: Mapping[Subset, intersection.Exchanged]) -> Iterator[str]:
    """Yield a log sentence on how many ids, which may be guesses, each other party has sent."""
    for party, many in own.brought.items() if exchanged else ():
        yield (
            f"{party} has brought {many:,} ids in all, and knows of each whether {own.party} has "
            f"it: alignment.most_ids = {own.most_ids:,}"
        )


def _left_out(own: Standing, examples: FoundExamples) -> Iterator[str]:
    for subset, rows in examples.positions.items():
        if 0 < len(own.ids[subset]) != len(rows):
            yield (
                f"{subset}: only the {len(rows):,} of {len(own.ids[subset]):,} examples "
                f"that all parties have are used"
            )


def _checked_rows(
    own: Standing,
    subset: Subset,
    agreed: Message,
    leads: int,
    exchanged: intersection.Exchanged | None,
) -> Positions:
    """Return the positions of the common examples of `subset` in this party's data, from `agreed`.

    `leads` is the leader's number of ids. `exchanged` is the record of an exchange of ids, or None.
    Raises `MessageInvalid` if `agreed` is invalid, or does not prove that the leader sent the ids
    of these examples although ids had to be exchanged.
    """
    rows: Positions = take(agreed, f"rows_{subset}", np.ndarray)
    held = len(own.ids[subset])
    if rows.dtype != np.int64 or rows.ndim != 1 or not len(rows):
        raise MessageInvalid(f"its {subset} rows are not an array of positions")
    if held and (rows.min() < 0 or rows.max() >= held or len(np.unique(rows)) != len(rows)):
        raise MessageInvalid(f"its {subset} rows are not distinct positions among the {held} here")
    if not held or own.align_by == "digests":
        return rows.copy()  # the array received is read-only
    if exchanged is not None:
        exchanged.check(subset, rows, agreed)
        return exchanged.order[rows]
    if leads or own.least_common:
        said = "before the exchange of ids was complete" if leads else "without an id of its own"
        raise MessageInvalid(f"it claims {len(rows)} {subset} examples {said}")
    return rows.copy()
