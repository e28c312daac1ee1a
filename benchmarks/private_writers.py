"""MNIST's 539 real writers under distributed noise: accuracy by epsilon, on other people's writing.

    FEDVEIL_DATA=... python benchmarks/private_writers.py test [--seeds 3] [--only "epsilon 2"]
    FEDVEIL_DATA=... python benchmarks/private_writers.py choose [--only public_digits]

Runs examples/private_mnist/writers.yaml with the real protocol and discrete noise. One client is
one writer, and epsilon covers all of a writer's images: replace-one, whole run, delta 1e-5, against
the server itself. 297 other people wrote the test images. `worst tenth` is the mean accuracy of the
tenth of these writers for whom the model is worst. A run takes 40 to 90 seconds of one core.

`choose` prints the simulation by which the settings are chosen, for both models: heads trained on
439 of the training writers and scored on the other 100, with floating-point noise as large as that
of 539. It reads no test image. A line takes about a minute of one core.
"""

from __future__ import annotations

import argparse
import math
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
from fedveil.data.idx import read_idx
from fedveil.federated.job import Job
from fedveil.learning.oriented_filters import OrientedFilters
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.privacy.loss import format_epsilon
from row_choice import chosen

EXAMPLE = Path(__file__).parent.parent / "examples" / "private_mnist"
sys.path.insert(0, str(EXAMPLE))  # the model's module
from public_digits import DigitFeatures  # noqa: E402

SHAPE = (1, 28, 28)
BLOCK = "protection.distributed_dp"
HELD_OUT, SPLIT_SEED = 100, 2026
LEARNED, FILTERS = "public_digits:head", "filters_linear"
#: The rows of `choose`, and their models and epsilons.
CHOICES = {
    f"{model}, epsilon {epsilon}": (model, epsilon)
    for model in (LEARNED, FILTERS)
    for epsilon in (8, 2)
}


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


class Tried(NamedTuple):
    """A setting to try: a clip, and the server's learning rate."""

    clip: float
    rate: float


@torch.no_grad()
def choose(model: str, epsilon: float, tried: Sequence[Tried], rounds: int = 60) -> list[float]:
    """Return the held-out writers' accuracy for each setting, with the noise of 539 writers."""
    rows, labels, owners = features(model)
    people = np.random.default_rng(SPLIT_SEED).permutation(np.unique(owners))
    held, clients = np.isin(owners, people[:HELD_OUT]), people[HELD_OUT:]
    own = [torch.from_numpy(np.flatnonzero(owners == person)) for person in clients]
    clips, rates = (torch.tensor([getattr(one, key) for one in tried]) for key in Tried._fields)
    multiplier = analytic_sigma(epsilon, 1e-5, 1.0) * math.sqrt(rounds / 0.9)  # a tenth drops out
    draw = torch.Generator().manual_seed(0)
    heads = torch.zeros(rows.shape[1], 10, len(tried))
    velocity = torch.zeros_like(heads)
    for _ in range(rounds):
        total = 2 * clips * multiplier * torch.randn(heads.shape, generator=draw) * 439 / 539
        for of in own:
            scores = (rows[of] @ heads.flatten(1)).view(len(of), 10, -1)
            wrong = torch.softmax(scores, 1)
            wrong[torch.arange(len(of)), labels[of]] -= 1
            step = (rows[of].T @ wrong.flatten(1)).view(heads.shape) / len(of)
            total -= step * (clips / step.square().sum((0, 1)).sqrt()).clamp(max=1)
        velocity = 0.9 * velocity + total / len(own)
        heads += rates * velocity
    scores = (rows[held] @ heads.flatten(1)).view(-1, 10, len(tried))
    return (100 * (scores.argmax(1) == labels[held][:, None]).double().mean(0)).tolist()


@cache
def features(model: str) -> tuple[torch.Tensor, torch.Tensor, Array]:
    """Return each training image's features and a 1 for the bias, its label and its writer."""
    data = datasets.load("mnist", writers=True)
    layers = DigitFeatures(SHAPE) if model == LEARNED else OrientedFilters(SHAPE)
    found = torch.cat([layers(part) for part in torch.from_numpy(data.train.x).split(500)])
    rows = torch.cat([found, torch.ones(len(found), 1)], 1)
    return rows, torch.from_numpy(data.train.y), data.owners


def print_choice(names: Iterable[str]) -> None:
    """Print the accuracy of held-out training writers, by model, epsilon, clip and rate."""
    print("| model and epsilon | clip, rate: accuracy |")
    print("|---|---|", flush=True)
    tried = [Tried(0.15, rate) for rate in (0.08, 0.16, 0.32, 0.64, 1.28)]
    for name in names:
        pairs = zip(tried, choose(*CHOICES[name], tried), strict=True)
        said = ", ".join(f"{one.clip:g}, {one.rate:g}: {right:.2f}" for one, right in pairs)
        print(f"| {name} | {said} |", flush=True)


@torch.no_grad()
def worst_tenth(model: torch.nn.Module) -> float:
    """Return the mean accuracy of the tenth of the test writers for whom the model is worst."""
    file, test = mnist.WRITERS.files[1], datasets.load("mnist").test
    writers = read_idx(mnist.WRITERS.path(file), file)[: len(test), 2]
    scores = torch.cat([model(part) for part in torch.from_numpy(test.x).split(1000)])
    right = (scores.argmax(1).numpy() == test.y).astype(np.float64)
    each = np.sort([right[writers == writer].mean() for writer in np.unique(writers)])
    return float(each[: len(each) // 10].mean())


def run(row: Row, seed: int) -> dict[str, Any]:
    """Run a row's job and return its last record, with the worst tenth."""
    job = Job.load(EXAMPLE / "writers.yaml", [*row.changes, f"seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        done = fedveil.simulate(job, Path(folder) / "run")
    return {**done.metrics[-1], "worst": worst_tenth(done.model.eval())}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=("test", "choose"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    asked = parser.parse_args()
    rows = list(tested())
    known = CHOICES if asked.mode == "choose" else [row.name for row in rows]
    names = chosen(parser, known, asked.only, anywhere=True)
    if asked.mode == "choose":
        print_choice(names)
        return
    print("| model and epsilon | accuracy, mean | each seed | worst tenth | epsilon, as it was |")
    print("|---|---|---|---|---|", flush=True)
    for row in rows:
        if row.name not in names:
            continue
        found = [run(row, seed) for seed in range(asked.seeds)]
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
