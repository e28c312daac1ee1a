"""Times rounds of a protection in fedveil's simulator. Prints one line of JSON, like the peers.

The time is that between the ends of rounds, as for the peers. It includes everything in a round:
training, protection, aggregation, the ledger, the record, and the checkpoint's fsync.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import fedveil
from fedveil.federated.job import Job

#: The models that a job can name. The others belong to this benchmark.
BUILT_IN = ("lenet", "transformer")


def main() -> None:
    """Run and print."""
    options = parse_arguments()
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ |= {
        "BENCHMARK_MODEL": options.model,
        "BENCHMARK_CLIENTS": str(options.clients),
        "BENCHMARK_EXAMPLES": str(options.examples),
        "BENCHMARK_SEED": str(options.seed),
        "BENCHMARK_BYTES": str(options.bytes),
    }
    stamps: list[tuple[float, float]] = []
    rounds = options.warmup + options.rounds
    fraction = options.per_round / options.clients
    job = Job.load(
        None,
        [
            f"rounds={rounds + 1}",  # the last round evaluates and is not timed
            "data={name: 'federation:data', split: by_client}",
            f"clients={{number: {options.clients}, fraction: {fraction}}}",
            f"model={'' if options.model in BUILT_IN else 'federation:'}{options.model}",
            f"task={'next_token' if options.model == 'transformer' else 'classification'}",
            f"training={{epochs: {options.epochs}, batch_size: {options.batch}, lr: {options.lr}}}",
            f"training.device={options.device}",
            f"evaluation.every={rounds + 1}",
            f"protection={options.protection}",
            f"simulation.workers={options.workers}",
            f"seed={options.seed}",
            *options.set,
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        run = fedveil.simulate(
            job,
            Path(folder) / "run",
            progress=lambda record: stamps.append((time.perf_counter(), time.process_time())),
        )
    spent = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(stamps)][options.warmup - 1 : -1]
    print(json.dumps(describe(options, spent, run.metrics)))


def describe(
    options: argparse.Namespace, spent: list[tuple[float, float]], metrics: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the result to print. `spent` has the seconds and CPU seconds of each timed round."""
    times, cpu = zip(*spent, strict=True)
    timed = metrics[options.warmup : -1]
    parts = ("training", "protection", "aggregation")
    own, children = (
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {
        "peer": f"fedveil {fedveil.__version__}",
        "model": options.model,
        "protection": options.protection,
        "clients_per_round": options.per_round,
        "workers": options.workers,
        "seconds_per_round": times,
        "best": min(times),
        "median": statistics.median(times),
        "cpu_ms_a_client": 1000 * min(cpu) / options.per_round,
        "peak_rss_mb": round((own + options.workers * children) / 1024),
        "bytes_up_per_client": metrics[0]["bytes_up_per_client"],
        **{
            f"seconds_{part}": statistics.median(r.get(f"seconds_{part}", 0.0) for r in timed)
            for part in parts
        },
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", choices=["lenet", "cnn", "dense", "transformer"], default="lenet"
    )
    parser.add_argument("--clients", type=int, default=1000, help="clients in all")
    parser.add_argument("--per-round", type=int, default=100, help="clients in each round")
    parser.add_argument("--examples", type=int, default=60, help="examples of each client")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="torch's name of the device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bytes", action="store_true", help="images of 8-bit integers")
    parser.add_argument("--protection", default="not_encrypt")
    parser.add_argument("--set", action="append", default=[], help="further settings of the job")
    return parser.parse_args()


if __name__ == "__main__":
    main()
