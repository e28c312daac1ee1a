"""One round of a simulation: carry the messages between the two halves, and count."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from fedveil.errors import MessageInvalid, ReportRejected, RoundVoid, RunStopped
from fedveil.message import Message, decode, encode
from fedveil.protections.base import Aggregate, ClientId, RoundContext, ServerRound
from fedveil.runtime.client_side import Answer
from fedveil.runtime.pool import Executor

T = TypeVar("T")


@dataclass
class Outcome:
    """What came of a round; `aggregate` is None where it is void, for the reason in `void`."""

    aggregate: Aggregate | None = None
    void: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    withheld: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    #: The clients that something left: they have spent privacy, whatever became of it.
    senders: set[ClientId] = field(default_factory=set)
    warnings: set[str] = field(default_factory=set)
    seconds: Counter[str] = field(default_factory=Counter)


def play(server: ServerRound, executor: Executor, context: RoundContext) -> Outcome:
    """Drive one round to its end.

    A report that is refused, a client that withholds one and a client whose training raises are
    counted and left out. A round in which every client fails ends the run.
    """
    outcome = Outcome()
    executor.open(context.round, context.model)
    opening = server.opening()
    messages: Mapping[ClientId, Message] | None = dict.fromkeys(context.cohort, opening)
    outcome.bytes_down = len(context.cohort) * context.model.nbytes
    while messages is not None:
        outcome.bytes_down += _encoded_bytes(messages)
        for answer in executor.ask(messages):
            _take(answer, server, outcome)
        if outcome.failed.total() == len(context.cohort):
            reason, _ = outcome.failed.most_common(1)[0]
            raise RunStopped(f"every client of round {context.round} failed: {reason}")
        messages = _timed(outcome, server.advance)
    try:
        outcome.aggregate = _timed(outcome, server.aggregate)
    except RoundVoid as void:
        outcome.void = str(void)
    return outcome


def _take(answer: Answer, server: ServerRound, outcome: Outcome) -> None:
    outcome.seconds["training"] += answer.training_s
    outcome.seconds["protection"] += answer.protection_s
    outcome.warnings.update(answer.warnings)
    if answer.failed is not None:
        outcome.failed[answer.failed] += 1
    elif answer.withheld is not None:
        outcome.withheld[answer.withheld] += 1
    elif isinstance(answer.report, bytes | memoryview):
        report = answer.report
        outcome.bytes_up += len(report)
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
