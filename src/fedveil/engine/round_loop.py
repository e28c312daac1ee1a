"""One round: carry the messages between the two halves, and count."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias, TypeVar, get_args

from fedveil.engine.executors.client_side import Answer
from fedveil.engine.executors.pool import Executor
from fedveil.entropy import Entropy
from fedveil.errors import MessageInvalid, ReportRejected, RoundVoid, RunStopped
from fedveil.message import Message, decode, encode
from fedveil.protections.base import (
    Aggregate,
    ClientId,
    OneReportRound,
    RoundContext,
    ServerRound,
)

T = TypeVar("T")

#: The phases that a protection may talk in, in their order; a lone report counts as `masked`.
Phase: TypeAlias = Literal["advertise", "share", "masked", "consistency", "unmask"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass
class Outcome:
    """What came of a round; `aggregate` is None where it is void, for the reason in `void`."""

    aggregate: Aggregate | None = None
    void: str | None = None
    dropped: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    withheld: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: The clients that a report has left: they have spent privacy, whatever became of it. Keys and
    #: shares, which say nothing about an update, are none.
    senders: set[ClientId] = field(default_factory=set)
    warnings: set[str] = field(default_factory=set)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


def play(
    server: ServerRound,
    executor: Executor,
    context: RoundContext,
    silent: Mapping[ClientId, str] | None = None,
) -> Outcome:
    """Drive one round to its end.

    A report that is refused, a client that withholds one, a client whose training raises and one
    that falls silent (by `silent`, which says from which phase on, or by itself) are counted and
    left out. A round in
    which every client that was asked fails ends the run.
    """
    silent = silent or {}
    outcome = Outcome()
    skipped: set[ClientId] = set()
    executor.open(context)
    opening = server.opening()
    messages: Mapping[ClientId, Message] | None = dict.fromkeys(context.cohort, opening)
    outcome.bytes_down = len(context.cohort) * context.model.nbytes
    try:
        while messages is not None:
            outcome.bytes_down += _encoded_bytes(messages)
            heard = {c: m for c, m in messages.items() if not _is_silent(c, m, silent)}
            skipped |= messages.keys() - heard.keys()
            answered: set[ClientId] = set()
            failed_before = outcome.failed.total()
            lone = isinstance(server, OneReportRound)
            for answer in executor.fold(heard, server) if lone else executor.ask(heard):
                answered.add(answer.client)
                _take(answer, phase_of(heard[answer.client]), server, outcome)
            skipped |= heard.keys() - answered
            outcome.dropped = len(skipped)
            if heard and outcome.failed.total() - failed_before == len(heard):
                reason, _ = outcome.failed.most_common(1)[0]
                raise RunStopped(f"every client of round {context.round} failed: {reason}")
            messages = _timed(outcome, server.advance)
        outcome.aggregate = _timed(outcome, server.aggregate)
    except RoundVoid as void:
        outcome.void = str(void)
    return outcome


def silent_clients(
    cohort: Sequence[ClientId], shares: Mapping[Phase, float], entropy: Entropy
) -> dict[ClientId, Phase]:
    """Who falls silent at which phase: of the cohort, the share that a fault plan gives it."""
    order = iter(entropy.permutation(len(cohort)))
    plan: dict[ClientId, Phase] = {}
    for phase in PHASES:
        for place in islice(order, round(shares.get(phase, 0.0) * len(cohort))):
            plan[cohort[place]] = phase
    return plan


def _is_silent(client: ClientId, message: Message, silent: Mapping[ClientId, str]) -> bool:
    return client in silent and PHASES.index(silent[client]) <= PHASES.index(phase_of(message))


def phase_of(message: Message) -> Phase:
    """The phase that a message opens; any other is the one before a lone report."""
    return next((phase for phase in PHASES if phase == message.get("phase")), "masked")


def _take(answer: Answer, phase: Phase, server: ServerRound, outcome: Outcome) -> None:
    outcome.seconds["training"] += answer.training_s
    outcome.seconds["protection"] += answer.protection_s
    outcome.seconds["aggregation"] += answer.aggregation_s
    outcome.warnings.update(answer.warnings)
    if answer.failed is not None:
        outcome.failed[answer.failed] += 1
    elif answer.withheld is not None:
        outcome.withheld[answer.withheld] += 1
    elif answer.report_bytes:
        outcome.bytes_up += answer.report_bytes
        outcome.senders.add(answer.client)
        if answer.rejected is not None:
            outcome.rejected[answer.rejected] += 1
    elif isinstance(answer.report, bytes | memoryview):
        report = answer.report
        outcome.bytes_up += len(report)
        if phase == "masked":
            outcome.senders.add(answer.client)
        try:
            _timed(outcome, lambda: server.receive(answer.client, decode(report)))
        except ReportRejected as rejected:
            outcome.rejected[rejected.reason] += 1
        except MessageInvalid as invalid:
            outcome.rejected[str(invalid)] += 1


def _timed(outcome: Outcome, call: Callable[[], T]) -> T:
    began = time.perf_counter()
    try:
        return call()
    finally:
        outcome.seconds["aggregation"] += time.perf_counter() - began


def _encoded_bytes(messages: Mapping[ClientId, Message]) -> int:
    """The bytes sent to clients; a message that is the same object for all is encoded once."""
    sizes: dict[int, int] = {}
    for message in messages.values():
        if id(message) not in sizes:
            sizes[id(message)] = len(encode(message))
    return sum(sizes[id(message)] for message in messages.values())
