"""The speed of all mechanisms and of their peers, and the mechanisms' share of a simulated round.

    python benchmarks/mechanisms.py --ldp-python PYTHON --opendp-python PYTHON

The Pythons are those of environments made from requirements-unary.txt and
requirements-mechanisms.txt. Without them only fedveil is measured. A protection's share of a round
is the time of its two halves (the clients' and the server's), divided by this time plus the time of
training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import mechanisms_embedding
import mechanisms_gaussian
import mechanisms_shares
import mechanisms_signds
import mechanisms_unary
from figures import Figure, show
from new_process import last_line

ROUNDS = Path(__file__).parent / "fedveil_rounds.py"


def in_a_round() -> Iterator[Figure]:
    """Yield each protection's share of the time of a LeNet round of 100 clients.

    Clients train with torch's autograd (engine loop), and in native code (auto), which is faster.
    """
    for name in ("dp_encrypt", "signds", "rr", "oue"):
        for engine, at_most in (("loop", 15), ("auto", None)):
            command = [sys.executable, str(ROUNDS), "--protection", name, "--rounds", "8"]
            command += ["--set", f"training.engine={engine}"]
            result = last_line(*command)
            halves = result["seconds_protection"] + result["seconds_aggregation"]
            share = 100 * halves / (halves + result["seconds_training"])
            what = f"{name}: share of a LeNet round, engine {engine}"
            yield Figure(what, share, "%", at_most=at_most)
        yield Figure(f"{name}: upload", result["bytes_up_per_client"], "bytes")


def main() -> int:
    """Print every figure. Returns the exit status: 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ldp-python", help="the Python of multi-freq-ldpy and pure-ldp")
    parser.add_argument("--opendp-python", help="the Python of OpenDP")
    arguments = parser.parse_args()
    missed = show(mechanisms_unary.figures(arguments.ldp_python))
    missed |= show(mechanisms_signds.figures())
    missed |= show(mechanisms_gaussian.figures(arguments.opendp_python))
    missed |= show(mechanisms_embedding.figures())
    missed |= show(mechanisms_shares.figures())
    return missed | show(in_a_round())


if __name__ == "__main__":
    sys.exit(main())
