"""The masking graphs: regular, symmetric, random, and safe where they choose themselves."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components
from scipy.stats import binomtest, hypergeom

from fedveil.entropy import Seeded
from fedveil.secagg import masking_graph


@given(st.integers(2, 60), st.integers(1, 70), st.integers(0, 99))
def test_sparse_graphs_are_regular_and_symmetric(count: int, degree: int, seed: int) -> None:
    clients = [7 * i + 2 for i in reversed(range(count))]
    graph = masking_graph.sparse(clients, degree, Seeded(seed))
    assert set(graph.numbers) == set(clients)
    hoods = {client: graph.around(client) for client in clients}
    expected = min(degree + (degree % 2 and count % 2), count - 1)
    for client, hood in hoods.items():
        assert hood == sorted(set(hood))
        assert client in hood
        assert len(hood) == expected + 1
        assert all(client in hoods[other] for other in hood)


def test_the_complete_graph_has_one_neighbourhood() -> None:
    for graph in (masking_graph.complete([5, 1, 3]), masking_graph.sparse([5, 1, 3], 2, Seeded(0))):
        assert graph.numbers == {1: 0, 3: 0, 5: 0}
        assert graph.members == [[1, 3, 5]]


def test_sparse_neighbours_are_drawn_evenly() -> None:
    runs, entropy = 4000, Seeded(0, "graphs")
    met = sum(1 in masking_graph.sparse(range(11), 4, entropy).around(0) for _ in range(runs))
    assert binomtest(met, runs, 4 / 10).pvalue > 1e-6


@pytest.mark.parametrize(("clients", "marked", "drawn"), [(50, 10, 12), (5000, 900, 80)])
def test_tails_are_those_of_the_hypergeometric_law(clients: int, marked: int, drawn: int) -> None:
    for least in (0, 1, 5, 9):
        expected = hypergeom(clients, marked, drawn).sf(least - 1)
        assert math.isclose(
            masking_graph._tail(clients, marked, drawn, least), expected, rel_tol=1e-9
        )
    assert masking_graph._tail(clients, marked, drawn, drawn + 1) == 0


@pytest.mark.parametrize(("clients", "threshold"), [(1001, 80), (10_000, 83), (200_000, 94)])
def test_the_automatic_graph_is_safe_and_no_larger_than_it_must_be(
    clients: int, threshold: int
) -> None:
    assert masking_graph.default_threshold(clients) == threshold
    k = masking_graph.automatic(clients, threshold)
    assert k is not None

    def safe(k: int) -> bool:
        fifth = math.ceil(0.2 * clients)
        void = clients * hypergeom(clients, fifth, k + 1).sf(k + 1 - threshold)
        unmasked = (clients - fifth) * hypergeom(clients - fifth, fifth, k).sf(threshold - 1)
        apart = clients * (2 * fifth / clients) ** (k // 2)
        return bool(void <= 2.0**-20 and unmasked + apart <= 2.0**-40)

    assert safe(k)
    assert not safe(k - 2)
    assert threshold <= k + 1 < clients


def test_the_automatic_graph_is_complete_for_few_clients_and_where_none_is_safe() -> None:
    assert masking_graph.automatic(masking_graph.COMPLETE_UP_TO, 80) is None
    assert masking_graph.automatic(5000, 20) is None
    assert masking_graph.automatic(5000, 3334) is None
    assert np.all([masking_graph.automatic(5000, t) is None or t > 60 for t in range(1, 80)])


def linear_search(clients: int, threshold: int) -> int | None:
    """The first safe degree, each one looked at, from the untruncated law."""
    corrupt, dropped = math.ceil(0.2 * clients), math.ceil(0.2 * clients)
    degrees = np.arange(
        2 * ((threshold + 1) // 2), min(clients // 2, 4 * threshold), 2, dtype=np.int64
    )
    if clients <= masking_graph.COMPLETE_UP_TO or not len(degrees):
        return None
    void = clients * hypergeom(clients, dropped, degrees + 1).sf(degrees + 1 - threshold)
    left = clients - dropped
    unmasked = left * hypergeom(left, corrupt, degrees).sf(threshold - 1)
    apart = clients * ((corrupt + dropped) / clients) ** (degrees // 2)
    safe = (void <= masking_graph.VOID) & (unmasked + apart <= masking_graph.UNMASKED)
    return int(degrees[safe.argmax()]) if safe.any() else None


@pytest.mark.parametrize("clients", [1001, 1002, 1313, 2500, 7001, 20_000, 300_000])
def test_bisection_finds_what_looking_at_every_degree_finds(clients: int) -> None:
    thresholds = [*range(1, 110, 3), 150, 233, 400, clients // 3, clients // 2]
    found = [masking_graph.automatic(clients, t) for t in thresholds]
    assert found == [linear_search(clients, t) for t in thresholds]
    assert any(found)
    assert None in found


def test_bisection_finds_it_under_other_shares_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two chances of being unmasked are close to each other, or one of them is nothing."""
    for share, gone in ((0.05, 0.2), (0.35, 0.2), (0.15, 0.3)):
        monkeypatch.setattr(masking_graph, "CORRUPT", share)
        monkeypatch.setattr(masking_graph, "DROPPED", gone)
        for bound in (2.0**-40, 2.0**-12, 1e-3):
            monkeypatch.setattr(masking_graph, "UNMASKED", bound)
            for threshold in range(10, 240, 7):
                masking_graph.automatic.cache_clear()
                assert masking_graph.automatic(2000, threshold) == every_degree(2000, threshold)
    masking_graph.automatic.cache_clear()


