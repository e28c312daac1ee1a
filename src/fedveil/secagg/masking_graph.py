"""Who masks with whom, and who holds shares of whose secrets.

Complete: everybody with everybody (Bonawitz et al., 2017). Sparse: the clients are put on a
circle in an order that the server draws, and each is joined to its nearest on either side (Bell
et al., 2020, for a server that follows the protocol).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedveil._arrays import Float64s, Int64s
from fedveil._lazy import special
from fedveil.entropy import Entropy

#: `neighbours: auto` is the complete graph up to this many clients.
COMPLETE_UP_TO = 1000
#: What `automatic` provides for: this share of the clients collude with the server ...
CORRUPT = 0.2
#: ... and this share drop out ...
DROPPED = 0.2
#: ... and these are the probabilities that a client is unmasked, or a round is void, even so.
UNMASKED = 2.0**-40
VOID = 2.0**-20


def complete(clients: Sequence[int]) -> dict[int, list[int]]:
    """Each client's neighbourhood, in order: all, in one list that all of them share."""
    everybody = sorted(clients)
    return dict.fromkeys(everybody, everybody)


def sparse(clients: Sequence[int], neighbours: int, entropy: Entropy) -> dict[int, list[int]]:
    """Each client's neighbourhood, in order: itself and `neighbours` others at random.

    One more where both `neighbours` and the clients are odd in number, since no graph has an odd
    number of odd vertices; all others where there are no more than that.
    """
    ordered = sorted(clients)
    n = len(ordered)
    if neighbours % 2 and n % 2:
        neighbours += 1
    if neighbours >= n - 1:
        return complete(ordered)
    circle = [ordered[place] for place in entropy.permutation(n)]
    reach = [*range(neighbours // 2 + 1), *([n // 2] if neighbours % 2 else [])]
    return {
        client: sorted({circle[(place + r * side) % n] for r in reach for side in (1, -1)})
        for place, client in enumerate(circle)
    }


@lru_cache
def automatic(clients: int, threshold: int) -> int | None:
    """The fewest neighbours that are safe for so many clients with this threshold.

    None, the complete graph, for up to `COMPLETE_UP_TO` clients and where no number below half of
    them is safe: little would be saved.
    Safe: with a share `CORRUPT` of the clients on the server's side, all neighbourhoods together
    hold `threshold` of them, or the honest clients that stay fall apart on the circle, with
    probability at most `UNMASKED`; with a share `DROPPED` silent, some neighbourhood has fewer
    than `threshold` left with probability at most `VOID`.

    More neighbours make it likelier that `threshold` of them are corrupt, and less likely that
    fewer stay or that the circle is cut: both ends of what may be safe are found by bisection.
    Where the first of them is not safe, it is because the two chances of being unmasked count
    together; the second falls by a constant factor with each step and has soon vanished.
    """
    if clients <= COMPLETE_UP_TO:
        return None
    corrupt, dropped = math.ceil(CORRUPT * clients), math.ceil(DROPPED * clients)

    def unmasked(k: int) -> float:
        return clients * _tail(clients, corrupt, k, threshold)

    def apart(k: int) -> float:
        # The circle is cut where k/2 in a row are gone; two cuts are needed, one is counted.
        return float(clients * ((corrupt + dropped) / clients) ** (k // 2))

    def enough(k: int) -> bool:
        void = clients * _tail(clients, dropped, k, k - threshold + 1)
        return void <= VOID and apart(k) <= UNMASKED

    degrees = range(2 * ((threshold + 1) // 2), min(clients // 2, 4 * threshold), 2)
    first = bisect_left(degrees, True, key=enough)
    last = bisect_left(degrees, True, lo=first, key=lambda k: unmasked(k) > UNMASKED)
    return next((k for k in degrees[first:last] if unmasked(k) + apart(k) <= UNMASKED), None)


def _tail(clients: int, marked: int, drawn: int, least: int) -> float:
    """The probability that a uniform draw holds at least so many of the marked clients.

    What lies further than 8 sqrt(drawn) from the mean is left out: all of it together has a
    probability below 2^-180 (Hoeffding).
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
