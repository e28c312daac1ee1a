"""The cost of EmbeddingDP in accuracy on halves of images: the curve of RESULTS.md.

    FEDVEIL_DATA=FOLDER python benchmarks/mnist_halves.py [--data mnist] [--epochs 5] [--eps 5 ...]

The first line is the same network trained unsplit, by a plain loop. All others are `fedveil
vertical run` with every party in one process. Seed and initial weights are the same. `--data
digits` needs no files. The exit status is 1 if the split costs more than half a point.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from fedveil.privacy import epsilon_text
from fedveil.vertical import VerticalJob, VerticalRun, train
from fedveil.vertical.task import Task, averages, build

BATCH = 64
ALLOWED_POINTS = 0.5
HEAD = (
    "| run | accuracy | best epoch | epsilon of a bit | of a half, sent once | of the run |\n"
    "|---|---|---|---|---|---|"
)


def job(data: str, epochs: int, *overrides: str) -> VerticalJob:
    """Return the job on `data`, with further settings `overrides`."""
    return VerticalJob.load(
        None,
        [
            "task=mnist_halves",
            f"task.mnist_halves.data={data}",
            f"epochs={epochs}",
            f"batch_size={BATCH}",
            *overrides,
        ],
    )


def unsplit(plain: VerticalJob) -> list[float]:
    """Return the accuracy of the joined network after every epoch of a plain torch loop."""
    task = build(plain.task.name, plain.task.settings, plain.seed)
    split = task.split_model()
    model = split.joined()
    optimizer = split.last.optimizer.over(list(model.parameters()))
    (train_columns, train_labels), test = (_everything(task, s) for s in ("train", "test"))
    order = torch.Generator().manual_seed(plain.seed)
    accuracies = []
    for _ in range(plain.epochs):
        for rows in torch.randperm(len(train_labels), generator=order).split(BATCH):
            batch = {name: column[rows] for name, column in train_columns.items()}
            optimizer.zero_grad()
            task.loss(model(batch), train_labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            sums = task.metrics(model(test[0]), test[1])
        accuracies.append(averages(sums)["accuracy"])
        print(f"  unsplit: {accuracies[-1]:.4f}", file=sys.stderr, flush=True)
    return accuracies


def _everything(task: Task, subset: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return all columns of `subset`, with names that begin with the party's, and the labels."""
    owned = {party: task.owned(party, subset) for party in (task.leader, *task.followers)}
    columns = {
        f"{party}.{name}": column
        for party, held in owned.items()
        for name, column in held.columns.items()
    }
    labels = owned[task.leader].labels
    assert labels is not None
    return columns, labels


def split_run(settings: VerticalJob) -> VerticalRun:
    """Run all parties in this process."""

    def show(record: dict[str, object]) -> None:
        if "test_accuracy" in record:
            print(f"  {record['test_accuracy']:.4f}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        return train(settings, Path(folder) / "run", progress=show)


def line(name: str, accuracies: Sequence[float], run: VerticalRun | None = None) -> str:
    """Return a line of the table. The costs are those of the follower `left`."""
    costs = [line.figure for line in run.figures["left"]] if run is not None else []
    shown = [epsilon_text(*costs[i]) for i in (0, 2, 3)] if costs else [epsilon_text(math.inf)] * 3
    return f"| {name} | {accuracies[-1]:.4f} | {max(accuracies):.4f} | {' | '.join(shown)} |"


def curve(data: str, epochs: int, epsilons: Sequence[float]) -> bool:
    """Print the table. Returns True if the split alone costs at most half a point."""
    print(HEAD)
    whole = unsplit(job(data, epochs))
    print(line("unsplit", whole), flush=True)
    protections = {"split, no protection": "null", "one bit, no noise": "{eps: null}"}
    protections |= {f"eps {eps:g}": f"{{eps: {eps}}}" for eps in epsilons}
    lost = 0.0
    for name, protection in protections.items():
        print(f"--- {name}", file=sys.stderr, flush=True)
        run = split_run(job(data, epochs, f"privacy.embedding_dp={protection}"))
        reached = [r["test_accuracy"] for r in run.metrics if "test_accuracy" in r]
        print(line(name, reached, run if protection.startswith("{eps: ") else None), flush=True)
        if protection == "null":
            lost = 100 * (whole[-1] - reached[-1])
    print(f"\nlost by the split: {lost:.2f} points")
    return lost <= ALLOWED_POINTS


def main() -> int:
    """Print the curve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist", choices=("digits", "mnist", "fashion_mnist"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--eps", type=float, action="append")
    arguments = parser.parse_args()
    return 0 if curve(arguments.data, arguments.epochs, arguments.eps or (5, 2, 1, 0.5)) else 1


if __name__ == "__main__":
    sys.exit(main())
