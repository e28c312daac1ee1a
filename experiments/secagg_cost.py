"""The cost of secure aggregation, compared with the tables of the papers behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean

from experiments.counted_rounds import Cost, Setup, message_bytes, played
from experiments.evidence import LEAST_SEEDS, decided, mean_of, near, whole_interval, with_interval
from experiments.experiment import Experiment, NewPart, Outcome, Scale, Tell, Verdict
from experiments.saved_results import kept
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.secagg import masking_graph

#: Bonawitz et al. 2017: a client's bytes over 2 per entry, by clients and entries (its abstract).
EXPANSION = {(1 << 10, 1 << 20): 1.73, (1 << 14, 1 << 24): 1.98}
#: Its table of running times: 500 clients with 100,000 entries, in seconds.
TIMED = (500, 100_000)
CLIENT_S = 0.849
SERVER_S = {0: 2.0, 10: 62.0, 30: 143.0}
#: Bell et al. 2020, its abstract: this many clients at the per-client cost of a thousand.
BILLION, THOUSAND = 10**9, 10**3
#: Compared orders of growth may differ from the upper bound's by this much.
_SLACK = 0.02
#: The table shows this many of the largest rounds; curves show all.
_ROWS = 3
_SHOWN = ("masks", "key agreements")


@dataclass(frozen=True)
class Sizes:
    """Numbers of clients in counted rounds (an eighth drops out), and in timed rounds.

    `timed` has how often a round with this many clients is timed, with every share of dropouts in
    `percents`.
    """

    clients: Sequence[int]
    timed: Mapping[int, int]
    entries: int = 256
    neighbours: int = 10
    percents: Sequence[int] = tuple(SERVER_S)
    timed_entries: int = TIMED[1]


@dataclass(frozen=True)
class Figures:
    """Costs by number of clients: counted in the complete and in the sparse graph, and timed.

    Timed costs are by number of clients and percentage of dropouts, each with its repetitions.
    """

    sizes: Sizes
    complete: Mapping[int, Cost] = field(default_factory=dict)
    sparse: Mapping[int, Cost] = field(default_factory=dict)
    timed: Mapping[tuple[int, int], Sequence[Cost]] = field(default_factory=dict)


class SecaggCost(Experiment):
    """Counted bytes and operations against the number of clients, and measured seconds."""

    name = "secagg-cost"
    what = "The messages, memory, computation and time of a client and the server."
    source = (
        "001, PW_ENCRYPT: Bonawitz et al., Practical Secure Aggregation, 2017, its tables of costs "
        "and running times; Bell et al., Secure Single-Server Aggregation, 2020, its abstract"
    )
    SCALES: Mapping[Scale, Sizes] = {
        "small": Sizes((8, 16, 32, 64, 128), {TIMED[0]: 1}),
        "full": Sizes((8, 16, 32, 64, 128, 256, 512), {TIMED[0]: LEAST_SEEDS, 1000: 1}),
    }

    def __init__(self, sizes: Sizes | None = None) -> None:
        self._sizes = sizes

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds, mostly for masks: about n² masks in a round of n clients."""
        sizes = self.SCALES[scale]
        timed = sum(n * n * times for n, times in sizes.timed.items()) * len(sizes.percents)
        return 2e-4 * timed + 1.5e-4 * sum(n * n for n in sizes.clients)

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Run rounds of real clients, one after the other."""
        figures = _figures(self._sizes or self.SCALES[scale], folder, tell)
        return Outcome(
            _ran(figures.sizes), [*verdicts(figures)], [*_tables(figures)], [*_plots(figures)],
            seeds=0,
        )  # fmt: skip


def _figures(sizes: Sizes, folder: Path, tell: Tell) -> Figures:
    def cost(name: str, setup: Setup, counted: bool) -> Cost:
        def make() -> dict[str, object]:
            sizes = f"{setup.clients:,} clients with {setup.entries:,} entries"
            tell(NewPart(f"a round of {sizes}, {setup.dropped} of them dropping out"))
            return asdict(played(setup, counted=counted))

        return kept(folder, name, Cost, make)

    complete = {
        n: cost(f"complete-{n}", Setup(n, sizes.entries, n // 8), True) for n in sizes.clients
    }
    sparse = {
        n: cost(f"sparse-{n}", Setup(n, sizes.entries, n // 8, sizes.neighbours), True)
        for n in sizes.clients
        if n > 2 * sizes.neighbours
    }
    timed: dict[tuple[int, int], list[Cost]] = {}
    for n, times in sizes.timed.items():
        for repetition, p in product(range(times), sizes.percents):
            name = f"timed-{n}-{p}-{repetition}"
            setup = Setup(n, sizes.timed_entries, n * p // 100)
            timed.setdefault((n, p), []).append(cost(name, setup, False))
    return Figures(sizes, complete, sparse, timed)


def _ran(sizes: Sizes) -> str:
    repeated = "".join(
        f" Of {n} clients, {mean_of(times, 'rounds')}."
        for n, times in sizes.timed.items()
        if times >= LEAST_SEEDS
    )
    return (
        f"Whole rounds of secure aggregation run in memory, with all clients. Every message is "
        f"encoded and decoded, and every sum is checked. Bytes, memory between phases, and "
        f"operations are counted with {sizes.entries} entries of 16 bits. An eighth of the clients "
        f"drops out before the vectors are sent. Times are CPU seconds of one core, without "
        f"encoding and decoding.{repeated} The papers measured programs in Java on machines of "
        f"their time, so compare the orders of growth, not the seconds. The two sizes of the 2017 "
        f"abstract are computed from the messages' formats, which give exactly the bytes of the "
        f"counted rounds."
    )


def vector_bytes(setup: Setup) -> int:
    """Return the bytes of a client's masked vector."""
    terms = setup.terms
    return (terms.length * terms.bits + 7) // 8


