"""Divides a round's clients among machines, by the expected training time of each client."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from typing import Generic, TypeVar

from fedveil.rounds.outcomes import ClientId

M = TypeVar("M", bound=Hashable)
#: Clients that train together, on one machine. Mostly a single one.
Group = tuple[ClientId, ...]

#: A client moves to another machine only if its own one would take longer than the ideal time by
#: more than this share: its examples must move too.
SLACK = 0.02
#: An expectation grows at most by this factor a round. Otherwise the clients of a machine that
#: other programs disturb for a while would move, and move back.
GROWTH = 1.05


class Expected(Generic[M]):
    """Predicts the training times of clients from those of earlier rounds.

    A client's time is the product of three numbers: its number of examples, a factor, and the pace
    of its machine. The pace is the median number of seconds per example of the machine's clients.
    The factor is the client's own number of seconds per example, divided by the pace. Both increase
    by at most 5% a round (`GROWTH`). `examples` returns a client's number of examples.
    """

    def __init__(self, examples: Callable[[ClientId], int]) -> None:
        self._examples = examples
        self._pace: dict[M, float] = {}
        self._factor: dict[ClientId, float] = {}

    def learn(self, machine: M, seconds: Mapping[ClientId, float]) -> None:
        """Update the expected times with `seconds`, the clients' times on `machine` in a round."""
        each = {client: took / self._examples(client) for client, took in seconds.items()}
        pace = median(each.values())
        self._pace[machine] = min(pace, GROWTH * self._pace.get(machine, pace))
        for client, took in each.items():
            factor = took / pace
            self._factor[client] = min(factor, GROWTH * self._factor.get(client, factor))

    def length(self, client: ClientId) -> float:
        """Return the client's expected time on the fastest machine, in an unknown unit.

        The unit is the same for all clients, so their times can be compared.
        """
        return self._factor.get(client, 1.0) * self._examples(client)

    def speeds(self, cores: Mapping[M, int]) -> dict[M, float]:
        """Return each machine's speed: its number of cores times the speed of one of its cores.

        A core of the fastest machine has speed 1. `cores` has the number of cores of each machine.
        """
        usual = median(self._pace.values()) if self._pace else 1.0
        paces = {machine: self._pace.get(machine, usual) for machine in cores}
        fastest = min(paces.values(), default=1.0)
        return {machine: cores[machine] * fastest / pace for machine, pace in paces.items()}


def groups(clients: Sequence[ClientId], size: int) -> list[Group]:
    """Divide clients, in order, into groups of `size`. Only the last group may be smaller."""
    return [tuple(clients[i : i + size]) for i in range(0, len(clients), size)]


def placed(
    work: Sequence[Group],
    seconds: Callable[[ClientId], float],
    speeds: Mapping[M, float],
    home: Callable[[Group], M | None],
    slack: float = SLACK,
) -> dict[M, list[Group]]:
    """Assign each group of clients in `work` to a machine. Returns each machine's groups, in order.

    `seconds(client)` is a client's expected time on a core of the fastest machine. `speeds` has
    each machine's speed: its number of cores times the speed of one core, where a core of the
    fastest machine has speed 1. `home(group)` is the machine that has the group's examples, or
    None.

    Groups with long times are assigned first. A group is assigned to its home if the home then
    needs at most (1 + `slack`) * T for all its groups, and otherwise to the machine that is free
    first. T is the time in which all machines together can train all groups, or the time of the
    longest group on one core if that is longer.
    """
    names = list(speeds)
    length = {group: sum(map(seconds, group)) for group in work}
    total, capacity = sum(length.values()), sum(speeds.values())
    allowed = (1 + slack) * max(total / capacity, max(length.values(), default=0.0))
    load = dict.fromkeys(names, 0.0)
    free = [(0.0, i) for i in range(len(names))]
    chosen: dict[Group, M] = {}
    for group in sorted(work, key=lambda group: -length[group]):
        place = home(group)
        if place is None or load[place] + length[group] / speeds[place] > allowed:
            while load[names[free[0][1]]] > free[0][0]:  # outdated: it has more work now
                heapq.heapreplace(free, (load[names[free[0][1]]], free[0][1]))
            place = names[free[0][1]]
        load[place] += length[group] / speeds[place]
        chosen[group] = place
    shares: dict[M, list[Group]] = {name: [] for name in names}
    for group in work:
        shares[chosen[group]].append(group)
    return shares
