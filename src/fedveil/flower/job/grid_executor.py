"""Sends a round's messages over Flower's grid, all together, and yields the answers one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedveil.base.message import Message, encode
from fedveil.engine.assembly import ModelShape
from fedveil.engine.executors.executor import Executor
from fedveil.errors import MessageInvalid, RunStopped
from fedveil.federated.job import Job
from fedveil.flower.exchange import exchange, may_have_reported, reported
from fedveil.flower.job import job_client
from fedveil.flower.job.example_shape import form_fields, shape_field
from fedveil.flower.job.node_mapping import Members
from fedveil.flower.job.saved_states import KEPT_FIELD, SUMMED_FIELD
from fedveil.flower.records import (
    addressed_records,
    bundled_records,
    common_record,
    from_records,
    naming,
)
from fedveil.protections.base import Protection, RoundContext
from fedveil.rounds import outcomes
from fedveil.rounds.loop import shared
from fedveil.rounds.outcomes import Answer, ClientId

#: A message stays available this long after the server has stopped waiting for its answer.
_GRACE_S = 300.0
#: Time that a server that resumes a run waits for clients to return, before it continues without
#: some of them.
_RETURN_S = 90.0
#: Time that the server waits at the run's end for clients to forget an unfinished round.
_FORGET_S = 15.0
#: A message to a node with several clients asks for at most about this many bytes, since a reply is
#: in memory as a whole.
_REPLY_BYTES = 32_000_000


class GridExecutor(Executor):
    """Sends messages to the SuperNodes that have introduced themselves as clients of the job.

    A client without a working node is not reached. If a node does not answer, its clients drop out.
    """

    def __init__(
        self,
        grid: Grid,
        job: Job,
        shape: ModelShape,
        protection: Protection,
        event: Callable[[str], None],
        run: str = "",
    ) -> None:
        self._run = run
        self._grid = grid
        self._job = job
        self._shape = shape
        self._members = Members(grid, job, event)
        self._protection = protection
        self._window_s = protection.deadline_s or job.deployment.answer_s
        self._context: RoundContext
        self._opening = True
        self._started = False
        #: The clients that may still have saved a state, with keys, of an unfinished round.
        self._unfinished: set[ClientId] = set()

    def open(self, context: RoundContext) -> None:
        """Start a round once enough clients are connected. Raises `RunStopped` if too few come."""
        if not self._started:
            self._started = True
            self._gather(context.round)
        self._need(context.cohort, min(self._protection.least_clients, len(context.cohort)))
        # The opening of a round ends any earlier round of a client.
        self._unfinished -= set(context.cohort)
        if self._unfinished:
            self._grid.push_messages(self._farewells())
        self._unfinished.clear()
        self._context = context
        self._opening = True

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        node_of = self._members.node_of
        reached = {client: message for client, message in messages.items() if client in node_of}
        yield from map(outcomes.Unreached, messages.keys() - reached.keys())
        parts = list(self._parts(reached))
        outgoing = list(self._outgoing(phase, reached, parts))
        self._opening = False
        for at, reply in exchange(self._grid, outgoing, self._window_s):
            node, clients = parts[at]
            for answer in self._answers(node, clients, reply):
                ended = phase == self._protection.phases[-1]
                if ended or not isinstance(answer, outcomes.Report | outcomes.Unreached):
                    self._unfinished.discard(answer.client)
                yield answer

    def close(self) -> None:
        """Tell each client whose last round is unfinished to erase its state of that round."""
        if self._unfinished:
            list(exchange(self._grid, self._farewells(), _FORGET_S))

    def _gather(self, round: int) -> None:
        """Wait until enough clients are connected, before this process runs its first round.

        At the start of the run (`round` is 1), raises `RunStopped` if too few clients connect in
        time. After a restart of the server, the run continues without the missing clients.
        """
        everybody = range(self._job.clients.number or 0)
        enough = self._job.deployment.start_clients or len(everybody)
        if round == 1:
            self._need(everybody, enough)
        else:
            limit_s = min(_RETURN_S, self._job.deployment.wait_s)
            self._members.wait_for(everybody, enough, limit_s)

    def _need(self, wanted: Collection[ClientId], least: int) -> None:
        limit_s = self._job.deployment.wait_s
        here = self._members.wait_for(wanted, least, limit_s)
        if here < least:
            raise RunStopped(
                f"{here} of {len(wanted)} clients were connected within deployment.wait_s = "
                f"{limit_s:g} s, {least} are needed"
            )

    def _parts(self, clients: Iterable[ClientId]) -> Iterator[tuple[int, list[ClientId]]]:
        """Group `clients` into messages. Yields each message's node and the clients on that node.

        The reports of a group's clients fit into one reply.
        """
        at_once = max(1, _REPLY_BYTES // self._protection.longest_report())
        parts: dict[int, list[ClientId]] = {}
        for client in clients:
            parts.setdefault(self._members.node_of[client], []).append(client)
        for node, here in parts.items():
            for start in range(0, len(here), at_once):
                yield node, here[start : start + at_once]

    def _outgoing(
        self,
        phase: str,
        messages: Mapping[ClientId, Message],
        parts: Iterable[tuple[int, Sequence[ClientId]]],
    ) -> Iterator[FlowerMessage]:
        trains = phase == self._protection.trains
        common = common_record(self._common(trains))
        if len(self._protection.phases) > 1:
            self._unfinished.update(messages)
        encoded: dict[ClientId, bytes] = {}
        for message, receivers in shared(messages):
            encoded.update(dict.fromkeys(receivers, encode(message)))
        for node, clients in parts:
            own = {client: self._own(client) if trains else {} for client in clients}
            if node in self._members.shared:
                asked = {client: encoded[client] for client in clients}
                records = bundled_records(asked, common, own)
            else:
                (client,) = clients
                records = addressed_records(client, encoded[client], common, own[client])
            yield FlowerMessage(
                records,
                node,
                f"train.{phase}",
                ttl=self._window_s + _GRACE_S,
                group_id=str(self._context.round),
            )

    def _own(self, client: ClientId) -> Message:
        """Return the fields that only `client` gets, in addition to those for all clients.

        If clients keep state, it is one field: the last round whose sum contains the client's
        report. Otherwise the result is empty.
        """
        return {SUMMED_FIELD: int(self._context.summed[client])} if self._job.keeps_state else {}

    def _common(self, trains: bool) -> Message:
        context = self._context
        common = {"opening": self._opening, "round": context.round, "dimension": len(context.sent)}
        return common | ({"weights": context.sent, **context.told} if trains else {})

    @property
    def told(self) -> Message:
        shape = self._shape
        return {
            "example_shape": shape_field(shape.example_shape),
            "classes": shape.classes,
            "fingerprint": shape.fingerprint,
            **(form_fields(shape) if self._job.privacy.unit == "example" else {}),
            **({KEPT_FIELD: self._run} if self._job.keeps_state else {}),
        }

    def _answers(
        self, node: int, clients: Sequence[ClientId], reply: FlowerMessage | None
    ) -> Iterator[Answer]:
        """Yield the answers of `clients`. `reply` is None if Flower did not accept the message."""
        if reply is None:
            yield from map(outcomes.Unreached, clients)
        elif reply.has_error():
            if not may_have_reported(reply):
                word = reply.error.reason if reply.error.code == job_client.ERROR_CODE else None
                yield from (self._without(client, word) for client in clients)
        elif node in self._members.shared:
            yield from self._shared(clients, reply)
        else:
            yield from (reported(client, reply) for client in clients)

    def _shared(self, clients: Sequence[ClientId], reply: FlowerMessage) -> Iterator[Answer]:
        """Yield the answers of `clients`, which are on one node, from the node's `reply`.

        A reply that also contains an answer of another client is refused.
        """
        try:
            answers = from_records(reply.content)
            if not answers.keys() <= set(map(str, clients)):
                raise MessageInvalid("a node answers for clients that were not asked")
        except MessageInvalid as error:
            yield from (outcomes.Refused(client, 0, str(error)) for client in clients)
            return
        for client in clients:
            answer = answers.pop(str(client), None)
            if isinstance(answer, bytes):
                yield outcomes.Report(client, answer)
            elif isinstance(answer, str) and answer in job_client.WORDS:
                yield self._without(client, answer)
            elif answer is not None:
                yield outcomes.Refused(client, 0, "an answer that is neither report nor word")

    def _without(self, client: ClientId, word: str | None) -> Answer:
        if word == job_client.STRANGER:
            self._members.doubt(client)
        if word == job_client.ANSWERED:
            return outcomes.Withheld(client, "the client has already trained in this round")
        if word == job_client.WITHHELD:
            return outcomes.Withheld(client, "the client's own log says why")
        if word == job_client.FAILED:
            return outcomes.Failed(client, "the client's own log says why")
        return outcomes.Unreached(client)

    def _farewells(self) -> list[FlowerMessage]:
        """Return messages that tell nodes to erase the state of clients with unfinished rounds."""
        node_of, question = self._members.node_of, f"query.{job_client.FORGET}"
        parts: dict[int, list[ClientId]] = {}
        for client in sorted(self._unfinished & node_of.keys()):
            parts.setdefault(node_of[client], []).append(client)
        return [
            FlowerMessage(naming(clients), node, question, ttl=_GRACE_S)
            for node, clients in parts.items()
        ]
