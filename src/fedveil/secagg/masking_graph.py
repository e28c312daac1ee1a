"""The graph of clients that mask with each other and hold shares of each other's secrets.

The complete graph joins everybody with everybody (Bonawitz et al., 2017). The sparse one is for a
server that follows the protocol (Bell et al., 2020): the server draws an order that puts the
clients on a circle, and joins each to its nearest on either side.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
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
    """The neighbourhoods of all clients: each is a client and its neighbours, and has a number.

    `numbers` maps a client to its neighbourhood's number, and `members` a number to that
    neighbourhood's clients, in order. All clients of the complete graph share neighbourhood 0, so
    work that depends on a neighbourhood alone is done once.
    """

    numbers: dict[int, int]
    members: list[list[int]]

    def around(self, client: int) -> list[int]:
        """Return the client's neighbourhood: itself and its neighbours, in order."""
        return self.members[self.numbers[client]]


def complete(clients: Sequence[int]) -> MaskingGraph:
    """Return the graph that joins each client to all others."""
    everybody = sorted(clients)
    return MaskingGraph(dict.fromkeys(everybody, 0), [everybody])


def sparse(clients: Sequence[int], neighbours: int, entropy: Entropy) -> MaskingGraph:
    """Return a random graph that joins each client to `neighbours` others.

    It joins each to one more if `neighbours` and the number of clients are both odd, since no graph
    has an odd number of vertices of odd degree. If there are at most `neighbours` other clients,
    all are neighbours.
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
    """Return the fewest neighbours that are safe for `clients` clients and this `threshold`.

    Returns None, for the complete graph, up to `COMPLETE_UP_TO` clients or if no number below half
    of the clients is safe: little would be saved. A number is safe under two conditions:

    - If a share `CORRUPT` of the clients colludes with the server, then with probability at most
      `UNMASKED` some neighbourhood has `threshold` of them, or the remaining honest clients are no
      longer connected on the circle.
    - If a share `DROPPED` is silent, then with probability at most `VOID` some neighbourhood has
      fewer than `threshold` clients left.

    More neighbours make it likelier that `threshold` of them are corrupt, and less likely that too
    few remain or that the circle is cut. Bisection finds both ends of the range that may be safe.
    If the lower end is not safe, the reason is that the two chances of being unmasked add up; the
    second falls by a constant factor with each step and soon vanishes.
    """
    if clients <= COMPLETE_UP_TO:
        return None
    corrupt, dropped = math.ceil(CORRUPT * clients), math.ceil(DROPPED * clients)

    def unmasked(k: int) -> float:
        return clients * _tail(clients, corrupt, k, threshold)

    def apart(k: int) -> float:
        # The circle is cut where k/2 in a row are gone. Two cuts are needed; one is counted.
        return float(clients * ((corrupt + dropped) / clients) ** (k // 2))

    def enough(k: int) -> bool:
        void = clients * _tail(clients, dropped, k, k - threshold + 1)
        return void <= VOID and apart(k) <= UNMASKED

    degrees = range(2 * ((threshold + 1) // 2), min(clients // 2, 4 * threshold), 2)
    first = bisect_left(degrees, True, key=enough)
    last = bisect_left(degrees, True, lo=first, key=lambda k: unmasked(k) > UNMASKED)
    return next((k for k in degrees[first:last] if unmasked(k) + apart(k) <= UNMASKED), None)


def _tail(clients: int, marked: int, drawn: int, least: int) -> float:
    """Return the probability that `drawn` of `clients` include at least `least` of the `marked`.

    Terms further than 8 sqrt(drawn) from the mean are omitted: together they have a probability
    below 2^-180 (Hoeffding).
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
