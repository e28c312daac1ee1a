"""One protected round over Flower's grid: each phase out, its replies folded as they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedveil.errors import MessageInvalid, ReportRejected, RoundVoid
from fedveil.flower.app.reveal import METRICS, Means
from fedveil.flower.app.wire import OFFER, WITHHELD, number_of, wants_training
from fedveil.flower.exchange import exchange
from fedveil.flower.records import MESSAGE, encoded_message, encoded_records
from fedveil.message import Message, decode, encode
from fedveil.protections.base import Aggregate, ClientId, ServerRound

_LONGEST_REASON = 200
_NO_REPORT = "the reply is no report: the client's app runs without ProtectMod, or another's"


@dataclass
class RoundRecord:
    """What came of a round; its rejected, withheld and failed replies are counted by reason.

    `dropped`: clients that were asked and did not reply in time. `void`: why there is no
    aggregate; None where there is one.
    """

    round: int
    clients: int
    reports: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    withheld: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    void: str | None = None
    bytes_up: int = 0
    metrics: dict[str, float | int | list[int] | list[float]] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"round {self.round}: {self.reports} reports of {self.clients} clients"]
        for name in ("rejected", "withheld", "failed"):
            parts += [f"{n} {name} ({reason})" for reason, n in getattr(self, name).items()]
        if self.dropped:
            parts.append(f"{self.dropped} without a reply")
        if self.void:
            parts.append(self.void)
        return "; ".join(parts)


@dataclass(frozen=True)
class Invitation:
    """The messages that the inner strategy would send, and what goes out beside them.

    `offer`: one object for all of them, which Flower then stores once. `reveal`: the metrics that
    a reply may hold in clear.
    """

    messages: Mapping[ClientId, FlowerMessage]
    offer: ConfigRecord
    reveal: AbstractSet[str]
    weight_key: str
    timeout_s: float


class Play:
    """Drives one round to its end."""

    def __init__(
        self, server: ServerRound, grid: Grid, invitation: Invitation, record: RoundRecord
    ) -> None:
        self._server = server
        self._grid = grid
        self._invitation = invitation
        self._timeout_s = min(invitation.timeout_s, getattr(server, "deadline_s", float("inf")))
        self._means = Means(invitation.weight_key)
        self.record = record
        #: The clients that a report may have left: they have spent privacy, whatever became of it.
        self.senders: set[ClientId] = set()

    def run(self) -> Aggregate | None:
        """The aggregate; None where the round is void."""
        opening = self._server.opening()
        asked: Mapping[ClientId, Message] | None = dict.fromkeys(self._invitation.messages, opening)
        try:
            while asked is not None:
                self._phase(asked)
                asked = self._server.advance()
            aggregate = self._server.aggregate()
        except RoundVoid as void:
            self.record.void = str(void)
            return None
        self.record.reports = aggregate.reports
        self.record.metrics = self._means.record()
        return aggregate

    def _phase(self, asked: Mapping[ClientId, Message]) -> None:
        training = wants_training(next(iter(asked.values()), {}))
        messages = {number_of(m.metadata.dst_node_id): m for m in self._out(asked, training)}
        silent = set(asked)
        if training:
            self.senders |= silent
        for node, reply in exchange(self._grid, list(messages.values()), self._timeout_s):
            client = number_of(node)
            silent.discard(client)
            if reply.has_error():
                self.senders.discard(client)
                self._count_error(reply)
            else:
                self._fold(client, reply.content, training)
        self.record.dropped += len(silent)

    def _out(self, asked: Mapping[ClientId, Message], training: bool) -> Sequence[FlowerMessage]:
        """Flower's messages; what is the same for several clients is one object."""
        made: dict[tuple[int, int], RecordDict] = {}
        out = []
        for client, words in asked.items():
            inner = self._invitation.messages[client]
            key = id(words), id(inner.content) if training else 0
            if key not in made:
                records = encoded_records(encode(words))
                records[OFFER] = self._invitation.offer
                if training:
                    records.update(inner.content)
                made[key] = records
            out.append(
                FlowerMessage(
                    made[key],
                    inner.metadata.dst_node_id,
                    inner.metadata.message_type,
                    ttl=inner.metadata.ttl,
                    group_id=inner.metadata.group_id,
                )
            )
        return out

    def _fold(self, client: ClientId, content: RecordDict, training: bool) -> None:
        try:
            metrics = self._take_revealed(content) if training else MetricRecord()
            data = encoded_message(content)
            self.record.bytes_up += len(data)
            self._server.receive(client, decode(data))
        except ReportRejected as rejected:
            self.record.rejected[_short(rejected.reason)] += 1
        except MessageInvalid as invalid:
            reason = _NO_REPORT if MESSAGE not in content else str(invalid)
            self.record.rejected[_short(reason)] += 1
        else:
            self._means.add(metrics)

    def _take_revealed(self, content: RecordDict) -> MetricRecord:
        metrics = content.pop(METRICS, MetricRecord())
        if not isinstance(metrics, MetricRecord) or not set(metrics) <= self._invitation.reveal:
            raise MessageInvalid("the reply holds metrics in clear that were not asked for")
        return metrics

    def _count_error(self, reply: FlowerMessage) -> None:
        reason = _short(reply.error.reason or f"error {reply.error.code}")
        if reason.startswith(WITHHELD):
            self.record.withheld[reason.removeprefix(WITHHELD)] += 1
        else:
            self.record.failed[reason] += 1


def _short(reason: str) -> str:
    """An untrusted text, fit for a log."""
    text = reason if reason.isprintable() else repr(reason)
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."
