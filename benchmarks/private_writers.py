"""MNIST's 539 real writers under distributed noise: accuracy by epsilon, on other people's writing.

    FEDVEIL_DATA=... python benchmarks/private_writers.py test [--seeds 3] [--only "epsilon 2"]
    FEDVEIL_DATA=... python benchmarks/private_writers.py choose

Runs examples/private_mnist/writers.yaml with the real protocol and discrete noise. One client is
one writer, and epsilon covers all of a writer's images: replace-one, whole run, delta 1e-5, against
the server itself. 297 other people wrote the test images. `worst tenth` is the mean accuracy of the
tenth of these writers for whom the model is worst. A run takes 40 to 90 seconds of one core.

`choose` prints the runs by which the settings were chosen. They train on 439 of the training
writers and score the other 100, and read no test image. With fewer writers, their noise is larger.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import fedveil
from fedveil.base.array_types import Array
from fedveil.data import datasets, mnist
from fedveil.data.examples import Examples
from fedveil.data.idx import read_idx
from fedveil.federated.job import Job
from fedveil.privacy.loss import format_epsilon

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "private_mnist"
BLOCK = "protection.distributed_dp"
HELD_OUT, SPLIT_SEED = 100, 2026
LEARNED, FILTERS = "public_digits:head", "filters_linear"


class Row(NamedTuple):
    """A line of the table: its name, and the changes to the example's job."""

    name: str
    changes: Sequence[str]


def noisy(model: str, epsilon: float, clip: float, rate: float, *more: str) -> Row:
    """Return a row for distributed noise at `epsilon`, with this clip and server's rate."""
    changes = [f"model={model}", f"{BLOCK}.target_epsilon={epsilon}", f"{BLOCK}.clip={clip}"]
    name = f"{model}, epsilon {epsilon:g}"
    return Row(name, [*changes, f"server.lr={rate}", *more])


def tested() -> Iterable[Row]:
    """Yield the rows of the result: with noise at the chosen settings, and without."""
    for model, rates in ((LEARNED, (0.64, 0.16)), (FILTERS, (0.64, 0.16))):
        for epsilon, rate in zip((8, 2), rates, strict=True):
            yield noisy(model, epsilon, 0.15, rate)
        plain = ["protection=not_encrypt", "server.weighting=equal", "server.lr=2.56"]
        yield Row(f"{model}, no noise", [f"model={model}", *plain])


def chosen() -> Iterable[Row]:
    """Yield the rows by which the settings were chosen."""
    data = ("data.name=private_writers:held_out", "data.split=by_client", "simulation.workers=0")
    rates = {8: (0.32, 0.64, 1.28), 2: (0.08, 0.16, 0.32)}
    for model, epsilon in itertools.product((LEARNED, FILTERS), rates):
        for rate in rates[epsilon]:
            row = noisy(model, epsilon, 0.15, rate, *data)
            yield row._replace(name=f"{row.name}, rate {rate:g}")


def held_out() -> dict[str, Array]:
    """Return the training writers without 100 of them, who are the test part."""
    data = datasets.load("mnist", writers=True)
    people = np.random.default_rng(SPLIT_SEED).permutation(np.unique(data.owners))
    held = np.isin(data.owners, people[:HELD_OUT])
    train, judged = (data.train.of(np.flatnonzero(rows)) for rows in (~held, held))
    return {
        "x_train": train.x, "y_train": train.y, "client_ids": data.owners[~held],
        "x_test": judged.x, "y_test": judged.y,
    }  # fmt: skip


@cache
def judged(choosing: bool) -> tuple[Examples, Array]:
    """Return the images that a model is scored on, and the writer of each."""
    data = datasets.load("mnist", writers=True)
    if choosing:
        people = np.random.default_rng(SPLIT_SEED).permutation(np.unique(data.owners))
        held = np.flatnonzero(np.isin(data.owners, people[:HELD_OUT]))
        return data.train.of(held), data.owners[held]
    file = mnist.WRITERS.files[1]
    return data.test, read_idx(mnist.WRITERS.path(file), file)[: len(data.test), 2]


@torch.no_grad()
def worst_tenth(model: torch.nn.Module, choosing: bool) -> float:
    """Return the mean accuracy of the tenth of the writers for whom the model is worst."""
    examples, writers = judged(choosing)
    scores = torch.cat([model(part) for part in torch.from_numpy(examples.x).split(1000)])
    right = (scores.argmax(1).numpy() == examples.y).astype(np.float64)
    each = np.sort([right[writers == writer].mean() for writer in np.unique(writers)])
    return float(each[: len(each) // 10].mean())


def run(row: Row, seed: int, choosing: bool) -> dict[str, Any]:
    """Run a row's job and return its last record, with the worst tenth."""
    job = Job.load(EXAMPLE / "writers.yaml", [*row.changes, f"seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        done = fedveil.simulate(job, Path(folder) / "run")
    return {**done.metrics[-1], "worst": worst_tenth(done.model.eval(), choosing)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=("test", "choose"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    asked = parser.parse_args()
    choosing = asked.mode == "choose"
    sys.path[:0] = [str(EXAMPLE), str(HERE)]  # the model's module, and this one
    print("| model and epsilon | accuracy, mean | each seed | worst tenth | epsilon, as it was |")
    print("|---|---|---|---|---|", flush=True)
    for row in chosen() if choosing else tested():
        if asked.only not in row.name:
            continue
        found = [run(row, seed, choosing) for seed in range(1 if choosing else asked.seeds)]
        right, worst = ([100 * one[key] for one in found] for key in ("accuracy", "worst"))
        epsilon = format_epsilon(found[0]["epsilon_run_every_round"])
        print(
            f"| {row.name} | {statistics.mean(right):.2f} | "
            f"{' '.join(f'{one:.2f}' for one in right)} | {statistics.mean(worst):.1f} | "
            f"{epsilon} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