def test_the_automatic_graph_is_not_cut_by_late_dropouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """If void rounds do not matter, only a cut circle demands more neighbours."""
    monkeypatch.setattr(masking_graph, "CORRUPT", 0.15)
    monkeypatch.setattr(masking_graph, "DROPPED", 0.3)
    monkeypatch.setattr(masking_graph, "VOID", 3000.0)
    masking_graph.automatic.cache_clear()
    found = {threshold: masking_graph.automatic(2000, threshold) for threshold in (61, 70, 85)}
    masking_graph.automatic.cache_clear()
    fewest = next(k for k in range(2, 300, 2) if 2000 * 0.45 ** (k // 2) <= 2.0**-40)
    assert found == {61: fewest, 70: fewest, 85: fewest}
    assert fewest > 86


def every_degree(clients: int, threshold: int) -> int | None:
    corrupt = math.ceil(masking_graph.CORRUPT * clients)
    dropped = math.ceil(masking_graph.DROPPED * clients)
    for k in range(2 * ((threshold + 1) // 2), min(clients // 2, 4 * threshold), 2):
        void = clients * masking_graph._tail(clients, dropped, k + 1, k + 2 - threshold)
        left = clients - dropped
        unmasked = left * masking_graph._tail(left, corrupt, k, threshold)
        apart = clients * ((corrupt + dropped) / clients) ** (k // 2)
        if void <= masking_graph.VOID and unmasked + apart <= masking_graph.UNMASKED:
            return k
    return None


@given(st.integers(2, 40), st.integers(1, 9), st.integers(0, 99), st.floats(0.2, 1))
def test_paths_among_the_clients_connect_them(
    count: int, degree: int, seed: int, share: float
) -> None:
    clients = [5 * i + 3 for i in range(count)]
    graph = masking_graph.sparse(clients, degree, Seeded(seed))
    left = [c for c in clients if Seeded(seed, "left", c).bernoulli(share, 1)[0]] or clients[1:2]
    near = [[other in graph.around(client) for other in left] for client in left]
    parts, _ = connected_components(np.array(near, np.int8))
    assert graph.connects(left) == (parts <= 1)


def whole_or_void(hoods: list[set[int]], threshold: int, corrupt: set[int]) -> bool:
    """Return True if no dropouts at all let the server and `corrupt` unmask a part of the sum."""
    everyone = set(range(len(hoods)))
    honest = sorted(everyone - corrupt)
    if any(len(hoods[client] & corrupt) >= threshold for client in honest):
        return False
    for chosen in range(1 << len(honest)):
        there = corrupt | {client for i, client in enumerate(honest) if chosen >> i & 1}
        void = any(len(hood & there) < threshold for hood in hoods)
        if void or not one_part(hoods, there):
            continue
        if not one_part(hoods, there - corrupt):
            return False
    return True


def one_part(hoods: list[set[int]], clients: set[int]) -> bool:
    left, reached = set(clients), sorted(clients)[:1]
    while reached:
        near = hoods[reached.pop()] & left
        left, reached = left - near, [*reached, *near]
    return not left


@pytest.mark.parametrize(
    ("clients", "neighbours", "threshold", "tolerated"),
    [(10, 4, 4, 1), (10, 4, 3, 0), (11, 4, 5, 2), (10, 3, 4, 1), (9, 6, 5, 1)],
)
def test_no_dropouts_let_the_tolerated_clients_unmask_a_part(
    clients: int, neighbours: int, threshold: int, tolerated: int
) -> None:
    """Every set of colluding clients and every set of dropouts is tried."""
    assert masking_graph.tolerated(clients, neighbours, threshold) == tolerated
    graph = masking_graph.sparse(range(clients), neighbours, Seeded(4))
    hoods = [set(graph.around(client)) for client in range(clients)]
    sets = [set(some) for some in combinations(range(clients), tolerated)]
    assert all(whole_or_void(hoods, threshold, some) for some in sets)
    if (clients, neighbours) == (10, 4):  # one more is too many
        more = [set(some) for some in combinations(range(clients), tolerated + 1)]
        assert not all(whole_or_void(hoods, threshold, some) for some in more)


@pytest.mark.parametrize(
    ("clients", "neighbours", "threshold"), [(1438, 40, 21), (1438, 70, 41), (2718, 150, 80)]
)
def test_more_tolerated_clients_would_make_unmasking_likely(
    clients: int, neighbours: int, threshold: int
) -> None:
    most = masking_graph.tolerated(clients, neighbours, threshold)

    def chance(corrupt: int) -> float:
        left = clients - math.ceil(0.2 * clients)
        unmasked = left * hypergeom(left, corrupt, neighbours).sf(threshold - 1)
        gone = (corrupt + math.ceil(0.2 * clients)) / clients
        return float(unmasked + clients * gone ** (neighbours // 2))

    certain = 2 * (threshold - 1 - neighbours // 2) - 1
    assert most == max(0, certain) or chance(most) <= 2.0**-40
    assert most == int(0.2 * clients) or chance(most + 1) > 2.0**-40
    assert max(0, certain) <= most <= 0.2 * clients


def test_the_tolerated_clients_are_few_enough_for_the_neighbour_that_is_added() -> None:
    clients, threshold = 3001, 55
    graph = masking_graph.sparse(range(clients), 101, Seeded(6))
    assert {len(hood) for hood in graph.members} == {1 + 102}
    most = masking_graph.tolerated(clients, 101, threshold)
    left = clients - 601
    assert left * hypergeom(left, most, 102).sf(threshold - 1) <= 2.0**-40
    assert most == masking_graph.tolerated(clients, 102, threshold) == 450


@pytest.mark.parametrize("threshold", [2, 90, 1000, 50_000, 260_000])
def test_the_degree_for_a_million_clients_takes_few_short_sums(
    threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    summed: list[int] = []
    tail, choose = masking_graph._tail, masking_graph._choose

    def counted_tail(clients: int, marked: int, drawn: int, least: int) -> float:
        asked.append(drawn)
        return tail(clients, marked, drawn, least)

    def counted_choose(n: int, k: np.ndarray) -> np.ndarray:
        summed.append(k.size)
        return choose(n, k)

    monkeypatch.setattr(masking_graph, "_tail", counted_tail)
    monkeypatch.setattr(masking_graph, "_choose", counted_choose)
    masking_graph.automatic.cache_clear()
    first = masking_graph.automatic(1_000_000, threshold)
    calls = len(asked)
    assert calls <= 100
    assert max(summed, default=0) <= 16_000
    assert masking_graph.automatic(1_000_000, threshold) == first
    assert len(asked) == calls  # the same terms are worked out once
