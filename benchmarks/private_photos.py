"""CIFAR-10 at five organisations under distributed noise: accuracy by epsilon for one image.

    FEDVEIL_DATA=... python benchmarks/private_photos.py test [--folder DIR] [--only "epsilon 3"]
    FEDVEIL_DATA=... python benchmarks/private_photos.py choose [--folder DIR]
    FEDVEIL_DATA=... python benchmarks/private_photos.py MODE --model pretrained_photos

Runs examples/private_cifar/examples-5.yaml with the real protocol and discrete noise: replace-one,
whole run, delta 1e-5, against the server itself. `--folder` names a folder of images, as
`data.name: image_folder` takes it, in place of CIFAR-10's own files. The features of the images are
computed once, into `--features`, and all runs train on them. For `public_patches`, this gives the
same model to the byte. `pretrained_photos` computes features of several images together here, which
changes their last bits.

`choose` simulates settings: heads trained on 40,000 of the training images and scored on the other
10,000, with floating-point noise as large as that of 50,000. It uses no test image.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import fedveil
from fedveil.base.array_types import Array
from fedveil.data import datasets, image_folder
from fedveil.federated.job import Job
from fedveil.learning.trained_part import TrainedPart
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.privacy.loss import format_epsilon
from row_choice import chosen

EXAMPLE = Path(__file__).parent.parent / "examples" / "private_cifar"
sys.path.insert(0, str(EXAMPLE))  # the models' modules

BLOCK = "protection.distributed_dp"
HELD_OUT, SPLIT_SEED = 10_000, 2026
#: Names the file of the features for `seen`, which a job calls.
FILE = "FEDVEIL_PHOTO_FEATURES"


class Row(NamedTuple):
    """A line of the table: its name, and the changes to the example's job."""

    name: str
    changes: Sequence[str]


def noisy(epsilon: float, rate: float) -> Row:
    changes = [f"{BLOCK}.target_epsilon={epsilon}", f"server.lr={rate}"]
    return Row(f"epsilon {epsilon:g}", changes)


ROWS = {
    "public_patches": (
        noisy(3, 1.28),
        noisy(8, 5.12),
        Row("no noise", ["protection=not_encrypt", "server.lr=1.28"]),
    ),
    "pretrained_photos": (noisy(3, 2.56), noisy(8, 5.12)),
}


#: The rows of `choose`, and their epsilons.
CHOICES = {f"epsilon {epsilon}": epsilon for epsilon in (3, 8)}


class Tried(NamedTuple):
    """A setting to try: the clip of an image's gradient, and the server's learning rate."""

    clip: float
    rate: float


def make_features(model: str, folder: str, file: Path) -> None:
    """Save the features of all training and test images in `file`, unless it exists."""
    if file.exists():
        return
    data = image_folder.read(folder) if folder else datasets.load("cifar10")
    module = importlib.import_module(model)
    seen = getattr(module, "in_batches", None)
    if seen is None:
        seen = TrainedPart.of(module.head(data.train.x.shape[1:], data.classes)).seen
    rows = {
        f"{kind}_{name}": values
        for name, examples in (("train", data.train), ("test", data.test))
        for kind, values in (("x", seen(examples.x)), ("y", examples.y))
    }
    np.savez(file, **rows)


def seen() -> dict[str, Array]:
    """Return the features and labels, for `data.name: private_photos:seen`."""
    with np.load(os.environ[FILE], allow_pickle=False) as saved:
        return dict(saved)


