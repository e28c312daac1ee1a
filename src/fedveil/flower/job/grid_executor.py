"""Sends a round's messages over Flower's grid, all together, and yields the answers one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedveil.base.message import Message, encode
from fedveil.engine.assembly import ModelShape
from fedveil.engine.executors.executor import Executor
from fedveil.errors import RunStopped
from fedveil.federated.job import Job
from fedveil.flower.exchange import exchange, reply_was_lost, reported
from fedveil.flower.job import job_client
from fedveil.flower.job.example_shape import telling, telling_form
from fedveil.flower.job.node_mapping import Members
from fedveil.flower.job.saved_states import KEPT_FIELD, SUMMED_FIELD
from fedveil.flower.records import addressed_records, common_record, to_records
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


class GridExecutor(Executor):
    """Sends messages to the SuperNodes that have introduced themselves as clients of the job.

    A client is not reached if it has no node, or if Flower says that its node failed. A node that
    does not answer in time has dropped out. The weights are sent only in the phase in which clients
    train.
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
        #: The clients with keys of a round that has not ended for them.
        self._unfinished: set[ClientId] = set()

    def open(self, context: RoundContext) -> None:
        """Start a round once enough clients are connected. Raises `RunStopped` at a timeout."""
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
        client_of = {node_of[client]: client for client in reached}
        yield from map(outcomes.Unreached, messages.keys() - reached.keys())
        outgoing = list(self._outgoing(phase, reached))
        self._opening = False
        for node, reply in exchange(self._grid, outgoing, self._window_s):
            client = client_of[node]
            answer = outcomes.Unreached(client) if reply is None else self._read(client, reply)
            if answer is not None:
                ended = phase == self._protection.phases[-1]
                if ended or not isinstance(answer, outcomes.Report | outcomes.Unreached):
                    self._unfinished.discard(client)
                yield answer

    def close(self) -> None:
        """Tell the clients that have not finished their last round to forget it."""
        if self._unfinished:
            list(exchange(self._grid, self._farewells(), _FORGET_S))

    def _gather(self, round: int) -> None:
        """Wait until the clients are connected, at the start of the run or after a restart."""
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

    def _outgoing(
        self, phase: str, messages: Mapping[ClientId, Message]
    ) -> Iterator[FlowerMessage]:
        trains = phase == self._protection.trains
        common = common_record(self._common(trains))
        if len(self._protection.phases) > 1:
            self._unfinished.update(messages)
        for message, clients in shared(messages):
            encoded = encode(message)
            for client in clients:
                own = self._own(client) if trains else {}
                yield FlowerMessage(
                    addressed_records(client, encoded, common, own),
                    self._members.node_of[client],
                    f"train.{phase}",
                    ttl=self._window_s + _GRACE_S,
                    group_id=str(self._context.round),
                )

    def _own(self, client: ClientId) -> Message:
        """Return the fields for this client alone: the last round whose sum contains its report."""
        return {SUMMED_FIELD: int(self._context.summed[client])} if self._job.keeps_state else {}

    def _common(self, trains: bool) -> Message:
        context, shape = self._context, self._shape
        common = {"opening": self._opening, "round": context.round, "dimension": len(context.sent)}
        if not trains:
            return common
        return common | {
            "weights": context.sent,
            "example_shape": telling(shape.example_shape),
            "classes": shape.classes,
            "fingerprint": shape.fingerprint,
            **(telling_form(shape) if self._job.privacy.unit == "example" else {}),
            **({KEPT_FIELD: self._run} if self._job.keeps_state else {}),
        }

    def _read(self, client: ClientId, reply: FlowerMessage) -> Answer | None:
        if reply.has_error():
            word = reply.error.reason if reply.error.code == job_client.ERROR_CODE else None
            if word == job_client.STRANGER:
                self._members.doubt(client)
            if word == job_client.ANSWERED:
                return outcomes.Withheld(client, "its update of this round has left it before")
            if word == job_client.WITHHELD:
                return outcomes.Withheld(client, "the client's own log says why")
            if word == job_client.FAILED:
                return outcomes.Failed(client, "the client's own log says why")
            return None if reply_was_lost(reply) else outcomes.Unreached(client)
        return reported(client, reply)

    def _farewells(self) -> list[FlowerMessage]:
        node_of, question = self._members.node_of, f"query.{job_client.FORGET}"
        return [
            FlowerMessage(to_records({}), node_of[client], question, ttl=_GRACE_S)
            for client in sorted(self._unfinished)
            if client in node_of
        ]
