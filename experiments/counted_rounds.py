"""Measured costs of whole rounds of secure aggregation: bytes, memory, operations and time.

Every client is a real one. Bytes are those of the encoded messages. Operations are counted by
wrapping the public functions that perform them. Memory is measured after every phase.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np

from fedveil.base.array_types import Int64s
from fedveil.base.message import Message, decode, encode, encoded_bytes
from fedveil.entropy import Seeded
from fedveil.errors import RunFailed
from fedveil.rounds.loop import Carrier, drive
from fedveil.rounds.outcomes import Answer, Report
from fedveil.secagg import Client, Server, Terms, masking, phases, shamir
from fedveil.secagg.keys import KeyPair
from fedveil.secagg.masking import Ring
from fedveil.secagg.phases import PHASES, TRAINS, as_ids

T = TypeVar("T")
#: Entries of 16 bits, as in the papers.
LARGEST = (1 << 15) - 1
#: Counted operations: where their function is called from, its name, and how many a call performs.
COUNTED: Mapping[str, tuple[Sequence[object], str, Callable[..., int]]] = {
    "masks": ((masking,), "Keystream", lambda seed, block: 1),
    "key agreements": ((KeyPair,), "agree", lambda pair, public: 1),
    "secrets shared": ((shamir,), "split", lambda secrets, *more: len(secrets)),
    "secrets joined": ((shamir,), "join", lambda points, shares: len(shares)),
}


@dataclass(frozen=True)
class Setup:
    """A round: its numbers of clients and of a vector's entries, and its masking graph.

    `dropped` clients drop out before they send their vectors. `neighbours` is None in the complete
    graph. `threshold` is that of a neighbourhood, more than half of it by default.
    """

    clients: int
    entries: int
    dropped: int = 0
    neighbours: int | None = None
    threshold: int | None = None

    @property
    def terms(self) -> Terms:
        """The terms for both sides, for sums of 16-bit entries."""
        members = self.clients if self.neighbours is None else self.neighbours + 1
        return Terms(
            job=b"secagg-cost",
            round=1,
            length=self.entries,
            bits=Ring.for_sum(self.clients, LARGEST).bits,
            threshold=self.threshold or members // 2 + 1,
            sharing=self.clients,
            neighbours=self.neighbours,
        )


@dataclass(frozen=True)
class Cost:
    """The cost of a round, for the server, and for the mean of the clients that stay to its end.

    `up`, `down` and `in` are bytes of messages, `held` is bytes of stored state, and `does`
    counts the operations `COUNTED`.
    """

    client_up: float
    client_down: float
    client_held: float
    client_seconds: float
    server_in: int
    server_held: int
    server_seconds: float
    client_does: Mapping[str, float]
    server_does: Mapping[str, float]


def message_bytes(setup: Setup) -> int:
    """Compute the bytes that a client sends in a round in which nobody refuses any shares."""
    terms = setup.terms
    members = setup.clients if setup.neighbours is None else setup.neighbours + 1
    longest = sum(phases.longest_answer(phase, terms, members) for phase in phases.FIELDS
                  if phase != "consistency")  # fmt: skip
    refused = (encoded_bytes({"refused": as_ids(range(n))}) for n in (members - 1, 0))
    return longest - next(refused) + next(refused)


def played(setup: Setup, *, counted: bool) -> Cost:
    """Run a round, check its sum, and return its cost.

    If `counted` is True, operations and memory are measured too, which makes the round slower.
    """
    carrier = _Counting(setup, counted)
    outcome = drive(carrier.server, carrier, carrier.opening(), TRAINS)
    if outcome.void is not None:
        raise outcome.void
    expected = sum(carrier.vector(i) for i in range(setup.dropped, setup.clients))
    if not np.array_equal(carrier.server.inner.total(), expected):
        raise RunFailed("the sum of the round is not that of its vectors")
    return carrier.cost()


@contextmanager
def counting(done: Counter[str]) -> Iterator[None]:
    """Add every operation of `COUNTED` that is performed in the `with` block to `done`."""

    def counted(name: str, function: Callable[..., T]) -> Callable[..., T]:
        def call(*given: Any, **named: Any) -> T:
            done[name] += COUNTED[name][2](*given, **named)
            return function(*given, **named)

        return call

    with ExitStack() as stack:
        for name, (places, function, _) in COUNTED.items():
            for place in places:
                counter = counted(name, getattr(place, function))
                stack.enter_context(patch.object(place, function, counter))
        yield


class _Watch:
    """Measures the CPU seconds of calls, and with `counts` also counts their operations."""

    def __init__(self, counts: bool) -> None:
        self.seconds = 0.0
        self.counts = counts
        self._done: Counter[str] = Counter()

    def __call__(self, call: Callable[..., T], *given: Any) -> T:
        began = time.process_time()
        try:
            with counting(self._done) if self.counts else nullcontext():
                return call(*given)
        finally:
            self.seconds += time.process_time() - began

    def does(self, each: int = 1) -> dict[str, float]:
        """Return how often each of `COUNTED` was performed, divided by `each`."""
        return {name: self._done[name] / each for name in COUNTED} if self.counts else {}


class _WatchedServer:
    """The server's half, with its time and memory."""

    mergeable = False

    def __init__(self, inner: Server, watch: _Watch) -> None:
        self.inner, self._watch = inner, watch
        self.most_held = 0

    @property
    def phase(self) -> str | None:
        return self.inner.phase

    @property
    def longest(self) -> int:
        return self.inner.longest

    def receive(self, client: int, message: Message) -> None:
        self._watch(self.inner.receive, client, message)

    def advance(self) -> Mapping[int, Message] | None:
        if self._watch.counts:
            self.most_held = max(self.most_held, held_bytes(self.inner))
        return self._watch(self.inner.advance)


