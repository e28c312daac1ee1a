"""The masking graph is safe whenever clients drop out, or the server ends the round."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.stats import binomtest, hypergeom

from fedveil.entropy import Seeded
from fedveil.errors import RoundVoid
from fedveil.secagg import Client, Server, Terms, masking_graph
from folders import DOCS
from secagg_parts import Played

CLIENTS = [1001, 1438, 3000, 5000, 5500, 7777, 10_000, 20_000, 48_611, 100_000]


def unmasked(drawn: int, corrupt: int, neighbours: int, threshold: int) -> float:
    """Return the exact expected number of honest clients with `threshold` corrupt neighbours."""
    honest = drawn - corrupt
    return float(honest * hypergeom(drawn - 1, corrupt, neighbours).sf(threshold - 1))


def splits(dropped: int) -> Iterator[tuple[int, int]]:
    """Yield how many drop out before and after the graph is drawn, from none early to all early."""
    for early in np.unique(np.linspace(0, dropped, 41, dtype=int)).tolist():
        yield early, dropped - early


@pytest.mark.parametrize("clients", CLIENTS)
def test_a_fifth_may_drop_out_at_any_time(clients: int) -> None:
    """The bounds for each time are from the untruncated laws."""
    threshold = masking_graph.default_threshold(clients)
    k = masking_graph.automatic(clients, threshold)
    assert k is not None
    fifth = math.ceil(0.2 * clients)
    for early, late in splits(fifth):
        drawn = clients - early
        apart = drawn * ((fifth + late) / drawn) ** (k // 2)
        assert unmasked(drawn, fifth, k, threshold) + apart <= 2.0**-40
        void = drawn * hypergeom(drawn, late, k + 1).sf(k + 1 - threshold)
        assert void <= 2.0**-20


@pytest.mark.parametrize("clients", CLIENTS)
def test_the_default_threshold_is_80_or_the_smallest_that_allows_early_dropouts(
    clients: int,
) -> None:
    threshold, fifth = masking_graph.default_threshold(clients), math.ceil(0.2 * clients)
    assert threshold >= 80
    if threshold > 80:
        # The fewest neighbours with which the round is not void are too many at one share less.
        less = threshold - 1
        k = next(
            k for k in range(less + less % 2, 4 * less, 2)
            if clients * hypergeom(clients, fifth, k + 1).sf(k + 1 - less) <= 2.0**-20
        )  # fmt: skip
        assert (clients - fifth) * hypergeom(clients - fifth, fifth, k).sf(less - 1) > 2.0**-40


def test_up_to_a_thousand_clients_have_the_complete_graph() -> None:
    assert {masking_graph.automatic(n, t) for n in range(3, 1001) for t in (2, 2 * n // 3 + 1)} == {
        None
    }


@pytest.mark.parametrize(
    ("drawn", "corrupt", "neighbours", "threshold"),
    [(60, 13, 8, 5), (47, 9, 6, 4), (90, 31, 12, 9), (33, 5, 10, 4)],
)
def test_drawn_graphs_overrun_clients_as_often_as_the_law_says(
    drawn: int, corrupt: int, neighbours: int, threshold: int
) -> None:
    """Graphs are drawn, with so few clients that a neighbourhood is often overrun."""
    graphs, entropy = 1500, Seeded(2, "overrun", drawn)
    overrun = 0
    for _ in range(graphs):
        graph = masking_graph.sparse(range(drawn), neighbours, entropy)
        overrun += sum(
            sum(other < corrupt for other in graph.around(client)) >= threshold
            for client in range(corrupt, drawn)
        )
    expected = unmasked(drawn, corrupt, neighbours, threshold)
    assert 0.05 < expected < 10
    # The clients of one graph depend on each other, so the interval is wide.
    assert overrun / graphs == pytest.approx(expected, rel=0.25)
    bound = masking_graph._overrun(drawn, corrupt, neighbours, threshold)
    assert expected <= bound <= 1.5 * expected


@pytest.mark.parametrize(
    ("drawn", "gone", "neighbours"), [(40, 17, 6), (61, 19, 4), (38, 20, 7), (25, 6, 4)]
)
def test_drawn_graphs_are_cut_no_more_often_than_the_bound(
    drawn: int, gone: int, neighbours: int
) -> None:
    graphs, entropy = 1500, Seeded(3, "cut", drawn)
    apart = sum(
        not masking_graph.sparse(range(drawn), neighbours, entropy).connects(range(gone, drawn))
        for _ in range(graphs)
    )
    bound = masking_graph._cut(drawn, gone, neighbours)
    assert apart > 0 or bound < 0.2
    assert bound > 1 or binomtest(apart, graphs, bound, "greater").pvalue > 1e-6


@pytest.mark.parametrize(
    ("clients", "neighbours", "threshold"),
    [(1001, 134, 80), (1438, 70, 41), (1438, 70, 48), (2718, 151, 80), (300, 101, 63)],
)
def test_the_server_draws_and_unmasks_only_what_is_safe(
    clients: int, neighbours: int, threshold: int
) -> None:
    """One client fewer than either limit is too few, by the exact law or the bound of a cut."""
    corrupt = masking_graph.tolerated(clients, neighbours, threshold)
    even = neighbours + neighbours % 2
    dropped = math.ceil(0.2 * clients)

    def safe(drawn: int, left: int) -> bool:
        gone = (corrupt + drawn - left) / drawn
        law = drawn * hypergeom(drawn, corrupt, even).sf(threshold - 1)
        return bool(law + drawn * gone ** (neighbours // 2) <= 2.0**-40)

    drawn = masking_graph.fewest_drawn(clients, neighbours, threshold)
    assert neighbours + 1 < drawn <= clients - dropped
    assert safe(drawn, drawn)
    assert not safe(drawn - 1, drawn - 1) or drawn == neighbours + 2
    for there in (drawn, clients - dropped, clients):
        left = masking_graph.fewest_left(clients, there, neighbours, threshold)
        assert safe(there, left)
        assert not safe(there, left - 1)
        assert left <= max(clients - dropped, drawn)


@pytest.mark.parametrize(
    ("clients", "neighbours", "threshold"),
    [(1438, 10, 8), (1438, 40, 21), (40, 39, 27), (9, 20, 6)],
)
def test_where_no_dropouts_endanger_a_client_only_the_threshold_limits_them(
    clients: int, neighbours: int, threshold: int
) -> None:
    """The colluding clients are few enough for every graph, or the graph is complete."""
    assert masking_graph.fewest_drawn(clients, neighbours, threshold) == threshold
    assert masking_graph.fewest_left(clients, clients - 1, neighbours, threshold) == threshold


def opened(clients: int, answering: int) -> Server:
    """A server that `answering` of `clients` clients have sent keys."""
    terms = Terms(b"job", 2, 3, 16, threshold=48, sharing=clients, neighbours=70)
    server = Server(terms, range(clients), Seeded(5))
    for client in range(answering):
        answer = Client(client, terms, Seeded(6, client)).respond(server.opening())
        server.receive(client, answer)
    return server


def test_no_graph_is_drawn_among_too_few_clients() -> None:
    """241 clients may collude. Among 600 others, many have the threshold of 48 next to them."""
    fewest = masking_graph.fewest_drawn(1438, 70, 48)
    assert (masking_graph.tolerated(1438, 70, 48), fewest) == (241, 973)
    with pytest.raises(RoundVoid) as void:
        opened(1438, fewest - 1).advance()
    assert (void.value.phase, void.value.got, void.value.needed) == ("advertise", 972, 973)
    messages = opened(1438, fewest).advance()
    assert messages is not None
    assert len(messages) == fewest


def test_no_sum_is_unmasked_that_colluding_clients_may_have_cut() -> None:
    """Two clients may collude. Each neighbourhood still has far more than the threshold of 23."""
    assert masking_graph.tolerated(60, 44, 23) == 2
    played = Played(60, 23, neighbours=44)
    with pytest.raises(RoundVoid) as void:
        played.play({"masked": played.ids[20:33]})
    assert (void.value.phase, void.value.got, void.value.needed) == ("masked", 47, 48)
    assert not any(phase == "unmask" for phase, _ in played.requests)
    assert Played(60, 23, neighbours=44).play({"masked": played.ids[20:32]}).exact


def test_the_page_states_the_automatic_numbers() -> None:
    more = masking_graph.automatic(20_000, 100)
    assert more is not None
    early = math.floor((20_000 - masking_graph.fewest_drawn(20_000, more, 100)) / 20) / 10
    text = (DOCS / "secure-aggregation.md").read_text("utf-8")
    assert f"for 20,000 clients and t = 100, k is {more}, and {early}% of the clients may" in text
    rows = re.findall(r"^\s*\| ([\d,]+) \| (\d+) \| (\d+) \| (\d+\.\d)% \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for number, threshold, k, share in rows:
        clients = int(number.replace(",", ""))
        assert int(threshold) == masking_graph.default_threshold(clients)
        assert int(k) == masking_graph.automatic(clients, int(threshold))
        fewest = masking_graph.fewest_drawn(clients, int(k), int(threshold))
        # Rounded down: the share of clients that may drop out early.
        assert float(share) == math.floor(1000 * (clients - fewest) / clients) / 10
