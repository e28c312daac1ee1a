"""Everything that an honest-but-curious server sees of one round, under any protection."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fedveil.base.array_types import Float32s, Float64s
from fedveil.base.message import Message
from fedveil.entropy import Entropy
from fedveil.protections.base import ClientContext, Protection, RoundContext, State
from fedveil.protections.reading import Reading


@dataclass(frozen=True)
class Seen:
    """A server's view of a round: an estimate of each client's update, and the aggregate.

    `readings[i]` is the attacker's best estimate of client i's update, from that client's report.
    `state` is the protection's state for the next round. `told` is the message in which the server
    requested the first client's update. `silent` are the clients that were not asked for their
    update, which happens only under secure aggregation.
    """

    readings: Sequence[Reading]
    aggregate: Float64s
    state: State = field(default_factory=dict)
    told: Message = field(default_factory=dict)
    silent: Collection[int] = ()

    @property
    def asked(self) -> list[int]:
        """Return the clients that were asked for their update. All are in the aggregate."""
        return [client for client in range(len(self.readings)) if client not in self.silent]

    @property
    def masked(self) -> bool:
        """Return True if no single report reveals anything. The aggregate may still do so."""
        return all(reading.empty for reading in self.readings)

    @property
    def mean(self) -> Reading:
        """Return the aggregate, noise included, as the attacker's estimate of the mean update."""
        mean = self.aggregate.astype(np.float64)
        return Reading(mean, np.ones_like(mean))

    @property
    def total(self) -> Reading:
        """Return the sum of all reported updates, as an estimate of the first client's update.

        The result is `Reading.nothing` if the first client was not asked for its update.
        """
        if 0 in self.silent:
            return Reading.nothing(len(self.aggregate))
        return replace(self.mean, estimate=len(self.asked) * self.mean.estimate)


def seen(
    protection: Protection,
    model: Float32s,
    updates: Sequence[Float32s],
    entropy: Entropy,
    *,
    round: int = 1,
    state: State | None = None,
) -> Seen:
    """Return the server's view of a round in which client i's update is `updates[i]`.

    The server follows the protocol. The noise of clients and server is drawn from `entropy`. The
    updates must be finite. `state` is the protection's state after the last round, by default its
    initial state.
    """
    protection = protection.reseeded(int(entropy.stream("server", round).words(1)[0]))
    clients = range(len(updates))
    state = protection.initial_state() if state is None else state
    context = RoundContext(clients, round, model, state)
    server = protection.server_round(context)
    halves = [
        protection.client_round(
            ClientContext(i, round, model, 1, entropy.stream("report", round, i))
        )
        for i in clients
    ]
    read: dict[int, Reading] = {}
    told: dict[int, Message] = {}
    messages: Mapping[int, Message] | None = dict.fromkeys(clients, server.opening())
    while messages is not None:
        for client, message in messages.items():
            half = halves[client]
            if half.wants_update(message):
                answer = half.respond(message, updates[client])
                read[client], told[client] = protection.reading(context, answer), message
            else:
                answer = half.respond(message, None)
            server.receive(client, answer)
        messages = server.advance()
    ended = server.aggregate()
    nothing = Reading.nothing(protection.dimension)
    readings, silent = [read.get(client, nothing) for client in clients], set(clients) - set(read)
    return Seen(readings, np.asarray(ended.update), ended.state, told.get(0, {}), silent)


def repeated(
    protection: Protection, model: Float32s, update: Float32s, times: int, entropy: Entropy
) -> Iterator[Seen]:
    """Yield the server's view of `times` rounds, in each of which the first client has `update`.

    If a round needs several clients, the others take part with updates of zero. Every round starts
    from the protection's initial state.
    """
    cohort = [update, *[np.zeros_like(update)] * (protection.least_clients - 1)]
    for round in range(1, times + 1):
        yield seen(protection, model, cohort, entropy, round=round)
