"""The choice of settings for private MNIST, with the noise of the sum simulated in floating point.

    FEDVEIL_DATA=FOLDER python benchmarks/private_mnist_study.py [NAME ...] [--scan] [--test]

Runs the named settings (default: all) and prints mean, minimum and maximum accuracy over the seeds.
Heads are trained on 50,000 images of the training set and scored on its other 10,000. Clients have
as many images as in the whole run, and the noise of the mean is that of the full number of clients.
`--scan` tries half and twice the clip and the rate. `--test` trains on all 60,000 images and scores
on the test set, once, after everything has been chosen. A setting with clients takes about a minute
on two busy cores, one with examples several. `--bfloat16` is faster on processors that support it.

Every client takes part in every round. A unit's update, one step of rate 1 on all its data, is
clipped to L2 norm `clip`. The sum gets Gaussian noise of z·2·clip. The server applies its mean with
momentum 0.9 and `rate`. Epsilon is replace-one, at delta 1e-5. `rounds` releases of ratio z compose
exactly to one release of ratio z / sqrt(rounds).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Array
from fedveil.data import datasets
from fedveil.data.examples import Examples
from fedveil.learning.oriented_filters import FilterBank, OrientedFilters
from fedveil.privacy.gaussian_curve import analytic_sigma

DELTA, MOMENTUM, CLASSES = 1e-5, 0.9, 10
#: Settings are chosen on this number of images from the training set.
VALIDATION, SPLIT_SEED = 10_000, 2026
#: As in the filters: much smaller values are rounding errors.
FAINT = 1e-2


@dataclass(frozen=True)
class Setting:
    """A federation of `units` clients (or examples) with `images` images each, and its settings.

    `epsilon` is that of the whole run.
    """

    units: int
    images: int
    epsilon: float
    clip: float
    rate: float
    rounds: int
    second_order: bool = False

    @property
    def noise_multiplier(self) -> float:
        """The sigma of the sum, in units of 2·clip."""
        if self.epsilon == math.inf:
            return 0.0
        return analytic_sigma(self.epsilon, DELTA, 1.0) * math.sqrt(self.rounds)


SETTINGS = {
    "clients-6000-eps8": Setting(6_000, 10, 8, 0.3, 12.0, 60),
    "clients-6000-eps1": Setting(6_000, 10, 1, 0.3, 1.28, 60),
    "clients-1000-eps8": Setting(1_000, 60, 8, 0.15, 2.56, 60),
    "clients-1000-eps2": Setting(1_000, 60, 2, 0.15, 0.64, 60),
    "clients-100-eps8": Setting(100, 600, 8, 0.1, 0.32, 60),
    "examples-eps3": Setting(60_000, 1, 3, 0.3, 16.0, 150, True),
    "examples-eps1": Setting(60_000, 1, 1, 0.4, 3.2, 150, True),
}


def moduli(planes: torch.Tensor, filters: torch.Tensor, stride: int) -> torch.Tensor:
    """Return the strength of each filter pair at each position, independent of the phase."""
    padded = nn.functional.pad(planes, [filters.shape[-1] // 2] * 4, mode="replicate")
    answers = nn.functional.conv2d(padded, filters, stride=stride)
    return (answers[:, 0::2].square() + answers[:, 1::2].square()).sqrt()


def second_order(x: torch.Tensor, bank: FilterBank) -> torch.Tensor:
    """Return the finest scale's moduli, filtered once more: 3,136 features of norm 1."""
    filters = torch.from_numpy(next(bank.filters()))[:, None]
    turns, side = bank.orientations, x.shape[-1] // bank.stride
    first = moduli(x, filters, bank.stride).reshape(-1, 1, side, side)
    again = nn.functional.avg_pool2d(moduli(first, filters, 1), bank.pool // bank.stride)
    again = again.reshape(len(x), turns, turns, *again.shape[2:])
    rows = (again - again.mean(2, keepdim=True)).flatten(1)
    return rows / (rows.norm(dim=1, keepdim=True) + FAINT)


Rows: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@torch.no_grad()
def seen(examples: Examples, second: bool) -> Rows:
    """Return the rows that a head is trained on, each with a 1 for the bias, and their labels."""
    filters, found = OrientedFilters(examples.x.shape[1:]), []
    bank = filters.bank
    for images in torch.from_numpy(examples.x).split(500):
        rows = filters(images)
        if second:  # a part beside the scales, of the same norm as each of them
            weight = bank.norm / math.sqrt(len(bank.wavelengths))
            rows = torch.cat([rows, weight * second_order(images, bank)], 1)
            rows = bank.norm * rows / rows.norm(dim=1, keepdim=True).clamp_min(1)
        found.append(torch.cat([rows, torch.ones(len(rows), 1)], 1))
    return torch.cat(found), torch.from_numpy(examples.y)


class Clients:
    """The training rows, divided into units, and the noisy mean of their clipped updates."""

    def __init__(self, rows: torch.Tensor, labels: torch.Tensor, images: int, kind: torch.dtype):
        kept = len(rows) // images * images
        rows, self._labels, self._images = rows[:kept], labels[:kept], images
        units = rows.reshape(-1, images, rows.shape[1])
        self._gram = units @ units.mT
        self._rows = rows.to(kind).contiguous()
        self._columns = self._rows.t().contiguous()

    def mean_update(self, heads: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
        """Return the mean of the units' clipped steps for `heads` [rows, classes, settings]."""
        kind, (size, classes, many) = self._rows.dtype, heads.shape
        scores = (self._rows @ heads.reshape(size, -1).to(kind)).float()
        wrong = torch.softmax(scores.view(-1, classes, many), 1)
        wrong[torch.arange(len(wrong)), self._labels] -= 1
        units = wrong.view(len(self._gram), self._images, classes * many)
        squares = (torch.bmm(self._gram, units) * units).view(len(units), -1, classes, many)
        norms = squares.sum((1, 2)).clamp_min(1e-20).sqrt() / self._images
        share = (clips / norms).clamp(max=1) / self._images / len(units)
        steps = units.view(len(units), -1, classes, many) * share[:, None, None]
        return -(self._columns @ steps.reshape(len(wrong), -1).to(kind)).float().view(heads.shape)


def accuracies(
    tried: Sequence[Setting], train: Rows, judged: Rows, seed: int, kind: torch.dtype
) -> list[float]:
    """Return the accuracy of each setting in `tried`, which differ only in clip and rate.

    `seed` decides which unit gets which images, and the noise.
    """
    one, (judged_rows, judged_labels) = tried[0], judged
    order = torch.from_numpy(np.random.default_rng([SPLIT_SEED, seed]).permutation(len(train[1])))
    clients = Clients(train[0][order], train[1][order], one.images, kind)
    clips, rates = (torch.tensor([getattr(t, k) for t in tried]) for k in ("clip", "rate"))
    sigmas = torch.tensor([2 * t.clip * t.noise_multiplier / t.units for t in tried])
    generator = torch.Generator().manual_seed(seed)
    heads = torch.zeros(judged_rows.shape[1], CLASSES, len(tried))
    velocity = torch.zeros_like(heads)
    for _ in range(one.rounds):
        noise = sigmas * torch.randn(heads.shape, generator=generator)
        velocity = MOMENTUM * velocity + clients.mean_update(heads, clips) + noise
        heads = heads + rates * velocity
    answers = (judged_rows @ heads.reshape(len(heads), -1)).view(len(judged_rows), CLASSES, -1)
    right = answers.argmax(1) == judged_labels[:, None]
    return (100 * right.double().mean(0)).tolist()


def parts(test: bool) -> tuple[Examples, Examples]:
    """Return the images to train on and those to score on: the training set in two parts.

    With `test`, these are the whole training set and the test set.
    """
    data = datasets.load("mnist")
    if test:
        return data.train, data.test
    order = np.random.default_rng(SPLIT_SEED).permutation(len(data.train))
    ours, held = order[:-VALIDATION], order[-VALIDATION:]
    x, y = data.train.x, data.train.y
    return Examples(x[ours], y[ours]), Examples(x[held], y[held])


def held_out() -> dict[str, Array]:
    """Return the parts of the training set, for `data.name: private_mnist_study:held_out`."""
    train, judged = parts(test=False)
    return {"x_train": train.x, "y_train": train.y, "x_test": judged.x, "y_test": judged.y}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    for option in ("--scan", "--test", "--bfloat16"):
        parser.add_argument(option, action="store_true")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in SETTINGS]
    if unknown or (asked.scan and asked.test):
        parser.error(f"no setting {unknown[0]}" if unknown else "--scan cannot use the test set")
    torch.set_num_threads(asked.threads)
    kind = torch.bfloat16 if asked.bfloat16 else torch.float32
    halves = functools.cache(
        lambda second: [seen(examples, second) for examples in parts(asked.test)]
    )
    factors = (0.5, 1.0, 2.0) if asked.scan else (1.0,)
    print("| setting | noise multiplier | clip | rate | rounds | accuracy | least, most | s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in asked.names or SETTINGS:
        began, one = time.perf_counter(), SETTINGS[name]
        pairs = itertools.product(factors, factors)
        tried = [replace(one, clip=one.clip * c, rate=one.rate * r) for c, r in pairs]
        seeds = range(asked.seeds)
        train, judged = halves(one.second_order)
        found = np.array([accuracies(tried, train, judged, seed, kind) for seed in seeds])
        seconds = time.perf_counter() - began
        for t, scores in zip(tried, found.T, strict=True):
            print(
                f"| {name} | {t.noise_multiplier:.3f} | {t.clip:g} | {t.rate:g} | {t.rounds} | "
                f"{scores.mean():.2f} | {scores.min():.2f}, {scores.max():.2f} | {seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
