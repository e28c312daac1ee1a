"""The cost of a report, and from it that of rounds of 100,000 and 1,000,000 clients.

    python benchmarks/scale.py [--parameters N] [--clients N ...] [--seconds S] [--simulate N]

For each protection: seconds to make, and to check and fold, one report on one core (CPU time, the
fastest of several), its bytes, and the server's memory, both fixed and per client. From these, for
each number of clients: bytes received by the server, cores that fold a round within S seconds, and
memory. The line of secure aggregation follows from the sizes of its messages;
benchmarks/secure_aggregation.py measures its parties. With `--simulate` a round of N reports is
folded for each protection, by ten server halves that are then merged.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.base.message import Message, decode, encode
from fedveil.entropy import Seeded
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.protections.base import ClientContext, JobContext, Protection, RoundContext
from fedveil.protections.catalog import build
from fedveil.secagg import masking_graph
from fedveil.secagg.masking import Ring
from fedveil.secagg.phases import SEALED_BYTES
from fedveil.secagg.share_tags import TAG_BYTES

LENET = 61_706
SAMPLE = 24
#: The measured protections, with their parameters that are not defaults.
CASES: dict[str, dict[str, Any]] = {
    "not_encrypt": {},
    "dp_encrypt": {},
    "signds": {},
    "rr": {},
    "oue": {},
}
#: The bits of an entry before the sum.
ENTRY_BITS = 20
#: The number of aggregators of `--simulate`.
AGGREGATORS = 10


@dataclass(frozen=True)
class Cost:
    """The cost of a report: seconds to make it and to fold it into the sums, and its bytes.

    The server needs `fixed_bytes` of memory with one report, and `client_bytes` more for each
    further report.
    """

    make_s: float
    fold_s: float
    report_bytes: int
    fixed_bytes: int
    client_bytes: float


def measured(position: str, changes: dict[str, Any], dimension: int) -> Cost:
    """Return the costs of a protection whose clients send one report each."""
    block = ProtectionSettings.BLOCKS[position]
    chosen = ProtectionSettings(name=position, **({block: changes} if block else {}))
    weighting = "by_size" if position == "not_encrypt" else "equal"
    context = JobContext(weighting, dimension, SAMPLE, rounds=1)
    protection = build(position, chosen.settings, context)
    model = Seeded(0, "model").generator().normal(0, 0.1, dimension).astype(np.float32)
    opening = _server(protection, model, SAMPLE).opening()
    reports = [encode(_report(protection, model, opening, i)) for i in range(SAMPLE)]
    make_s = _best(lambda: encode(_report(protection, model, opening, SAMPLE)))
    return Cost(
        make_s,
        _fold_s(protection, model, reports),
        len(reports[0]),
        *_memory(protection, model, reports),
    )


def _server(protection: Protection, model: np.ndarray, clients: int) -> Any:
    return protection.server_round(
        RoundContext(range(clients), 1, model, protection.initial_state())
    )


def _report(protection: Protection, model: np.ndarray, opening: Message, client: int) -> Message:
    entropy = Seeded(1, client)
    update = entropy.stream("update").generator().normal(0, 1e-3, len(model)).astype(np.float32)
    context = ClientContext(client, 1, model, 60, entropy)
    return protection.client_round(context).respond(opening, update)


def _fold_s(protection: Protection, model: np.ndarray, reports: Sequence[bytes]) -> float:
    """Return the seconds to decode, check and fold the fastest report, after a warm-up."""
    server = _server(protection, model, len(reports))
    seconds = []
    for client, report in enumerate(reports):
        began = time.process_time()
        server.receive(client, decode(report))
        seconds.append(time.process_time() - began)
    return min(seconds[4:])


def _memory(
    protection: Protection, model: np.ndarray, reports: Sequence[bytes]
) -> tuple[int, float]:
    """Return the bytes of a server half with one report, and those added by each further report."""
    tracemalloc.start()
    server = _server(protection, model, len(reports))
    server.receive(0, decode(reports[0]))
    one = tracemalloc.get_traced_memory()[0]
    for client, report in enumerate(reports[1:], 1):
        server.receive(client, decode(report))
    many = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return one, max(0.0, (many - one) / (len(reports) - 1))


def _best(work: Callable[[], Any], repeats: int = 5) -> float:
    work()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def lines(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table."""
    d = options.parameters
    yield f"{d:,} parameters; rounds of {options.seconds:g} s"
    yield f"{'':<12} {'make':>9} {'fold':>9} {'report':>10} {'server':>9} {'a client':>9}"
    costs = {}
    for position, changes in CASES.items():
        costs[position] = cost = measured(position, changes, d)
        yield (
            f"{position:<12} {1e3 * cost.make_s:>6.2f} ms {1e3 * cost.fold_s:>6.3f} ms "
            f"{cost.report_bytes:>8,} B {cost.fixed_bytes / 1e6:>6.2f} MB "
            f"{cost.client_bytes:>7.0f} B"
        )
    for clients in options.clients:
        yield f"\n{clients:,} clients: bytes in, a second; cores that fold; memory"
        for position, cost in costs.items():
            bytes_in = clients * cost.report_bytes
            cores = clients * cost.fold_s / options.seconds
            memory = cost.fixed_bytes + clients * max(cost.client_bytes, _COUNTED_BYTES)
            yield (
                f"{position:<12} {bytes_in / 1e9:>9.3f} GB {_rate(bytes_in / options.seconds):>12} "
                f"{cores:>9.2f} cores {memory / 1e6:>9.1f} MB"
            )
        yield from secure_lines(clients, d, options.seconds)


