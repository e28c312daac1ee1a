"""Time reports of randomised response in pure-ldp and multi-freq-ldpy.

Stand-alone: run it with the Python of an environment made from ``requirements-unary.txt``. The
last line of standard output is one JSON object: nanoseconds per parameter of one client's report,
every parameter a one-hot code of ``--states`` bits, as each package's own client makes it.

In both packages, eps is the loss of a whole code, with p = e^(eps/2) / (e^(eps/2) + 1). So they get
twice the eps of one bit. A call takes one value, so a report of d parameters is d calls.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Client
from pure_ldp.frequency_oracles.unary_encoding import UEClient


def best_ns(report: Callable[[int], Any], states: list[int], repeats: int) -> float:
    """Return the nanoseconds per parameter of the fastest report. The first report warms up."""
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        for state in states:
            report(state)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:]) / len(states) * 1e9


def main() -> None:
    """Measure both and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=101)
    parser.add_argument("--eps", type=float, default=0.5, help="of one bit of the code")
    parser.add_argument("--parameters", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    k, eps = arguments.states, 2 * arguments.eps
    states = np.random.default_rng(0).integers(0, k, arguments.parameters).tolist()
    pure = UEClient(eps, k, use_oue=False, index_mapper=lambda state: state)
    reports = {
        "pure-ldp": pure.privatise,
        "multi-freq-ldpy": lambda state: UE_Client(state, k, eps, False),
    }
    result = {
        name: {
            "version": importlib.metadata.version(name),
            "ns_per_parameter": best_ns(report, states, arguments.repeats),
        }
        for name, report in reports.items()
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
