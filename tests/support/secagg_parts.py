"""A round of secure aggregation in which a test can change every message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from fedveil.base.message import Message, decode, encode
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, ReportRejected
from fedveil.secagg import Client, Identity, Server, Terms
from fedveil.secagg.masking import Ring

#: (phase, client, message) -> the message to deliver, or None to drop it.
Tamper = Callable[[str, int, dict[str, Any]], dict[str, Any] | None]

LARGEST = 1000


def unchanged(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
    return message


class Played:
    """Clients 0, 3, 6, ... with vectors of 8 entries, and a log of each phase."""

    def __init__(
        self, clients: int = 5, threshold: int = 3, *, seed: int = 0, **terms: Any
    ) -> None:
        self.ids = [3 * i for i in range(clients)]
        self.root = root = Seeded(seed, "round")
        self.identities = {c: Identity.draw(root.stream("identity", c)) for c in self.ids}
        values = {
            "job": b"test", "round": 4, "length": 8, "bits": Ring.for_sum(clients, LARGEST).bits,
            "threshold": threshold, "sharing": clients,
            "roster": {c: i.public for c, i in self.identities.items()}.get, **terms,
        }  # fmt: skip
        self.terms = Terms(**values)
        self.vectors = {
            c: root.stream("vector", c).integers(2 * LARGEST + 1, 8) - LARGEST for c in self.ids
        }
        self.clients = {c: self.new_client(c) for c in self.ids}
        self.server = self.new_server()
        self.rejected: dict[int, str] = {}
        self.withheld: dict[int, str] = {}
        #: Every answer, by phase and client, and every request.
        self.answers: dict[tuple[str, int], dict[str, Any]] = {}
        self.requests: dict[tuple[str, int], dict[str, Any]] = {}

    def new_client(self, client: int) -> Client:
        """Create a client. Two with the same number draw the same secrets."""
        entropy = self.root.stream("client", client)
        return Client(client, self.terms, entropy, self.identities[client])

    def new_server(self) -> Server:
        """Create a server."""
        return Server(self.terms, self.ids, self.root.stream("server"))

    def play(
        self,
        drop: Mapping[str, Collection[int]] | None = None,
        *,
        up: Tamper = unchanged,
        down: Tamper = unchanged,
    ) -> Played:
        """Play the round to the end. `down` changes the server's messages, `up` the answers."""
        messages: Mapping[int, Message] | None = dict.fromkeys(self.ids, self.server.opening())
        gone: set[int] = set()
        while messages is not None:
            phase = str(self.server.phase)
            gone |= set((drop or {}).get(phase, ()))
            for client, message in messages.items():
                request = down(phase, client, dict(decode(encode(message))))
                if client in gone or request is None:
                    continue
                self.requests[phase, client] = request
                self._carry(phase, client, request, up)
            messages = self.server.advance()
        return self

    def _carry(self, phase: str, client: int, request: dict[str, Any], up: Tamper) -> None:
        try:
            answer = self.clients[client].respond(request, self.vectors[client])
        except ClientWithheld as reason:
            self.withheld[client] = str(reason)
            return
        sent = up(phase, client, dict(decode(encode(answer))))
        if sent is None:
            return
        self.answers[phase, client] = sent
        try:
            self.server.receive(client, decode(encode(sent)))
        except ReportRejected as rejected:
            self.rejected[client] = rejected.reason

    @property
    def exact(self) -> bool:
        """Return True if the sum is that of the survivors' vectors, to the last bit."""
        expected = sum(self.vectors[c] for c in self.server.survivors)
        return bool((self.server.total() == expected).all())


def edited(array: Any, place: Any, value: Any) -> np.ndarray:
    """Return a copy with one entry changed."""
    copy = np.array(array)
    copy[place] = value
    return copy


def shows(text: str, secret: bytes) -> bool:
    """Return True if a text contains a secret in a form in which Python prints bytes."""
    forms = [secret.hex(), repr(secret)[2:-1], str(int.from_bytes(secret, "little")),
             str(list(secret))[1:-1]]  # fmt: skip
    return any(form in text for form in forms)