class _Counting(Carrier):
    """Carries a round's encoded messages between real clients and the server."""

    def __init__(self, setup: Setup, counted: bool) -> None:
        self._setup, self._terms = setup, setup.terms
        self._at_clients, self._at_server = _Watch(counted), _Watch(counted)
        self._elsewhere = _Watch(False)
        ids = range(setup.clients)
        entropy = Seeded(0, "secagg-cost")
        self._clients = {
            i: self._at(i)(Client, i, self._terms, entropy.stream("client", i)) for i in ids
        }
        server = Server(self._terms, list(ids), entropy.stream("server"))
        self.server = _WatchedServer(server, self._at_server)
        self._up: Counter[int] = Counter()
        self._down: Counter[int] = Counter()
        self._held: Counter[int] = Counter()

    def opening(self) -> Mapping[int, Message]:
        return dict.fromkeys(self._clients, self.server.inner.opening())

    def vector(self, client: int) -> Int64s:
        """Return the vector of `client`: whole numbers that differ from client to client."""
        return (self._ramp * (client + 1)) % (2 * LARGEST + 1) - LARGEST

    def ask(self, phase: str, messages: Mapping[int, Message]) -> Iterator[Answer]:
        """Yield the clients' answers. The first `dropped` clients end before they send vectors."""
        late = PHASES.index(phase) >= PHASES.index(TRAINS)
        for client, message in messages.items():
            if late and client < self._setup.dropped:
                continue
            sent = encode(message)
            self._down[client] += len(sent)
            vector = self.vector(client) if phase == TRAINS else None
            half = self._clients[client]
            answer = encode(self._at(client)(half.respond, decode(sent), vector))
            self._up[client] += len(answer)
            if self._at_clients.counts:
                kept = encoded_bytes(half.keep())
                self._held[client] = max(self._held[client], kept)
            yield Report(client, answer)

    def cost(self) -> Cost:
        """Return the round's cost, once it is over."""
        stayed = range(self._setup.dropped, self._setup.clients)
        return Cost(
            client_up=_mean(self._up, stayed),
            client_down=_mean(self._down, stayed),
            client_held=_mean(self._held, stayed),
            client_seconds=self._at_clients.seconds / len(stayed),
            server_in=self._up.total(),
            server_held=self.server.most_held,
            server_seconds=self._at_server.seconds,
            client_does=self._at_clients.does(len(stayed)),
            server_does=self._at_server.does(),
        )

    def _at(self, client: int) -> _Watch:
        """Return the watch of a client.

        Clients that drop out have a watch of their own, because they do less.
        """
        return self._elsewhere if client < self._setup.dropped else self._at_clients

    @cached_property
    def _ramp(self) -> Int64s:
        return np.arange(self._setup.entries)


def _mean(values: Mapping[int, int], of: Sequence[int]) -> float:
    return sum(values[i] for i in of) / len(of)


def held_bytes(thing: object, seen: set[int] | None = None) -> int:
    """Return the bytes of arrays, texts and numbers in an object of fedveil, counting each once."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if isinstance(thing, (bytes, bytearray, str)):
        return len(thing)
    if isinstance(thing, (int, float)):
        return 8
    inner: list[object] = []
    if isinstance(thing, Mapping):
        inner = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        inner = [*thing]
    elif type(thing).__module__.startswith("fedveil."):
        slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
        names = [*getattr(thing, "__dict__", ()), *slots]
        inner = [getattr(thing, name, None) for name in names]
    return sum(held_bytes(each, seen) for each in inner)
