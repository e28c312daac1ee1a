"""The simulator against its peers, in one run: seconds a round, growth with the cohort, memory.

    python benchmarks/simulator.py --peers peers/bin/python

`--peers` is the Python of an environment made from requirements-peers.txt; without it fedveil is
timed alone. Contenders take turns, so that a slow spell of the machine falls on all of them, and
the best round of each is compared, which is the one that was disturbed least.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: How many times faster than the peer's best fedveil's best round is to be.
FLOORS = {("lenet", "pfl"): 1.25, ("lenet", "flwr"): 5.0, ("dense", "pfl"): 1.5}


def measure(python: str, script: str, *arguments: object) -> dict[str, Any]:
    """Run one script; its last line is its result."""
    command = [python, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{result['peer']:>16} {result['model']:>6} {result['clients_per_round']:>5} a round, "
        f"{result['workers']} workers: best {result['best']:.3f} s, "
        f"median {result['median']:.3f} s, {result['peak_rss_mb']} MB",
        flush=True,
    )
    return result


def compare(options: argparse.Namespace) -> bool:
    """Time everybody on the same work; whether every floor is met."""
    met = True
    for model in ("lenet", "dense"):
        best: dict[str, float] = {}
        contenders = [(sys.executable, "fedveil_rounds.py", 2)]
        if options.peers:
            contenders += [(options.peers, "peers/pfl_rounds.py", 2)]
            if model == "lenet":
                contenders += [(options.peers, "peers/flower_rounds.py", 4)]
        for _ in range(options.repeats):
            for python, script, workers in contenders:
                flags = ("--model", model, "--workers", workers, "--rounds", options.rounds)
                result = measure(python, script, *flags)
                name = result["peer"].split()[0].replace("flower", "flwr")
                best[name] = min(best.get(name, float("inf")), result["best"])
        for (of_model, peer), floor in FLOORS.items():
            if of_model == model and peer in best:
                ratio = best[peer] / best["fedveil"]
                met &= ratio >= floor
                word = "met" if ratio >= floor else "MISSED"
                print(
                    f"{model}: {ratio:.2f}x the rounds a second of {peer} (floor {floor}x: {word})"
                )
    return met


def growth(options: argparse.Namespace) -> None:
    """Seconds a round for 10, 100 and 1,000 clients a round."""
    for cohort in (10, 100, 1000):
        measure(
            sys.executable,
            "fedveil_rounds.py",
            *("--per-round", cohort, "--rounds", options.rounds if cohort < 1000 else 3),
        )


def main() -> None:
    """Measure and print; exits 1 where a floor is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="the peers' Python")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    met = compare(options)
    growth(options)
    raise SystemExit(not met)


if __name__ == "__main__":
    main()