def growth(costs: Mapping[int, float]) -> float:
    """Return p, for a growth of n^p between the two largest numbers n of clients."""
    (n, less), (more_n, more) = sorted(costs.items())[-2:]
    return math.log(more / less) / math.log(more_n / n)


def verdicts(figures: Figures) -> Iterator[Verdict]:
    """Compare the papers' numbers and orders with ours."""
    for (clients, entries), paper in EXPANSION.items():
        ours = message_bytes(Setup(clients, entries)) / (2 * entries)
        yield Verdict.of(
            abs(ours / paper - 1) <= 0.05,
            f"a client's bytes, divided by those in the clear: 2^{math.log2(clients):.0f} clients, "
            f"2^{math.log2(entries):.0f} entries of 16 bits",
            f"{paper}", f"{ours:.2f}", held_to="at most 5% apart",
            same="nearly all bytes are the vector, whose entries must be large enough for the sum",
            other="the entries, or the data sent with the vector, have another size",
        )  # fmt: skip
    yield from _orders(figures)
    yield from _sparse_verdicts(figures)
    yield from _timed_verdicts(figures)


def _orders(figures: Figures) -> Iterator[Verdict]:
    """Judge the 2017 paper's table of costs, for n clients with m entries each."""
    for what, order, power, values in (
        ("client: bytes besides the vector", "O(n + m)", 1, _beside(figures)),
        ("client: storage", "O(n + m)", 1, _each(figures, "client_held")),
        ("client: masks of m entries", "O(n² + mn)", 1, _does(figures, "client_does", "masks")),
        ("server: bytes that arrive", "O(n² + mn)", 2, _each(figures, "server_in")),
        ("server: storage", "O(n² + m)", 2, _each(figures, "server_held")),
        ("server: masks of m entries", "O(mn²)", 2, _does(figures, "server_does", "masks")),
    ):
        exponent = growth(values)
        yield Verdict.of(
            exponent <= power + _SLACK,
            f"{what}, by n clients", order, f"n^{exponent:.2f} ({_last(values)})",
            held_to=f"at most n^{power + _SLACK:g}",
            same="it grows no faster than the paper's table allows",
            other=f"it grows faster than the n^{power} of the paper's table",
        )  # fmt: skip


