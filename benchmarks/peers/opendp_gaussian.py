"""Time OpenDP's discrete Gaussian on a vector of whole numbers.

Stand-alone: run it with the Python of an environment made from ``requirements-mechanisms.txt``.
The last line of standard output is one JSON object: the nanoseconds per value of a call that adds
noise of standard deviation ``--scale`` to a vector of ``--values`` zeros.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time

import opendp.prelude as dp


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1000.0)
    parser.add_argument("--values", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T=float)
    gaussian = dp.m.make_gaussian(*space, scale=arguments.scale)
    zeros = [0] * arguments.values
    seconds = []
    for _ in range(arguments.repeats + 1):
        began = time.perf_counter()
        gaussian(zeros)
        seconds.append(time.perf_counter() - began)
    result = {
        "version": importlib.metadata.version("opendp"),
        "ns_per_value": min(seconds[1:]) / arguments.values * 1e9,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