@torch.no_grad()
def choose(epsilon: float, tried: Sequence[Tried], rounds: int) -> list[float]:
    """Return the held-out images' accuracy for each setting, with the noise of all images."""
    found = seen()
    order = torch.from_numpy(np.random.default_rng(SPLIT_SEED).permutation(len(found["x_train"])))
    labels = torch.from_numpy(found["y_train"])[order]
    rows = torch.from_numpy(found["x_train"])[order]
    x, y, judged = rows[HELD_OUT:], labels[HELD_OUT:], rows[:HELD_OUT]
    clips, rates = (torch.tensor([getattr(one, key) for one in tried]) for key in Tried._fields)
    deviation = 2 * clips * analytic_sigma(epsilon, 1e-5, 1.0) * math.sqrt(rounds) / len(rows)
    longest = (x.square().sum(1) + 1).sqrt()[:, None]
    truth = torch.nn.functional.one_hot(y).float()[:, :, None]
    draw = torch.Generator().manual_seed(0)
    heads = torch.zeros(x.shape[1] + 1, truth.shape[1], len(tried))
    velocity = torch.zeros_like(heads)
    for _ in range(rounds):
        scores = (x @ heads[:-1].flatten(1)).view(len(x), -1, len(tried)) + heads[-1]
        wrong = torch.softmax(scores, 1) - truth
        wrong *= (clips / (wrong.square().sum(1).sqrt() * longest)).clamp(max=1)[:, None]
        step = torch.cat([x.T @ wrong.flatten(1), wrong.sum(0).flatten()[None]]).view(heads.shape)
        noise = deviation * torch.randn(heads.shape, generator=draw)
        velocity = 0.9 * velocity + step / len(x) + noise
        heads -= rates * velocity
    scores = (judged @ heads[:-1].flatten(1)).view(len(judged), -1, len(tried)) + heads[-1]
    right = scores.argmax(1) == labels[:HELD_OUT, None]
    return (100 * right.double().mean(0)).tolist()


def print_choice(rounds: int, names: Collection[str], rates: Sequence[float]) -> None:
    """Print the accuracy of held-out training images, by epsilon, clip and rate."""
    print(f"{rounds} rounds")
    print("| epsilon | clip, rate: accuracy |")
    print("|---|---|", flush=True)
    tried = [Tried(clip, rate) for clip in (1.5, 3.0, 6.0) for rate in rates]
    for name in names:
        epsilon = CHOICES[name]
        pairs = zip(tried, choose(epsilon, tried, rounds), strict=True)
        said = ", ".join(f"{one.clip:g}, {one.rate:g}: {right:.2f}" for one, right in pairs)
        print(f"| {epsilon} | {said} |", flush=True)


def run(row: Row, seed: int) -> dict[str, Any]:
    """Run a row's job on the features and return its last record."""
    changes = ["data.name=private_photos:seen", "model=public_patches:on_features"]
    workers = "simulation.workers=0"  # the features would be copied to each
    job = Job.load(EXAMPLE / "examples-5.yaml", [*row.changes, *changes, workers, f"seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        return fedveil.simulate(job, Path(folder) / "run").metrics[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=("test", "choose"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=40, help="of `choose`")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.64, 1.28, 2.56], help="same")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--folder", default="", help="images in place of CIFAR-10's own files")
    parser.add_argument("--features", type=Path, default=Path("photo_features.npz"))
    parser.add_argument("--model", choices=ROWS, default="public_patches")
    asked = parser.parse_args()
    rows = ROWS[asked.model]
    known = CHOICES if asked.mode == "choose" else [row.name for row in rows]
    names = chosen(parser, known, asked.only, anywhere=True)
    make_features(asked.model, asked.folder, asked.features)
    os.environ[FILE] = str(asked.features)
    if asked.mode == "choose":
        print_choice(asked.rounds, names, asked.rates)
        return
    print(
        "| protection | accuracy, mean | each seed | epsilon | bytes per report | seconds per run |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    for row in rows:
        if row.name not in names:
            continue
        began = time.perf_counter()
        found = [run(row, seed) for seed in asked.seeds]
        took = (time.perf_counter() - began) / len(found)
        right, last = [100 * one["accuracy"] for one in found], found[0]
        print(
            f"| {row.name} | {statistics.mean(right):.2f} | "
            f"{' '.join(f'{one:.2f}' for one in right)} | "
            f"{format_epsilon(last['epsilon_run_every_round'])} | "
            f"{last['bytes_up_per_client']:.0f} | {took:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
