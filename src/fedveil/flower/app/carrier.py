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
from fedveil.flower.exchange import exchange, reply_was_lost
from fedveil.flower.records import MESSAGE, encoded_message, encoded_records
from fedveil.rounds import outcomes
from fedveil.rounds.loop import Carrier, shared
from fedveil.rounds.outcomes import Answer, ClientId

_NO_REPORT = "the reply is no report: the client's app runs without ProtectMod, or another's"


@dataclass
class AppCarrier(Carrier):
    """Sends each phase's messages, and yields the replies as they arrive.

    A phase is one exchange of messages in a round. Clients train in the phase named `trains`. In
    this phase only, a message has the content that the user's strategy made for the client (in
    `invited`), and the reply has a report. The reply also has the metrics that `reveal` names, in
    clear. `metrics` collects them by client. `offer` has the round's settings, for all clients.
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
            if reply_was_lost(reply):
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
            reason = str(invalid) if MESSAGE in content else _NO_REPORT
            return outcomes.Refused(client, 0, outcomes.short(reason))

    def _take_revealed(self, content: RecordDict) -> MetricRecord:
        metrics = content.pop(METRICS, MetricRecord())
        if not isinstance(metrics, MetricRecord) or not set(metrics) <= self.reveal:
            raise MessageInvalid("the reply holds metrics in clear that were not asked for")
        return metrics
