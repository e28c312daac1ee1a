"""Divides a round's clients among machines, by the expected training time of each client."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from fedveil.rounds.outcomes import ClientId

M = TypeVar("M", bound=Hashable)
#: Clients that train together, on one machine. Mostly a single one.
Group = tuple[ClientId, ...]

#: A client moves to another machine only if its own one would take longer than the ideal time by
#: more than this share: its examples must move too.
SLACK = 0.02


def groups(clients: Sequence[ClientId], least: int) -> list[Group]:
    """Divide clients, in order, into groups of `least`. The last one may be smaller."""
    return [tuple(clients[i : i + least]) for i in range(0, len(clients), least)]


def placed(
    work: Sequence[Group],
    seconds: Callable[[ClientId], float],
    cores: Mapping[M, int],
    home: Callable[[Group], M | None],
    slack: float = SLACK,
) -> dict[M, list[Group]]:
    """Return a mapping from each machine to the groups that it trains, in the order of `work`.

    Groups are placed one by one, the longest first. `home(group)` is the machine that has the
    group's examples, or None. The group goes to that machine if the machine then needs at most 1 +
    `slack` times the time of a perfectly even placement. Otherwise it goes to the machine that is
    free first. `seconds` is a client's expected time on one core, and `cores` are the machines'
    cores.
    """
    names = list(cores)
    length = {group: sum(map(seconds, group)) for group in work}
    total, capacity = sum(length.values()), sum(cores.values())
    allowed = (1 + slack) * max(total / capacity, max(length.values(), default=0.0))
    load = dict.fromkeys(names, 0.0)
    free = [(0.0, i) for i in range(len(names))]
    chosen: dict[Group, M] = {}
    for group in sorted(work, key=lambda group: -length[group]):
        place = home(group)
        if place is None or load[place] + length[group] / cores[place] > allowed:
            while load[names[free[0][1]]] > free[0][0]:  # that machine got work at its home
                heapq.heapreplace(free, (load[names[free[0][1]]], free[0][1]))
            place = names[free[0][1]]
        load[place] += length[group] / cores[place]
        chosen[group] = place
    shares: dict[M, list[Group]] = {name: [] for name in names}
    for group in work:
        shares[chosen[group]].append(group)
    return shares
