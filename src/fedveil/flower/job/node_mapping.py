"""Maps clients to SuperNodes. Each node says which client it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fedveil.base.message import decode, only_fields, take
from fedveil.errors import MessageInvalid
from fedveil.federated.job import Job
from fedveil.flower.exchange import exchange
from fedveil.flower.records import encoded_message, to_records
from fedveil.rounds.outcomes import ClientId, short

#: Seconds that a node may take to introduce itself.
_INTRODUCTION_S = 60.0
_INTRODUCTION_BYTES = 256
#: Seconds between polls for new nodes while the server waits for clients.
_LOOK_S = 1.0
#: A node that could not introduce itself is asked again after this many seconds.
_PATIENCE_S = 30.0


class Members:
    """The clients that were connected at the last poll.

    If several nodes claim the number of one client, the last node gets it. A restarted node without
    a stored identity has a new node number, while its old number still seems to be connected.
    Flower's node authentication decides which nodes may connect.
    """

    def __init__(self, grid: Grid, job: Job, event: Callable[[str], None]) -> None:
        self._grid = grid
        self._clients = job.clients.number or 0
        self._revealed = job.deployment.reveal
        self._event = event
        self._client_of: dict[int, ClientId] = {}
        self._node_of: dict[ClientId, int] = {}
        self._asked_at: dict[int, float] = {}

    @property
    def node_of(self) -> Mapping[ClientId, int]:
        return self._node_of

    def doubt(self, client: ClientId) -> None:
        """Forget which node the client is, so that the next poll asks that node again."""
        node = self._node_of.pop(client, None)
        if node is not None:
            del self._client_of[node], self._asked_at[node]

    def look(self) -> None:
        """Poll once: remove disconnected nodes, and ask new nodes which clients they are."""
        here = set(self._grid.get_node_ids())
        for node in [node for node in self._client_of if node not in here]:
            client = self._client_of.pop(node)
            del self._node_of[client]
            self._event(f"client {client} is gone")
        now = time.monotonic()
        self._asked_at = {n: at for n, at in self._asked_at.items() if n in here}
        new = [
            node
            for node in sorted(here)
            if node not in self._client_of
            and now - self._asked_at.get(node, -_PATIENCE_S) >= _PATIENCE_S
        ]
        self._asked_at.update(dict.fromkeys(new, now))
        questions = [Message(to_records({}), node, "query.introduce") for node in new]
        for node, reply in exchange(self._grid, questions, _INTRODUCTION_S) if questions else ():
            if reply is not None:
                self._meet(node, reply)

    def wait_for(self, wanted: Collection[ClientId], enough: int, limit_s: float) -> int:
        """Poll until `enough` of the clients `wanted` are connected, or for `limit_s` seconds.

        Returns the number of those that are connected.
        """
        end = time.monotonic() + limit_s
        self.look()
        while (here := len(self.node_of.keys() & set(wanted))) < enough:
            if time.monotonic() >= end:
                break
            time.sleep(_LOOK_S)
            self.look()
        return here

    def _meet(self, node: int, reply: Message) -> None:
        try:
            client, more = self._read(reply)
        except MessageInvalid as error:
            self._event(f"node {node} does not say which client it is: {short(str(error))}")
            return
        old = self._node_of.get(client)
        if old is not None:
            self._event(f"node {node} says that it is client {client}, as node {old} has said")
            del self._client_of[old]
        else:
            self._event(f"client {client} is here{more}")
        self._client_of[node], self._node_of[client] = client, node

    def _read(self, reply: Message) -> tuple[ClientId, str]:
        if reply.has_error():
            raise MessageInvalid("its own log says why")
        answer = decode(encoded_message(reply.content), _INTRODUCTION_BYTES)
        only_fields(answer, "client", *self._revealed)
        client = take(answer, "client", int)
        if not 0 <= client < self._clients:
            raise MessageInvalid(f"client = {client} is outside [0, {self._clients})")
        examples = f", with {take(answer, 'examples', int)} examples" if self._revealed else ""
        return client, examples
