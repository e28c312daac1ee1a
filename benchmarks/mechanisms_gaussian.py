"""The speed of the discrete Gaussian, and of OpenDP in the same run.

    python benchmarks/mechanisms_gaussian.py --peers-python PYTHON
    python benchmarks/mechanisms_gaussian.py cost

PYTHON is from an environment made from ``requirements-mechanisms.txt``. ``cost`` prints the table
of docs/mechanisms/dp_encrypt.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.message import encode
from fedveil.entropy import Secure, Seeded
from fedveil.mechanisms.exact import discrete_gaussian
from fedveil.mechanisms.gaussian import GaussianMechanism, clip_to_grid
from fedveil.protections.base import ClientContext, JobContext
from fedveil.protections.dp_encrypt import DPEncrypt, DPEncryptSettings
from figures import Figure, best_s, show
from new_process import last_line

DIMENSION = 1_000_000
PEER_SCRIPT = Path(__file__).parent / "peers" / "opendp_gaussian.py"


def figures(peers_python: str | None) -> Iterator[Figure]:
    """Yield every figure, ours first. Without a Python for the peer there is no ratio."""
    entropy = Secure()
    update = Seeded(0).generator().standard_normal(DIMENSION).astype(np.float32)

    def make_table() -> Any:
        discrete_gaussian._cell_table.cache_clear()
        discrete_gaussian._cumulative.cache_clear()
        return discrete_gaussian._cell_table((1 << 24) - 1)

    yield Figure("discrete Gaussian: largest table", best_s(make_table), "s", at_most=0.5)
    slowest = 0.0
    for eps, delta in ((50.0, 0.01), (1.0, 1e-5)):
        mechanism = GaussianMechanism(eps, delta, 1.0)
        seconds = best_s(lambda m=mechanism: m.privatize(update, entropy), repeats=9)
        ns = seconds / DIMENSION * 1e9
        yield Figure(f"discrete Gaussian privatize, eps {eps:g}", ns, "ns", at_most=25)
        slowest = max(slowest, ns)
    if peers_python is not None:
        theirs = last_line(peers_python, PEER_SCRIPT)
        name = f"OpenDP {theirs['version']}, noise of 1000 steps"
        yield Figure(name, theirs["ns_per_value"], "ns")
        ratio = theirs["ns_per_value"] / slowest
        yield Figure("  over our slower one", ratio, "times", at_least=200)


def print_cost() -> None:
    """Print a Markdown table of the cost of dp_encrypt at several epsilons and deltas.

    A row has sigma, the share of the norm that rounding keeps, the number of clients for which the
    noise in their mean is as long as an update, and the bits sent per parameter.
    """
    print("| ε | δ | parameters | σ | kept by rounding | clients for noise = update | bits |")
    print("|---|---|---|---|---|---|---|")
    for size in (66_521, 1_000_000):
        update = Seeded(0).generator().standard_normal(size).astype(np.float32)
        for eps, delta in ((1.0, 1e-5), (10.0, 1e-3), (50.0, 0.01), (50.0, 0.001), (200.0, 0.001)):
            mechanism = GaussianMechanism(eps, delta, 1.0)
            step = mechanism.grid(size).step
            kept = step * math.sqrt(float(np.sum(clip_to_grid(update, 1.0, step) ** 2)))
            settings = DPEncryptSettings(dp_eps=eps, dp_delta=delta)
            half = DPEncrypt(settings, JobContext("equal", size, 1, rounds=1)).client_round(
                ClientContext(0, 1, update, 1, Seeded(0))
            )
            bits = 8 * len(encode(half.respond({"round": 1}, update))) / size
            clients = size * mechanism.sigma**2
            print(
                f"| {eps:g} | {delta:g} | {size:,} | {mechanism.sigma:.4g} | {100 * kept:.1f}% "
                f"| {clients:,.0f} | {bits:.1f} |"
            )


def main() -> int:
    """Print the figures. Returns the exit status: 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("speed", "cost"), default="speed")
    parser.add_argument("--peers-python", help="the Python with the peer")
    arguments = parser.parse_args()
    if arguments.what == "cost":
        print_cost()
        return 0
    return show(figures(arguments.peers_python))


if __name__ == "__main__":
    sys.exit(main())
