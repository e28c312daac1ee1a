"""The speed of RR and OUE, and of pure-ldp and multi-freq-ldpy in the same run.

    python benchmarks/mechanisms_unary.py --peers-python PYTHON
    python benchmarks/mechanisms_unary.py accuracy

PYTHON is from an environment made from ``requirements-unary.txt``. ``accuracy`` prints the tables
of docs/mechanisms/rr_oue.md, from the variance formula alone.
"""

from __future__ import annotations

import argparse
import math
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.entropy import Secure
from fedveil.mechanisms.exact.alias_table import AliasTables
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.mechanisms.unary.state_sum import sum_tables
from figures import Figure, best_s, show
from new_process import last_line

DIMENSION = 1_000_000
CELLS = 50
EPS = 0.5
SERVER_REPORTS = 500
PEER_SCRIPT = Path(__file__).parent / "peers" / "unary_reports.py"


def figures(peers_python: str | None) -> Iterator[Figure]:
    """Yield every figure, ours first. Without a Python for the peers there are no ratios."""
    per_parameter = 1e9 / DIMENSION
    encoding = UnaryEncoding("rr", EPS, CELLS)
    entropy = Secure()
    values = np.random.default_rng(0).uniform(-1, 1, DIMENSION).astype(np.float32)
    states = encoding.encode(values)

    def make_tables() -> AliasTables:
        return sum_tables.__wrapped__(encoding.exact_p, encoding.exact_q, CELLS)

    yield Figure("tables for 101 states", best_s(make_tables), "s", at_most=0.3)
    yield Figure("encode, nearest", best_s(lambda: encoding.encode(values)) * per_parameter, "ns")
    ours = best_s(lambda: encoding.perturb(states, entropy)) * per_parameter
    yield Figure("rr sum report", ours, "ns", at_most=10)
    whole = best_s(lambda: encoding.pack(encoding.perturb(values, entropy))) * per_parameter
    yield Figure("  from values to packed bytes", whole, "ns")
    oue = UnaryEncoding("oue", EPS, CELLS)
    yield Figure(
        "oue sum report", best_s(lambda: oue.perturb(states, entropy)) * per_parameter, "ns"
    )
    bits = UnaryEncoding("rr", EPS, CELLS, report="bits")
    packed_bits = best_s(lambda: bits.perturb(states, entropy)) * per_parameter
    yield Figure("rr bits report, packed", packed_bits, "ns", at_most=60)
    yield from server_figures(encoding, values, entropy)
    if peers_python is not None:
        yield from peer_figures(peers_python, ours)


def server_figures(encoding: UnaryEncoding, values: Any, entropy: Secure) -> Iterator[Figure]:
    """Yield the time to turn 500 packed reports into means, and the memory of adding them up."""
    reports = [encoding.pack(encoding.perturb(values, entropy)) for _ in range(4)]

    def fold(count: int) -> Any:
        running = None
        for i in range(count):
            report = encoding.unpack(reports[i % len(reports)], DIMENSION)
            running = encoding.add(running, report)
        assert running is not None
        return encoding.estimate(running, count)

    name = f"server: {SERVER_REPORTS} packed sum reports to means"
    yield Figure(name, best_s(lambda: fold(SERVER_REPORTS), repeats=2), "s", at_most=1.5)
    peaks = []
    for count in (5, 50):
        tracemalloc.start()
        fold(count)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    yield Figure("server: peak memory, 5 reports", peaks[0] / 1e6, "MB")
    yield Figure(
        "server: peak memory of 50 over that of 5", peaks[1] / peaks[0], "times", at_most=1.01
    )


def peer_figures(python: str, ours: float) -> Iterator[Figure]:
    """Run the peers' script in their own environment. Yields their times over ours."""
    results = last_line(python, PEER_SCRIPT, "--states", 2 * CELLS + 1, "--eps", EPS)
    for name, floor in (("multi-freq-ldpy", 200), ("pure-ldp", 500)):
        label, theirs = f"{name} {results[name]['version']}", results[name]["ns_per_parameter"]
        yield Figure(f"rr report, {label}", theirs, "ns")
        yield Figure("  over our sum report", theirs / ours, "times", at_least=floor)


def error(kind: Any, rounding: Any, eps: float, cells: int, n: int) -> float:
    """Return the RMSE of the mean of n clients that share a value, uniform on [-1, 1].

    Nearest rounding gives every client the same error, uniform within half a cell. Stochastic
    rounding gives each its own error, of variance f (1 - f) cells^-2 for a fraction f: on average
    1/6.
    """
    noise = UnaryEncoding(kind, eps, cells).variance(n, math.sqrt(1 / 3))
    rounded = 1 / (12 * cells**2) if rounding == "nearest" else 1 / (6 * cells**2 * n)
    return math.sqrt(noise + rounded)


def print_accuracy() -> None:
    """Print Markdown tables: error by cells with both roundings, and the best of 1 to 200 cells."""
    cells, n = (1, 2, 3, 5, 10, 20, 50, 100), 1000
    for eps in (1.0, 4.8):
        print(f"\neps {eps:g}, {n} clients\n")
        print("| cells | " + " | ".join(map(str, cells)) + " | best |")
        print("|---|" + "---|" * (len(cells) + 1))
        for kind, own, label in (("rr", eps, "eps"), ("rr", eps / 2, "eps/2"), ("oue", eps, "eps")):
            for rounding in ("nearest", "stochastic"):
                errors = {c: error(kind, rounding, own, c, n) for c in range(1, 201)}
                row = " | ".join(f"{errors[c]:.3f}" for c in cells)
                best = min(errors, key=errors.__getitem__)
                print(f"| {kind} at {label}, {rounding} | {row} | {best} |")


def main() -> int:
    """Print the figures. Returns the exit status: 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("speed", "accuracy"), default="speed")
    parser.add_argument("--peers-python", help="the Python with the peers")
    arguments = parser.parse_args()
    if arguments.what == "accuracy":
        print_accuracy()
        return 0
    return show(figures(arguments.peers_python))


if __name__ == "__main__":
    sys.exit(main())
