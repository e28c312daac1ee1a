"""A round's messages over Flower's grid: pushed together, answered one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
from flwr.app import ConfigRecord
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedveil.engine.assembly import Task
from fedveil.engine.executors.client_side import Answer
from fedveil.engine.round_loop import PHASES, phase_of
from fedveil.errors import MessageInvalid, RunStopped
from fedveil.federated.job import Job
from fedveil.flower.exchange import exchange
from fedveil.flower.job.job_client import (
    ERROR_CODE,
    FAILED,
    FORGET,
    REPORT,
    STRANGER,
    WITHHELD,
)
from fedveil.flower.job.members import Members
from fedveil.flower.records import (
    addressed_records,
    common_record,
    encoded_message,
    to_records,
)
from fedveil.message import Message, Value, encode
from fedveil.protections.base import ClientId, RoundContext, ServerRound

#: A message is kept for so long after the server has stopped waiting for its answer.
_GRACE_S = 300.0
#: How long a server that goes on with a run waits for clients to come back, before it goes on
#: without some of them.
_RETURN_S = 90.0
#: How long the server waits at the run's end until clients have forgotten an unfinished round.
_FORGET_S = 15.0


class GridExecutor:
    """Carries messages to the SuperNodes that say that they are the clients.

    A client without a node, a node without an answer in time and a node of which Flower says that
    it failed are all the same: no answer. The weights travel with the messages of the phase in
    which clients train, and no earlier.
    """

    def __init__(self, grid: Grid, job: Job, task: Task, event: Callable[[str], None]) -> None:
        self._grid = grid
        self._job = job
        self._task = task
        self._members = Members(grid, job, event)
        self._window_s = job.protection.pw_encrypt.cipher_time_window / 1000
        self._context: RoundContext
        self._opening = True
        self._started = False
        #: The clients that hold keys of a round which has not ended for them.
        self._unfinished: set[ClientId] = set()

    def open(self, context: RoundContext) -> None:
        """Begin a round when enough of its clients are here; raises `RunStopped`."""
        if not self._started:
            self._started = True
            self._gather(context.round)
        self._need(context.cohort, min(self._least(), len(context.cohort)))
        # The opening of a round ends whatever a client was in before.
        self._unfinished -= set(context.cohort)
        if self._unfinished:
            self._grid.push_messages(self._farewells())
        self._unfinished.clear()
        self._context = context
        self._opening = True

    def ask(self, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """The answers, as they come, until the phase's deadline."""
        node_of = self._members.node_of
        client_of = {node_of[client]: client for client in messages if client in node_of}
        outgoing = list(self._outgoing(client_of, messages))
        self._opening = False
        for node, reply in exchange(self._grid, outgoing, self._window_s):
            answer = self._read(client_of[node], reply)
            if answer is not None:
                self._note(answer, messages[answer.client])
                yield answer

    def fold(self, messages: Mapping[ClientId, Message], server: ServerRound) -> Iterator[Answer]:
        """As `ask`: reports are folded where they arrive, which is here."""
        return self.ask(messages)

    def close(self) -> None:
        """Let clients forget a round that ended without them."""
        if self._unfinished:
            for _ in exchange(self._grid, self._farewells(), _FORGET_S):
                pass

    def _gather(self, round: int) -> None:
        """Wait for everybody who should be there at the start, or come back after a restart."""
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

    def _least(self) -> int:
        """How many clients a round needs that is not to be void."""
        protection = self._job.protection
        if protection.name == "pw_encrypt":
            return protection.pw_encrypt.reconstruct_secrets_threshold
        return 1

    def _outgoing(
        self, client_of: Mapping[int, ClientId], messages: Mapping[ClientId, Message]
    ) -> Iterator[FlowerMessage]:
        common: dict[bool, ConfigRecord] = {}
        encoded: dict[int, bytes] = {}  # a message that is the same object for all is encoded once
        for node, client in client_of.items():
            message = messages[client]
            phase = message.get("phase")
            if phase in PHASES:
                self._unfinished.add(client)
            trains = phase_of(message) == "masked"
            if trains not in common:
                common[trains] = common_record(self._common(trains))
            if id(message) not in encoded:
                encoded[id(message)] = encode(message)
            yield FlowerMessage(
                addressed_records(client, encoded[id(message)], common[trains]),
                node,
                f"train.{phase if phase in PHASES else REPORT}",
                ttl=self._window_s + _GRACE_S,
                group_id=str(self._context.round),
            )

    def _common(self, trains: bool) -> Message:
        context, task = self._context, self._task
        common: dict[str, Value] = {
            "opening": self._opening,
            "round": context.round,
            "dimension": len(context.model),
        }
        if trains:
            common["weights"] = context.model
            common["example_shape"] = np.array(task.example_shape, np.int64)
            common["classes"] = task.classes
            common["fingerprint"] = task.fingerprint
        return common

    def _read(self, client: ClientId, reply: FlowerMessage) -> Answer | None:
        if reply.has_error():
            word = reply.error.reason if reply.error.code == ERROR_CODE else None
            if word == STRANGER:
                self._members.doubt(client)
            if word == WITHHELD:
                return Answer(client, withheld="the client's own log says why")
            if word == FAILED:
                return Answer(client, failed="the client's own log says why")
            return None
        try:
            return Answer(client, report=encoded_message(reply.content))
        except MessageInvalid as error:
            size = sum(record.count_bytes() for record in reply.content.values())
            return Answer(client, report_bytes=max(size, 1), rejected=str(error))

    def _note(self, answer: Answer, asked: Message) -> None:
        if answer.report is None or asked.get("phase") == PHASES[-1]:
            self._unfinished.discard(answer.client)

    def _farewells(self) -> list[FlowerMessage]:
        node_of = self._members.node_of
        return [
            FlowerMessage(to_records({}), node_of[client], f"query.{FORGET}", ttl=_GRACE_S)
            for client in sorted(self._unfinished)
            if client in node_of
        ]