def _sparse_verdicts(figures: Figures) -> Iterator[Verdict]:
    """Judge the claims of the 2020 paper, whose graph has a logarithmic degree."""
    degrees = {n: _degree(n) for n in (10**4, BILLION)}
    few, many = degrees.values()
    ratio, allowed = many / few, math.log(BILLION) / math.log(10**4)
    yield Verdict.of(
        ratio <= allowed, "neighbours of a client, from ten thousand clients to a billion",
        f"O(log n): at most {allowed:.2f} times", f"{few} and {many}: {ratio:.2f} times",
        held_to=f"at most {allowed:.2f} times",
        same="the fewest that are safe if a fifth of the clients collude with the server",
        other="the number that is used here grows faster than the logarithm",
    )  # fmt: skip
    yield Verdict.of(
        many <= THOUSAND - 1, "a billion clients at the per-client cost of a thousand",
        f"at most {THOUSAND - 1} neighbours", f"{many} neighbours",
        held_to=f"at most {THOUSAND - 1}",
        same="a client's work depends only on its number of neighbours",
        other="this many clients need more neighbours here",
    )  # fmt: skip
    for what, power, values in (
        ("client: masks", 0, {n: c.client_does["masks"] for n, c in figures.sparse.items()}),
        ("server: masks", 1, {n: c.server_does["masks"] for n, c in figures.sparse.items()}),
    ):
        exponent = growth(values)
        # A random graph's dropouts have neighbours that dropped out too, so no two rounds are
        # equal.
        yield Verdict.of(
            exponent <= power + 0.1,
            f"{what} with {figures.sizes.neighbours} neighbours, by n clients",
            "no growth" if power == 0 else "O(n)", f"n^{exponent:.2f} ({_last(values)})",
            held_to=f"at most n^{power + 0.1:g}",
            same="a client has masks only with its neighbours, and the server removes only those",
            other="it grows with more than the neighbours",
        )  # fmt: skip


def _timed_verdicts(figures: Figures) -> Iterator[Verdict]:
    """Judge the running times, if they were measured at the paper's size."""
    found = {p: figures.timed.get((TIMED[0], p)) for p in SERVER_S}
    times = {p: costs for p, costs in found.items() if costs is not None}
    if figures.sizes.timed_entries != TIMED[1] or len(times) < len(SERVER_S):
        return
    client = [cost.client_seconds for cost in times[0]]
    shorter, unsure = decided([CLIENT_S - seconds for seconds in client], slack=0.0)
    whole = whole_interval(len(client))
    yield Verdict.of(
        shorter, "a client's seconds: 500 clients, 100,000 entries",
        f"{CLIENT_S} s", f"{with_interval(client)} s", held_to=f"shorter{whole}",
        same="the machine and the language differ, so this only shows that it is not slower",
        other="slower than the paper's, on a later machine", nothing=unsure,
    )  # fmt: skip
    for percent in (10, 30):
        paper = SERVER_S[percent] / SERVER_S[0]
        seconds, ratios = _server_seconds(times[percent]), _ratios(times[percent], times[0])
        alike, unsure = near([math.log2(ratio / paper) for ratio in ratios], 1)
        masks = unmasked(TIMED[0], percent) / unmasked(TIMED[0], 0)
        yield Verdict.of(
            alike,
            f"the server's seconds if {percent}% drop out, and their ratio to those if none do",
            f"{SERVER_S[percent]:g} s, {paper:.0f} times",
            f"{with_interval(seconds, 1)} s, {with_interval(ratios, 1)} times",
            held_to=f"between half and twice the source's ratio{whole}",
            same="masks take most of the time: a dropout leaves one for every survivor",
            other=f"the server removes {masks:.0f} times as many masks, but here a mask takes a "
            f"smaller share of the time than other work, which does not grow with them",
            nothing=unsure,
        )  # fmt: skip


def _server_seconds(repetitions: Sequence[Cost]) -> list[float]:
    return [cost.server_seconds for cost in repetitions]


def _ratios(more: Sequence[Cost], less: Sequence[Cost]) -> list[float]:
    """Return the ratio of the server's seconds, repetition by repetition."""
    pairs = zip(_server_seconds(more), _server_seconds(less), strict=True)
    return [longer / shorter for longer, shorter in pairs]


def unmasked(clients: int, percent: int) -> int:
    """Return how many masks the server removes: for each survivor, 1 + the number of dropouts."""
    dropped = clients * percent // 100
    return (clients - dropped) * (1 + dropped)


def _degree(clients: int) -> int:
    """Return the fewest neighbours that `clients` clients need, over several thresholds."""
    degrees = (masking_graph.automatic(clients, t) for t in range(40, 200, 10))
    return min(degree for degree in degrees if degree is not None)


