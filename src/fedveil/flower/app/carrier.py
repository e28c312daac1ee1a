"""Sends a protected round's messages over Flower's grid, inside messages of the user's app."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedveil.base.message import Message, encode
from fedveil.errors import MessageInvalid
from fedveil.flower.app.clear_metrics import METRICS
from fedveil.flower.app.field_names import OFFER, WITHHELD, number_of
from fedveil.flower.exchange import UNREADABLE, exchange, may_have_reported
from fedveil.flower.records import MESSAGE, encoded_message, encoded_records
from fedveil.rounds import outcomes
from fedveil.rounds.loop import Carrier, shared
from fedveil.rounds.outcomes import Answer, ClientId

_NO_REPORT = "the reply is no report: the client's app runs without ProtectMod, or another's"


@dataclass
class AppCarrier(Carrier):
    """Sends the messages of one round to the clients, and yields the replies as they arrive.

    A round consists of one or more phases. In each phase, the server sends one message to each
    client that is still in the round, and receives its reply. Clients train in only one phase,
    `trains`.

    `invited` are the messages of the user's strategy. Their content is sent in the training phase.
    `offer` has the round's settings, and is part of every message. `reveal` names the metrics that
    a reply may contain in clear, and `metrics` has the values that clients have sent. `timeout_s`
    is the time limit of each phase.
    """

    grid: Grid
    invited: Mapping[ClientId, FlowerMessage]
    offer: ConfigRecord
    reveal: AbstractSet[str]
    trains: str
    timeout_s: float
    metrics: dict[ClientId, MetricRecord] = field(default_factory=dict)

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        training = phase == self.trains
        out = self._out(messages, training)
        for at, reply in exchange(self.grid, out, self.timeout_s):
            client = number_of(out[at].metadata.dst_node_id)
            answer = self._read(client, reply, training)
            if answer is not None:
                yield answer

    def _out(self, asked: Mapping[ClientId, Message], training: bool) -> Sequence[FlowerMessage]:
        out = []
        for words, clients in shared(asked):
            encoded, made = encode(words), list[tuple[RecordDict, RecordDict]]()
            for client in clients:
                inner = self.invited[client]
                if not made or (training and inner.content is not made[-1][0]):
                    records = encoded_records(encoded)
                    records[OFFER] = self.offer
                    if training:
                        records.update(inner.content)
                    made.append((inner.content, records))
                out.append(
                    FlowerMessage(
                        made[-1][1],
                        inner.metadata.dst_node_id,
                        inner.metadata.message_type,
                        ttl=inner.metadata.ttl,
                        group_id=inner.metadata.group_id,
                    )
                )
        return out

    def _read(self, client: ClientId, reply: FlowerMessage | None, training: bool) -> Answer | None:
        if reply is None:
            return outcomes.Unreached(client)
        if reply.has_error():
            if may_have_reported(reply):
                return None
            reason = reply.error.reason or f"error {reply.error.code}"
            if reason.startswith(WITHHELD):
                return outcomes.Withheld(client, outcomes.short(reason.removeprefix(WITHHELD)))
            return outcomes.Failed(client, outcomes.short(reason))
        content = reply.content
        try:
            if training:
                self.metrics[client] = self._take_revealed(content)
            return outcomes.Report(client, encoded_message(content))
        except MessageInvalid as invalid:
            named = MESSAGE in content or UNREADABLE in content
            reason = str(invalid) if named else _NO_REPORT
            return outcomes.Refused(client, 0, outcomes.short(reason))

    def _take_revealed(self, content: RecordDict) -> MetricRecord:
        metrics = content.pop(METRICS, MetricRecord())
        if not isinstance(metrics, MetricRecord) or not set(metrics) <= self.reveal:
            raise MessageInvalid("the reply holds metrics in clear that were not asked for")
        return metrics
