"""The bytes that compression saves in split training, and its cost in accuracy.

    python benchmarks/split_compression.py                     the tables, 2 minutes
    python benchmarks/split_compression.py --task halves --epochs 3 --seeds 2       3 minutes
    python benchmarks/split_compression.py --task halves --data mnist --epochs 1 --bits 4 1

Bytes are those of a follower's full step in both directions, as messages are encoded. Quality is
that of runs of `--epochs` epochs: the mean and the spread over seeds. One core. No setting is
chosen by this benchmark.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attack_labels import two_files
from fedveil.vertical import VerticalJob, train


def measured(
    task: dict[str, Any], compression: dict[str, Any] | None, epochs: int, seeds: int
) -> str:
    """Train a split model with several seeds. Returns a table row with bytes and quality."""
    reached, crossed = [], 0.0
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            job = VerticalJob(task=task, compression=compression, seed=seed, epochs=epochs)
            run = train(job, Path(folder) / "run")
        reached.append((run.metrics[-1]["test_accuracy"], run.metrics[-1]["test_loss"]))
        follower = run.split.followers[0]
        first = next(record for record in run.records[follower] if "step" in record)
        crossed = first["bytes_sent_per_step"] + first["bytes_received_per_step"]
    held = compression or {}
    cells = [str(held.get("bits", 32)), "yes" if held.get("error_feedback") else "no"]
    cells.append(f"{crossed:,.0f}")
    cells += [f"{np.mean(v):.3f} ± {np.std(v):.3f}" for v in zip(*reached, strict=True)]
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("tables", "halves"), default="tables")
    parser.add_argument("--bits", type=int, nargs="*", default=[8, 4, 2, 1])
    parser.add_argument("--data", default="digits", help="of the halves")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| bits | error feedback | bytes per step | accuracy | log loss |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        task: dict[str, Any] = {"name": "mnist_halves", "mnist_halves": {"data": given.data}}
        if given.task == "tables":
            task = two_files(Path(folder))
        settings: list[dict[str, Any] | None] = [None]
        for bits in given.bits:
            for feedback in (False, True):
                settings.append({"bits": bits, "error_feedback": feedback})
        for compression in settings:
            print(measured(task, compression, given.epochs, given.seeds), flush=True)


if __name__ == "__main__":
    main()