def _each(figures: Figures, name: str) -> dict[int, float]:
    return {n: float(getattr(cost, name)) for n, cost in figures.complete.items()}


def _does(figures: Figures, who: str, what: str) -> dict[int, float]:
    return {n: getattr(cost, who)[what] for n, cost in figures.complete.items()}


def _beside(figures: Figures) -> dict[int, float]:
    entries = figures.sizes.entries
    return {n: c.client_up - vector_bytes(Setup(n, entries)) for n, c in figures.complete.items()}


def _last(values: Mapping[int, float]) -> str:
    n = max(values)
    return f"{values[n]:,.0f} at {n}"


def _tables(figures: Figures) -> Iterator[Table]:
    neighbours = f"{figures.sizes.neighbours}"
    costs = [
        (n, with_, cost)
        for with_, of in (("all", figures.complete), (neighbours, figures.sparse))
        for n, cost in [*of.items()][-_ROWS:]
    ]
    rows = [
        (f"{n}", with_, f"{c.client_up:,.0f}",
         f"{vector_bytes(Setup(n, figures.sizes.entries)):,}", f"{c.client_down:,.0f}",
         f"{c.client_held:,.0f}", *(f"{c.client_does[what]:,.0f}" for what in _SHOWN))
        for n, with_, c in costs
    ]  # fmt: skip
    columns = ["clients", "neighbours", "bytes sent", "of these, the vector", "bytes received",
               "bytes held", *_SHOWN]  # fmt: skip
    yield Table(columns, rows, "Bytes and operations of a client.")
    rows = [
        (f"{n}", with_, f"{n // 8}", f"{c.server_in:,}", f"{c.server_held:,}",
         *(f"{c.server_does[what]:,.0f}" for what in _SHOWN))
        for n, with_, c in costs
    ]  # fmt: skip
    columns = ["clients", "neighbours", "dropped out", "bytes that arrive", "holds at most",
               *_SHOWN]  # fmt: skip
    yield Table(columns, rows, "Bytes and operations of the server.")
    rows = []
    for (n, percent), repetitions in figures.timed.items():
        alike = n == TIMED[0] and figures.sizes.timed_entries == TIMED[1]
        paper = SERVER_S.get(percent) if alike else None
        rows.append(
            (f"{n}", f"{percent}%", f"{with_interval([c.client_seconds for c in repetitions])} s",
             f"{CLIENT_S} s" if alike and not percent else "-",
             f"{with_interval(_server_seconds(repetitions), 2)} s",
             "-" if paper is None else f"{paper:g} s", f"{unmasked(n, percent):,}")
        )  # fmt: skip
    columns = ["clients", "drop out", "client", "the paper's", "server", "the paper's",
               "masks to remove"]  # fmt: skip
    yield Table(columns, rows, f"Seconds with {figures.sizes.timed_entries:,} entries of 16 bits.")


def _plots(figures: Figures) -> Iterator[Plot]:
    def curve(name: str, values: Mapping[int, float]) -> Curve:
        return Curve(name, [float(n) for n in values], [*values.values()], marks=True)

    curves = [
        curve("server, complete graph", _does(figures, "server_does", "masks")),
        curve("client, complete graph", _does(figures, "client_does", "masks")),
    ]
    for who in ("server", "client"):
        values = {n: getattr(c, f"{who}_does")["masks"] for n, c in figures.sparse.items()}
        curves.append(curve(f"{who}, {figures.sizes.neighbours} neighbours", values))
    yield Plot(
        "masks", "Masks made in a round", Axis("clients", log=True), Axis("masks", log=True),
        curves, "An eighth of the clients drops out before the vectors are sent.",
    )  # fmt: skip
    percents = [float(p) for p in SERVER_S]
    curves = [Curve("the paper: 500 clients", percents, [*SERVER_S.values()], dashed=True)]
    for n in figures.sizes.timed:
        values = {p: mean(_server_seconds(figures.timed[n, p])) for p in figures.sizes.percents}
        curves.append(curve(f"here: {n:,} clients", values))
    yield Plot(
        "server-seconds", "The server's seconds, by the share of dropouts",
        Axis("clients that drop out, %"), Axis("seconds", log=True), curves,
    )  # fmt: skip
