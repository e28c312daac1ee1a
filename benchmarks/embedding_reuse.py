"""Sending each example only once under EmbeddingDP: the loss of accuracy and the gain in epsilon.

    python benchmarks/embedding_reuse.py [--eps 5] [--epochs 10] [--seeds 3]       3 minutes
    python benchmarks/embedding_reuse.py --data mnist --epochs 3 --seeds 2         8 minutes

Halves of digits, or of MNIST's images, at default settings. `anew`: every epoch draws new reports.
`once`: under `reuse` the followers' parts are trained in the first epoch, and the reports of this
epoch are reused. `once, untrained`: the followers' parts keep their initial weights. Epsilon is the
ledger's at delta 1e-5 for the example that was sent most often. Held-out examples are evaluated
only at the end. One core.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedveil.privacy import format_epsilon
from fedveil.vertical import VerticalJob, train

SETTINGS: dict[str, dict[str, Any]] = {
    "anew": {},
    "once": {"reuse": True},
    "once, untrained": {"reuse": True, "gradient": "none"},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--eps", type=float, default=5.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| reports | accuracy | log loss | epsilon of an example |\n|---|---|---|---|")
    for name, how in SETTINGS.items():
        reached, epsilon = [], 0.0
        for seed in range(given.seeds):
            with tempfile.TemporaryDirectory() as folder:
                job = VerticalJob(
                    task={"name": "mnist_halves", "mnist_halves": {"data": given.data}},
                    privacy={"embedding_dp": {"eps": given.eps, **how}},
                    epochs=given.epochs,
                    seed=seed,
                    evaluation={"every_epochs": given.epochs},
                )
                run = train(job, Path(folder) / "run")
            reached.append((run.metrics[-1]["test_accuracy"], run.metrics[-1]["test_loss"]))
            epsilon = run.figures["left"][-1].epsilon
        cells = [f"{np.mean(v):.3f} ± {np.std(v):.3f}" for v in zip(*reached, strict=True)]
        print(f"| {name} | {' | '.join(cells)} | {format_epsilon(epsilon, 4)} |", flush=True)


if __name__ == "__main__":
    main()
