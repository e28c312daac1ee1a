"""Maps clients to SuperNodes. Each node says which clients it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedveil.base.message import decode, only_fields, take, take_array
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

    If several nodes claim the number of one client, the last node gets it. Once that node
    disconnects, the client is again on the node before. Flower's node authentication decides which
    nodes may connect. The job limits how many clients a node may claim.
    """

    def __init__(self, grid: Grid, job: Job, event: Callable[[str], None]) -> None:
        self._grid = grid
        self._clients = job.clients.number or 0
        self._most = job.deployment.clients_per_node
        self._revealed = job.deployment.reveal
        self._event = event
        self._clients_of: dict[int, set[ClientId]] = {}
        #: The connected nodes that claim each client, in the order of their claims.
        self._nodes_of: dict[ClientId, list[int]] = {}
        self._node_of: dict[ClientId, int] = {}
        #: Nodes that hold several clients. One message carries the parts of all of them.
        self.shared: set[int] = set()
        self._asked_at: dict[int, float] = {}

    @property
    def node_of(self) -> Mapping[ClientId, int]:
        return self._node_of

    def doubt(self, client: ClientId) -> None:
        """Forget which clients the node of `client` holds. The next poll asks this node again."""
        node = self._node_of.get(client)
        if node is not None:
            self._forget(node)
            del self._asked_at[node]

    def _forget(self, node: int) -> set[ClientId]:
        """Remove a node's claims. Returns the clients that no other node claims."""
        gone = set()
        for client in sorted(self._clients_of.pop(node)):
            nodes = self._nodes_of[client]
            nodes.remove(node)
            if not nodes:
                del self._nodes_of[client], self._node_of[client]
                gone.add(client)
            elif self._node_of[client] == node:
                self._node_of[client] = nodes[-1]
                self._event(f"client {client} is on node {nodes[-1]} again")
        return gone

    def look(self) -> None:
        """Poll Flower once: remove disconnected nodes, and ask new nodes for their clients."""
        here = set(self._grid.get_node_ids())
        for node in [node for node in self._clients_of if node not in here]:
            if gone := self._forget(node):
                self._event(f"{_named(gone)} gone")
        now = time.monotonic()
        self._asked_at = {n: at for n, at in self._asked_at.items() if n in here}
        new = [
            node
            for node in sorted(here)
            if node not in self._clients_of
            and now - self._asked_at.get(node, -_PATIENCE_S) >= _PATIENCE_S
        ]
        self._asked_at.update(dict.fromkeys(new, now))
        questions = [Message(to_records({}), node, "query.introduce") for node in new]
        for at, reply in exchange(self._grid, questions, _INTRODUCTION_S) if questions else ():
            if reply is not None:
                self._place_clients(new[at], reply)

    def wait_for(self, wanted: Collection[ClientId], enough: int, limit_s: float) -> int:
        """Poll until `enough` of the clients `wanted` are connected, or for `limit_s` seconds.

        Returns the number of these clients that are connected.
        """
        end = time.monotonic() + limit_s
        self.look()
        while (here := len(self.node_of.keys() & set(wanted))) < enough:
            if time.monotonic() >= end:
                break
            time.sleep(_LOOK_S)
            self.look()
        return here

    def _place_clients(self, node: int, reply: Message) -> None:
        try:
            clients, more = self._read(reply)
        except MessageInvalid as error:
            self._event(f"node {node} does not say which client it is: {short(str(error))}")
            return
        here = {client for client in clients if client not in self._node_of}
        for client in sorted(clients - here):
            old = self._node_of[client]
            self._event(f"node {node} says that it is client {client}, as node {old} has said")
        if here:
            self._event(f"{_named(here)} here{more}")
        if len(clients) > 1:
            self.shared.add(node)
        else:
            self.shared.discard(node)
        self._clients_of[node] = clients
        self._node_of.update(dict.fromkeys(clients, node))
        for client in clients:
            self._nodes_of.setdefault(client, []).append(node)

    def _read(self, reply: Message) -> tuple[set[ClientId], str]:
        if reply.has_error():
            raise MessageInvalid("its own log says why")
        longest = _INTRODUCTION_BYTES + 16 * (self._most - 1)
        answer = decode(encoded_message(reply.content), longest)
        only_fields(answer, "client", *self._revealed)
        if type(answer["client"]) is int:
            clients = [answer["client"]]
            examples = [take(answer, "examples", int)] if self._revealed else []
        else:
            clients = take_array(answer, "client", np.int64, (None,)).tolist()
            each = (len(clients),)
            told = take_array(answer, "examples", np.int64, each) if self._revealed else np.empty(0)
            examples = told.tolist()
        if not 0 < len(set(clients)) == len(clients) <= self._most:
            raise MessageInvalid(
                f"it names {len(clients)} clients, and deployment.clients_per_node = {self._most}"
            )
        if wrong := [client for client in clients if not 0 <= client < self._clients]:
            raise MessageInvalid(f"client = {wrong[0]} is outside [0, {self._clients})")
        if wrong := [number for number in examples if number < 0]:
            raise MessageInvalid(f"examples = {wrong[0]} is below 0")
        return set(clients), f", with {sum(examples)} examples" if self._revealed else ""


def _named(clients: Collection[ClientId]) -> str:
    if len(clients) == 1:
        return f"client {min(clients)} is"
    ranges: list[list[ClientId]] = []
    for client in sorted(clients):
        if ranges and client == ranges[-1][-1] + 1:
            ranges[-1][1:] = [client]
        else:
            ranges.append([client])
    *most, last = ["-".join(map(str, ends)) for ends in ranges]
    return f"clients {', '.join(most)}{' and ' if most else ''}{last} are"
