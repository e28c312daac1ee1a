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
from itertools import count

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.lazy import special
from fedveil.entropy import Entropy

#: `neighbours: auto` is the complete graph up to this many clients.
COMPLETE_UP_TO = 1000
#: `default_threshold` is at least this number.
LEAST_THRESHOLD = 80
#: `automatic` provides for this share of the clients colluding with the server ...
CORRUPT = 0.2
#: ... and this share dropping out, before or after the server draws the graph ...
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
        """Return the client and its neighbours, in ascending order."""
        return self.members[self.numbers[client]]

    def connects(self, clients: Iterable[int]) -> bool:
        """Return True if the subgraph of these `clients` is connected."""
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
    """Return a random graph of `clients`, in which each client has `neighbours` neighbours.

    No such graph exists if `neighbours` and the number of clients are both odd. Then each client
    has one neighbour more. Returns the complete graph if there are no more clients than a client
    and its neighbours. `entropy` draws the order of the clients on the circle.
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
def default_threshold(clients: int) -> int:
    """Return the smallest threshold for which `automatic` returns a number of neighbours.

    The result is at least `LEAST_THRESHOLD`. Requires more than `COMPLETE_UP_TO` clients, because
    `automatic` returns None for fewer.
    """
    return next(t for t in count(LEAST_THRESHOLD) if automatic(clients, t) is not None)


@lru_cache
def automatic(clients: int, threshold: int) -> int | None:
    """Return the smallest even number of neighbours that is safe for `clients` and `threshold`.

    Returns None, which stands for the complete graph, if there are at most `COMPLETE_UP_TO`
    clients, or if no number below half of the clients is safe. A number is safe if it makes two
    failures unlikely while at most the fraction `DROPPED` of the clients drops out, at any time and
    independently of the graph:

    - Colluding clients, the fraction `CORRUPT`, unmask a client. They can do so if a neighbourhood
      has `threshold` of them, or if the graph of the honest survivors is not connected. The
      probability must be at most `UNMASKED`.
    - The round is void because a neighbourhood has fewer than `threshold` clients left. The
      probability must be at most `VOID`.
    """
    # Each probability is computed for the worst time of the dropouts. Dropouts before the graph is
    # drawn make the colluding clients a larger part of it. Later ones cut it and void the round.
    #
    # More neighbours make it likelier that `threshold` of them are corrupt, and less likely that
    # too few remain or that the circle is cut. Bisection finds both ends of the range that may be
    # safe. If the lower end is not safe, the reason is that the two chances of being unmasked add
    # up; the second falls by a constant factor with each step and soon vanishes.
    if clients <= COMPLETE_UP_TO:
        return None
    corrupt, dropped = math.ceil(CORRUPT * clients), math.ceil(DROPPED * clients)

    def unmasked(k: int) -> float:
        return _overrun(clients - dropped, corrupt, k, threshold)

    def apart(k: int) -> float:
        return _cut(clients, corrupt + dropped, k)

    def enough(k: int) -> bool:
        # A neighbourhood of k + 1 clients is void if fewer than `threshold` are left.
        void = clients * _tail(clients, dropped, k + 1, k + 2 - threshold)
        return void <= VOID and apart(k) <= UNMASKED

    degrees = range(2 * ((threshold + 1) // 2), min(clients // 2, 4 * threshold), 2)
    first = bisect_left(degrees, True, key=enough)
    last = bisect_left(degrees, True, lo=first, key=lambda k: unmasked(k) > UNMASKED)
    return next((k for k in degrees[first:last] if unmasked(k) + apart(k) <= UNMASKED), None)


@lru_cache
def tolerated(clients: int, neighbours: int, threshold: int) -> int:
    """Return how many of `clients` clients can collude with the server without unmasking others.

    Each client has `neighbours` neighbours. In the complete graph, the result is `threshold` - 1.
    In a sparse graph, the result is at most the fraction `CORRUPT` of the clients. If no more
    clients than the result collude, they unmask others with a probability of at most `UNMASKED`.
    They do so if a neighbourhood has `threshold` of them, or if the graph of the honest survivors
    is not connected.

    This holds for any dropouts, because the server voids a round with too few clients: it draws no
    graph among fewer than `fewest_drawn` clients, and unmasks no sum of fewer than `fewest_left`
    vectors. While at most the fraction `DROPPED` of the clients drops out, enough clients are left.
    """
    if neighbours >= clients - 1:
        return threshold - 1
    dropped, drawn = math.ceil(DROPPED * clients), _even(neighbours)

    def unsafe(corrupt: int) -> bool:
        unmasked = _overrun(clients - dropped, corrupt, drawn, threshold)
        return unmasked + _cut(clients, corrupt + dropped, neighbours) > UNMASKED

    most = int(CORRUPT * clients)
    probably = bisect_left(range(1, most + 1), True, key=unsafe)
    return max(probably, min(_always_safe(neighbours, threshold), most))


@lru_cache
def fewest_drawn(clients: int, neighbours: int, threshold: int) -> int:
    """Return the smallest number of clients among which the server may draw the graph.

    The round was planned for `clients` clients, and as many of them as `tolerated` returns may
    collude. In a smaller graph they would be a larger fraction of the clients, and might unmask
    others with a probability above `UNMASKED`.
    """
    if not (corrupt := _at_risk(clients, neighbours, threshold)):
        return threshold

    def safe(drawn: int) -> bool:
        return _exposed(drawn, drawn, corrupt, neighbours, threshold) <= UNMASKED

    # With neighbours + 1 clients or fewer, the graph would be complete.
    sizes = range(max(neighbours + 2, corrupt + 1), clients)
    return sizes.start + bisect_left(sizes, True, key=safe)


@lru_cache
def fewest_left(clients: int, drawn: int, neighbours: int, threshold: int) -> int:
    """Return the smallest number of vectors whose sum the server may unmask.

    The round was planned for `clients` clients, and as many of them as `tolerated` returns may
    collude. The server drew the graph among `drawn` clients, each with `neighbours` neighbours. If
    it unmasked a sum of fewer vectors, the colluding clients might unmask a part of the sum with a
    probability above `UNMASKED`: dropouts and colluding clients together could cut the graph.
    """
    if not (corrupt := _at_risk(clients, neighbours, threshold)):
        return threshold

    def safe(left: int) -> bool:
        return _exposed(drawn, left, corrupt, neighbours, threshold) <= UNMASKED

    return bisect_left(range(drawn), True, key=safe)


def _at_risk(clients: int, neighbours: int, threshold: int) -> int:
    """Return how many colluding clients (`tolerated`) might unmask others after many dropouts.

    Returns 0 if this number of clients can never unmask others: in the complete graph, or if the
    number is at most the result of `_always_safe`.
    """
    most = tolerated(clients, neighbours, threshold)
    complete = neighbours >= clients - 1
    return 0 if complete or most <= _always_safe(neighbours, threshold) else most


def _always_safe(neighbours: int, threshold: int) -> int:
    """Return a number of colluding clients that can never unmask others in a sparse graph.

    This holds for every graph in which each client has `neighbours` neighbours (see `sparse`), and
    for any dropouts. A client's secrets can be recovered from the shares of `threshold` clients of
    its neighbourhood. More colluding clients than the result may also be safe.
    """
    # The circle is cut by two runs of neighbours / 2 clients that dropped out or collude. The
    # neighbourhood of the client next to a run contains the run, and the round is void unless
    # `threshold` of its members are left. So at least threshold - 1 - neighbours / 2 clients of
    # each run have not dropped out, but collude.
    return max(0, min(threshold - 1, 2 * (threshold - 1 - _even(neighbours) // 2) - 1))


def _exposed(drawn: int, left: int, corrupt: int, neighbours: int, threshold: int) -> float:
    """Return an upper bound on the probability that colluding clients unmask a part of the sum.

    Of the graph's `drawn` clients, `corrupt` collude with the server, and `left` have not dropped
    out. Each client has `neighbours` neighbours.
    """
    gone = corrupt + drawn - left
    unmasked = _overrun(drawn, corrupt, _even(neighbours), threshold)
    return unmasked + _cut(drawn, gone, neighbours)


def _overrun(drawn: int, corrupt: int, neighbours: int, threshold: int) -> float:
    """Return an upper bound on Pr[some honest client has `threshold` colluding neighbours].

    Of the graph's `drawn` clients, `corrupt` collude. Each client has `neighbours` neighbours. A
    bound of at most `UNMASKED` also holds for a graph with more honest clients.
    """
    # The exact union bound is the number of honest clients, drawn - corrupt, times a tail among the
    # drawn - 1 others. Its term for j colluding neighbours is the term used here, times 1 -
    # (corrupt - j) / (drawn - neighbours).
    if neighbours >= drawn - 1:  # a complete graph
        return float(corrupt >= threshold)
    return drawn * _tail(drawn, corrupt, neighbours, threshold)


def _cut(drawn: int, gone: int, neighbours: int) -> float:
    """Return an upper bound on the probability that `gone` random clients disconnect the others.

    The graph has `drawn` clients, each with `neighbours` neighbours.
    """
    # The circle is cut where neighbours / 2 clients in a row are gone. Two cuts disconnect clients.
    # Counting one cut is on the safe side.
    return float(drawn * (gone / drawn) ** (neighbours // 2))


def _even(neighbours: int) -> int:
    """Round `neighbours` up to an even number: the most neighbours of a client in `sparse`."""
    return neighbours + neighbours % 2


def _tail(clients: int, marked: int, drawn: int, least: int) -> float:
    """Return the probability that at least `least` of `drawn` random clients are marked.

    Of all `clients`, `marked` are marked. Terms far from the mean, below 2^-180, are omitted.
    """
    mean, reach = drawn * marked / clients, 8 * math.sqrt(drawn)
    low = max(least, math.floor(mean - reach), drawn + marked - clients, 0)
    counts = np.arange(low, min(drawn, marked, math.ceil(mean + reach)) + 1)
    if not len(counts):
        return 0.0
    logs = (
        _choose(marked, counts)
        + _choose(clients - marked, drawn - counts)
        - _choose(clients, np.array(drawn))
    )
    return float(np.exp(logs).sum())


def _choose(n: int, k: Int64s) -> Float64s:
    gammaln = special().gammaln
    result: Float64s = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return result