#: Bytes of a client's number in two CPython sets.
_COUNTED_BYTES = 100


def secure_lines(clients: int, dimension: int, seconds: float) -> Iterator[str]:
    """Yield the traffic of secure aggregation with the sparse graph through a single server."""
    degree = masking_graph.automatic(clients, masking_graph.default_threshold(clients))
    assert degree is not None
    bits = Ring.for_sum(clients, (1 << ENTRY_BITS - 1) - 1).bits
    shares = (degree + 1) * (SEALED_BYTES + 2 * TAG_BYTES)
    bytes_in = clients * (dimension * bits / 8 + shares)
    yield (
        f"{'pw_encrypt':<12} {bytes_in / 1e9:>9.3f} GB {_rate(bytes_in / seconds):>12} "
        f"into one server; {degree} neighbours, {bits} bits an entry, "
        f"{clients * shares / 1e9:.1f} GB of sealed shares between two phases"
    )


def simulated(position: str, clients: int, dimension: int) -> str:
    """Fold a round of `clients` reports with a tree of aggregators, all in this process.

    The reports are those of `SAMPLE` clients, repeated under other clients' numbers.
    """
    block = ProtectionSettings.BLOCKS[position]
    chosen = ProtectionSettings(name=position, **({block: CASES[position]} if block else {}))
    context = JobContext("equal", dimension, clients, rounds=1)
    protection = build(position, chosen.settings, context)
    model = np.zeros(dimension, np.float32)
    opening = _server(protection, model, SAMPLE).opening()
    reports = [encode(_report(protection, model, opening, i)) for i in range(SAMPLE)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fold_s = merge_s = 0.0
    total = None
    for part in np.array_split(np.arange(clients), AGGREGATORS):
        cohort = part.tolist()
        half = protection.server_round(RoundContext(cohort, 1, model, protection.initial_state()))
        began = time.process_time()
        for client in cohort:
            half.receive(client, decode(reports[client % SAMPLE]))
        fold_s += time.process_time() - began
        began = time.process_time()
        if total is None:
            total = half
        else:
            total.merge(half)
        merge_s += time.process_time() - began
    assert total is not None
    assert total.aggregate().reports == clients
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return (
        f"{position:<12} {clients:,} reports folded in {fold_s:.1f} s of one core, "
        f"{AGGREGATORS} aggregators merged in {1e3 * merge_s:.0f} ms, {memory:.0f} MB more memory"
    )


def _rate(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e6:,.1f} MB/s"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=LENET)
    parser.add_argument("--clients", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds in which reports arrive"
    )
    parser.add_argument("--simulate", type=int, metavar="N", help="also fold a round of N reports")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for line in lines(options):
        print(line, flush=True)
    for position in CASES if options.simulate else ():
        print(simulated(position, options.simulate, options.parameters), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
