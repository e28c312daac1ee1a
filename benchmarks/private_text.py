"""The next letter of Shakespeare's speakers under distributed noise: perplexity by epsilon.

    FEDVEIL_DATA=... python benchmarks/private_text.py test [--seeds 3] [--only "epsilon 8"]
    FEDVEIL_DATA=... python benchmarks/private_text.py choose

Each of 193 speakers of the plays is a client, and epsilon covers everything that a speaker says:
replace-one, whole run, delta 1e-5, against the server itself. The model adds up one table of
128 x 128 scores for each of the last letters. The test part is the last fifth of each speaker's
text. `choose` scores the settings on a fifth of the training text that it holds out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

import fedveil
from fedveil.data.shakespeare import LETTERS
from fedveil.federated.job import Job
from fedveil.privacy.loss import format_epsilon

JOB = (
    "data={name: shakespeare, split: by_client}", "task=next_token", "clients={fraction: 1.0}",
    "training={epochs: 1, batch_size: 10000, lr: 1.0}", "server.optimizer=momentum",
    "server.weighting=equal", "evaluation.every=10", "simulation={masks: false, workers: 0}",
)  # fmt: skip
BLOCK = "protection.distributed_dp"


class LastLetters(nn.Module):
    """Scores the next letter: the sum of one table for each of the last `order` letters."""

    def __init__(self, order: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(LETTERS, LETTERS) for _ in range(order))
        for table in self.tables:
            nn.init.zeros_(table.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        shifted = (functional.pad(x, (ago, 0))[:, :length] for ago in range(len(self.tables)))
        return sum(table(letters) for table, letters in zip(self.tables, shifted, strict=True))


def one() -> nn.Module:
    """Return the model of the last letter alone: 16,384 parameters."""
    return LastLetters(1)


def three() -> nn.Module:
    """Return the model of the last three letters: 49,152 parameters."""
    return LastLetters(3)


class Row(NamedTuple):
    """A line of the table: its name, and the changes to the job."""

    name: str
    changes: Sequence[str]


def noisy(model: str, epsilon: float, clip: float, rate: float, rounds: int) -> Row:
    """Return a row for distributed noise at `epsilon`."""
    return Row(
        f"{model}, epsilon {epsilon:g}, clip {clip:g}, rate {rate:g}, {rounds} rounds",
        [
            f"model=private_text:{model}", f"rounds={rounds}", f"server.lr={rate}",
            "protection=distributed_dp", f"{BLOCK}.target_epsilon={epsilon}",
            f"{BLOCK}.clip={clip}", f"{BLOCK}.dropout_tolerance=0.1",
        ],
    )  # fmt: skip


def plain(model: str, rate: float, rounds: int) -> Row:
    """Return a row without noise."""
    changes = [f"model=private_text:{model}", f"rounds={rounds}", f"server.lr={rate}"]
    return Row(f"{model}, no noise", [*changes, "protection=not_encrypt"])


MODES = {
    "choose": [
        noisy("one", epsilon, 0.1, rate, 20) for epsilon in (8, 2) for rate in (4.0, 16.0, 64.0)
    ],
    "test": [],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    asked = parser.parse_args()
    choosing = asked.mode == "choose"
    sys.modules["private_text"] = sys.modules["__main__"]
    print("| model and setting | perplexity, mean | each seed | epsilon, as it was | seconds |")
    print("|---|---|---|---|---|", flush=True)
    for row in MODES[asked.mode]:
        if asked.only not in row.name:
            continue
        found, lasts, began = [], {}, time.perf_counter()
        for seed in range(1 if choosing else asked.seeds):
            held = ["evaluation.clients=0.2"] if choosing else []
            job = Job.load(None, [*JOB, *row.changes, *held, f"seed={seed}"])
            with tempfile.TemporaryDirectory() as folder:
                lasts = fedveil.simulate(job, Path(folder) / "run").metrics[-1]
            found.append(lasts["clients_mean" if choosing else "perplexity"])
        took = (time.perf_counter() - began) / len(found)
        print(
            f"| {row.name} | {statistics.mean(found):.2f} | "
            f"{' '.join(f'{each:.2f}' for each in found)} | "
            f"{format_epsilon(lasts['epsilon_run_every_round'])} | {took:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
