"""The graph of clients that mask with each other and hold shares of each other's secrets.

In the complete graph, all clients are neighbours (Bonawitz et al., 2017). The sparse graph is for a
server that follows the protocol (Bell et al., 2020): the server places the clients on a circle in
random order, and a client's neighbours are the nearest clients on both sides.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.lazy import special
from fedveil.entropy import Entropy

#: `neighbours: auto` is the complete graph up to this many clients.
COMPLETE_UP_TO = 1000
#: `automatic` provides for this share of the clients colluding with the server ...
CORRUPT = 0.2
#: ... and this share dropping out ...
DROPPED = 0.2
#: ... and allows these probabilities that a client is unmasked, or that a round is void.
UNMASKED = 2.0**-40
VOID = 2.0**-20


@dataclass(frozen=True)
class MaskingGraph:
    """The neighbourhoods of all clients. A neighbourhood is a client and its neighbours.

    `numbers` maps a client to the index of its neighbourhood, and `members` an index to the clients
    of that neighbourhood, in order. All clients of a complete graph share neighbourhood 0.
    """

    numbers: dict[int, int]
    members: list[list[int]]

    def around(self, client: int) -> list[int]:
        """Return the client and its neighbours, in order."""
        return self.members[self.numbers[client]]

    def connects(self, clients: Iterable[int]) -> bool:
        """Return True if paths of neighbours, all of them in `clients`, connect `clients`."""
        if len(self.members) == 1:  # a complete graph
            return True
        left = set(clients)
        reached = [left.pop()] if left else []
        while reached and left:
            near = left.intersection(self.around(reached.pop()))
            left -= near
            reached += near
        return not left


def complete(clients: Sequence[int]) -> MaskingGraph:
    everybody = sorted(clients)
    return MaskingGraph(dict.fromkeys(everybody, 0), [everybody])


def sparse(clients: Sequence[int], neighbours: int, entropy: Entropy) -> MaskingGraph:
    """Return a random graph in which each client has `neighbours` neighbours.

    No such graph exists if `neighbours` and the number of clients are both odd. Then each client
    has one neighbour more. If there are too few clients, all are neighbours.
    """
    ordered = sorted(clients)
    n = len(ordered)
    if neighbours % 2 and n % 2:
        neighbours += 1
    if neighbours >= n - 1:
        return complete(ordered)
    circle = [ordered[place] for place in entropy.permutation(n)]
    reach = [*range(neighbours // 2 + 1), *([n // 2] if neighbours % 2 else [])]
    members = [
        sorted({circle[(place + r * side) % n] for r in reach for side in (1, -1)})
        for place in range(n)
    ]
    return MaskingGraph({client: place for place, client in enumerate(circle)}, members)


@lru_cache
def automatic(clients: int, threshold: int) -> int | None:
    """Return the smallest safe number of neighbours for `clients` clients and this `threshold`.

    Returns None, for the complete graph, if there are at most `COMPLETE_UP_TO` clients, or if no
    number below half of the clients is safe. A number is safe if both are true:

    - If the fraction `CORRUPT` of the clients colludes with the server, the probability is at most
      `UNMASKED` that a neighbourhood has `threshold` colluding clients, or that the honest
      survivors are no longer connected on the circle.
    - If the fraction `DROPPED` drops out, the probability is at most `VOID` that a neighbourhood
      has fewer than `threshold` clients left.
    """
    # More neighbours make it likelier that `threshold` of them are corrupt, and less likely that
    # too few remain or that the circle is cut. Bisection finds both ends of the range that may be
    # safe. If the lower end is not safe, the reason is that the two chances of being unmasked add
    # up; the second falls by a constant factor with each step and soon vanishes.
    if clients <= COMPLETE_UP_TO:
        return None
    corrupt, dropped = math.ceil(CORRUPT * clients), math.ceil(DROPPED * clients)

    def unmasked(k: int) -> float:
        return clients * _tail(clients, corrupt, k, threshold)

    def apart(k: int) -> float:
        # The circle is cut where k/2 clients in a row are gone. Two cuts disconnect clients.
        # Counting one cut is on the safe side.
        return float(clients * ((corrupt + dropped) / clients) ** (k // 2))

    def enough(k: int) -> bool:
        void = clients * _tail(clients, dropped, k, k - threshold + 1)
        return void <= VOID and apart(k) <= UNMASKED

    degrees = range(2 * ((threshold + 1) // 2), min(clients // 2, 4 * threshold), 2)
    first = bisect_left(degrees, True, key=enough)
    last = bisect_left(degrees, True, lo=first, key=lambda k: unmasked(k) > UNMASKED)
    return next((k for k in degrees[first:last] if unmasked(k) + apart(k) <= UNMASKED), None)


@lru_cache
def tolerated(clients: int, neighbours: int, threshold: int) -> int:
    """Return how many of `clients` clients may collude with the server and unmask no part of a sum.

    Each client has `neighbours` neighbours. In a sparse graph, the result is at most the fraction
    `CORRUPT` of the clients. Up to this number, the probability is at most `UNMASKED` that a
    neighbourhood has `threshold` colluding clients, or that the honest survivors are not connected
    although the fraction `DROPPED` or fewer drop out. A smaller number may be safe with certainty.
    The graph has all `clients`: none of them drops out before it is drawn.
    """
    if neighbours >= clients - 1:
        return threshold - 1
    dropped, reach = math.ceil(DROPPED * clients), neighbours // 2
    drawn = neighbours + neighbours % 2  # `sparse` adds a neighbour if the number of clients is odd

    def unsafe(corrupt: int) -> bool:
        unmasked = clients * _tail(clients, corrupt, drawn, threshold)
        return bool(unmasked + clients * ((corrupt + dropped) / clients) ** reach > UNMASKED)

    most = int(CORRUPT * clients)
    probably = bisect_left(range(1, most + 1), True, key=unsafe)
    # The circle is cut by two runs of `reach` clients that are gone. Next to a run, a neighbourhood
    # has lost these clients, and the round is void unless `threshold` of it are left. So at least
    # threshold - 1 - neighbours / 2 clients of each run have not dropped out, but collude.
    certainly = min(threshold - 1, 2 * (threshold - 1 - (neighbours + 1) // 2) - 1)
    return max(0, probably, min(certainly, most))


def _tail(clients: int, marked: int, drawn: int, least: int) -> float:
    """Return the probability that at least `least` of `drawn` random clients are marked.

    Of all `clients`, `marked` are marked. Terms far from the mean, below 2^-180, are omitted.
    """
    mean, reach = drawn * marked / clients, 8 * math.sqrt(drawn)
    low = max(least, math.floor(mean - reach), drawn + marked - clients, 0)
    count = np.arange(low, min(drawn, marked, math.ceil(mean + reach)) + 1)
    if not len(count):
        return 0.0
    logs = (
        _choose(marked, count)
        + _choose(clients - marked, drawn - count)
        - _choose(clients, np.array(drawn))
    )
    return float(np.exp(logs).sum())


def _choose(n: int, k: Int64s) -> Float64s:
    gammaln = special().gammaln
    result: Float64s = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return result
