"""A round of LeNet with a loss of the user's own: in native code, and in PyTorch's loop.

    python benchmarks/own_loss.py

Two jobs train the same task, one with `training.engine: auto`, the other with `loop`. They take
turns on one core.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import fedveil
from fedveil.federated.job import Job

CLIENTS, ROUNDS, REPEATS = 40, 5, 3


class Smoothed(fedveil.Task):
    """Cross-entropy with smoothed labels."""

    targets = "class"

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def best(engine: str, folder: Path) -> float:
    """Return the fewest seconds of a round. The first two rounds compile and warm up."""
    job = Job.load(
        None,
        [
            f"rounds={ROUNDS + 2}",
            "data={name: 'federation:data', split: by_client}",
            f"clients={{number: {CLIENTS}, fraction: 1.0}}",
            "model=lenet",
            "task=own_loss:Smoothed",
            f"training={{epochs: 1, batch_size: 20, lr: 0.1, engine: {engine}}}",
            f"evaluation.every={ROUNDS + 2}",
            "record.page=false",
            "simulation.workers=0",
        ],
    )
    stamps: list[float] = []
    fedveil.simulate(job, folder, progress=lambda record: stamps.append(time.perf_counter()))
    return min(b - a for a, b in list(pairwise(stamps))[1:-1])


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ |= {
        "BENCHMARK_MODEL": "lenet",
        "BENCHMARK_CLIENTS": str(CLIENTS),
        "BENCHMARK_EXAMPLES": "60",
        "BENCHMARK_SEED": "0",
        "BENCHMARK_BYTES": "False",
    }
    seconds = dict.fromkeys(("auto", "loop"), float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS):
            for engine in seconds:
                took = best(engine, Path(folder) / f"{engine}-{repeat}")
                seconds[engine] = min(seconds[engine], took)
    native, loop = seconds.values()
    print(
        f"{CLIENTS} LeNet clients of 60 examples with a loss of the user's own: {native:.3f} s a "
        f"round in native code, {loop:.3f} s in the loop: {loop / native:.1f} times as fast"
    )


if __name__ == "__main__":
    main()
