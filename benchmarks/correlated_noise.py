"""Noise that is correlated across rounds: exact gains, and MNIST.

    python benchmarks/correlated_noise.py factorise
    FEDVEIL_DATA=FOLDER python benchmarks/correlated_noise.py simulate --clients 1000 --epsilon 1

``factorise`` takes a minute and a half. It computes how much the best factorisations lower the
noise of the iterates and of the final model at the same epsilon, if every client joins every round
and if a client's rounds are ten apart. ``simulate`` trains a linear head on fixed oriented filters,
in floating point, with noise in the sum alone. It chooses clip and rate for every row on the last
10,000 training images, then tests once per seed. One epsilon and momentum take four minutes of one
core. benchmarks/RESULTS.md explains the figures.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from factorisations import (
    SEPARATION,
    Matrix,
    banded,
    banded_inverse,
    blt,
    errors_of,
    everybody,
    gains,
    participations,
    sized,
    workload,
)
from fedveil.data import mnist
from fedveil.privacy.gaussian_curve import analytic_sigma

DELTA, MOMENTA = 1e-5, (0.0, 0.9)
NOISES = ("independent", "sized", "handed back", "banded")
#: (noise, momentum) -> its mixing matrix.
Mixings = dict[tuple[str, float], Matrix]
#: Settings are chosen on the training images from HELD on: first the product of clip and step at
#: the first clip (these products at epsilon 1 and 60 rounds), then the clip at the best product.
HELD, CLIPS, PRODUCTS = 50_000, (0.025, 0.0125, 0.05), (0.6, 1.2, 2.5, 5.0, 10.0)


def factorise() -> None:
    """Print the exact gains of each factorisation, up to the last digits of the optimisers.

    Either every client takes part in every round, or a client's rounds are ten apart.
    """
    print("| participation | rounds | momentum | noise | iterates (RMS) | largest | final |")
    print("|---|---|---|---|---|---|---|")
    for rounds, momentum in itertools.product((60, 300), MOMENTA):
        rows = workload(rounds, momentum)
        head = f"{rounds} | {momentum:g}"
        for name, encoder in (
            ("sized for the iterates", sized(rounds, momentum)),
            ("sized for the final model", sized(rounds, momentum, final=True)),
        ):
            reached = gains(rows, errors_of(rows, encoder), math.sqrt(rounds))
            print(f"| everybody | {head} | {name} | {reached} |", flush=True)
        apart = math.sqrt(participations(rounds))
        limit = np.array([max(row[r::SEPARATION].sum() for r in range(SEPARATION)) for row in rows])
        for name, encoder in (
            ("banded", banded(rounds, rows)),
            ("BLT, 1 buffer", blt(rounds, rows, 1)),
            ("BLT, 4 buffers", blt(rounds, rows, 4)),
            ("inverse of 2 bands", banded_inverse(rounds, rows, 2)),
            ("inverse of 10 bands", banded_inverse(rounds, rows, 10)),
            ("banded, for the final model", banded(rounds, rows[-1:])),
        ):
            reached = gains(rows, errors_of(rows, encoder), apart)
            print(f"| ten apart | {head} | {name} | {reached} |", flush=True)
        print(f"| ten apart | {head} | no factorisation can more | {gains(rows, limit, apart)} |")
        always, same, gap = everybody(banded(rounds, rows), rows)
        print(f"| everybody | {head} | that banded C | {always} |")
        print(f"| everybody | {head} | diagonal of its sensitivity, gap {gap:.0e} | {same} |")


def oriented(images: npt.NDArray[np.float32]) -> Tensor:
    """Return 785 features of each image: strokes of 8 directions and 2 widths, without any data.

    A channel is the modulus of an even and an odd Gabor filter, averaged over squares of 4 x 4
    pixels. Each channel's mean over the image is subtracted. The features of an image are then
    scaled to norm 1, and a constant feature is appended.
    """
    features = []
    for batch in torch.from_numpy(images * 0.5 + 0.5).reshape(-1, 1, 28, 28).split(1000):
        channels = []
        for wavelength, stride in ((4.0, 1), (8.0, 2)):
            bank = _gabor(wavelength)
            padding = bank.shape[-1] // 2
            answers = torch.nn.functional.conv2d(batch, bank, padding=padding, stride=stride)
            strength = torch.hypot(answers[:, 0::2], answers[:, 1::2])
            channels.append(torch.nn.functional.avg_pool2d(strength, 4 // stride))
        pooled = torch.cat(channels, 1)
        flat = (pooled - pooled.mean((2, 3), keepdim=True)).flatten(1)
        features.append(flat / flat.norm(dim=1, keepdim=True))
    whole = torch.cat(features)
    return torch.cat([whole, torch.full((len(whole), 1), 0.1)], 1)


def _gabor(wavelength: float) -> Tensor:
    deviation = 0.4 * wavelength
    reach = math.ceil(2.2 * deviation)
    line = torch.arange(-reach, reach + 1).float()
    down, across = torch.meshgrid(line, line, indexing="ij")
    window = torch.exp(-(across**2 + down**2) / (2 * deviation**2))
    filters = []
    for turn in torch.arange(8) * (math.pi / 8):
        phase = 2 * math.pi / wavelength * (across * torch.cos(turn) + down * torch.sin(turn))
        even = window * torch.cos(phase)
        even -= window * (even.sum() / window.sum())
        odd = window * torch.sin(phase)
        filters += [even / even.norm(), odd / odd.norm()]
    return torch.stack(filters)[:, None]


@dataclass(frozen=True)
class Trial:
    """A mechanism at an epsilon, with the settings of the server and the clients."""

    noise: str
    momentum: float
    epsilon: float
    clip: float
    step: float  # the rate divided by 1 - momentum

    @property
    def kind(self) -> tuple[str, float]:
        """The noise and the momentum. The other settings are chosen for each such pair."""
        return self.noise, self.momentum


@dataclass(frozen=True)
class Protocol:
    """The clients of each round: all of them, or the next of several fixed cohorts."""

    name: str
    rounds: int
    cohorts: int
    noises: tuple[str, ...]

    def mixing(self, noise: str, momentum: float) -> Matrix:
        """Return the mixing matrix, for sensitivity 1.

        Row t has the weights with which all draws of noise are added in round t.
        """
        if noise == "independent":
            return np.eye(self.rounds) * math.sqrt(self.rounds / self.cohorts)
        rows = workload(self.rounds, momentum)
        encoder = {
            "sized": lambda: sized(self.rounds, momentum, final=True),
            "banded": lambda: banded(self.rounds, rows),
            "handed back": lambda: banded_inverse(self.rounds, rows, 2),
        }[noise]()
        return np.asarray(np.linalg.inv(encoder))


PROTOCOLS = (
    Protocol("everybody", 60, 1, ("independent", "sized")),
    Protocol("everybody", 20, 1, ("independent",)),
    Protocol("everybody", 12, 1, ("independent",)),
    Protocol("everybody", 6, 1, ("independent",)),
    Protocol("a half", 24, 2, ("independent",)),
    Protocol("a fifth", 60, 5, ("independent",)),
    Protocol("a tenth", 60, SEPARATION, ("independent", "handed back", "banded")),
    Protocol("a tenth", 300, SEPARATION, ("independent", "banded")),
)


class Population:
    """Clients with the same number of examples each, drawn from a seed."""

    def __init__(self, features: Tensor, labels: Tensor, clients: int, seed: int) -> None:
        each = len(labels) // clients
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        order = order[: clients * each]
        self.features = features[order].reshape(clients, each, -1)
        self.labels = torch.nn.functional.one_hot(labels[order], 10).float()
        self.labels = self.labels.reshape(clients, each, 1, 10)
        self.alike = self.features @ self.features.mT

    def clipped_sum(self, first: int, last: int, weights: Tensor, clips: Tensor) -> Tensor:
        """Return the sum of the clipped gradients of clients `first` to `last` - 1, for each trial.

        A client's gradient is features.T @ residuals. Its norm needs only the inner products.
        """
        total = torch.zeros_like(weights)
        trials = len(clips)
        step = max(1, 3000 // self.features.shape[1])
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            features = self.features[part]
            clients, each, _ = features.shape
            scores = (features @ weights).view(clients, each, trials, 10)
            residuals = (torch.softmax(scores, 3) - self.labels[part]) / each
            flat = residuals.view(clients, each, trials * 10)
            squares = ((self.alike[part] @ flat) * flat).view(clients, each, trials, 10)
            norms = squares.sum((1, 3)).clamp(min=1e-20).sqrt()
            residuals *= (clips / norms).clamp(max=1)[:, None, :, None]
            total += features.flatten(0, 1).T @ residuals.view(clients * each, -1)
        return total


def train(
    population: Population, protocol: Protocol, trials: Sequence[Trial], mixings: Mixings, seed: int
) -> Tensor:
    """Train a linear head for each trial at once, and return the final heads.

    All trials share the draws of the noise.
    """
    clients, size = len(population.features), population.features.shape[2]
    cohort = clients // protocol.cohorts
    draws = torch.randn(
        protocol.rounds, size, 10, generator=torch.Generator().manual_seed(1000 + seed)
    )
    clips = torch.tensor([trial.clip for trial in trials])
    momenta = torch.tensor([trial.momentum for trial in trials])[:, None]
    rates = torch.tensor([trial.step * (1 - trial.momentum) for trial in trials])[:, None]
    sigmas = [2 * trial.clip * analytic_sigma(trial.epsilon, DELTA, 1.0) for trial in trials]
    deviations = torch.tensor(sigmas)[:, None] / cohort
    weights = torch.zeros(size, len(trials), 10)
    speed = torch.zeros_like(weights)
    for now in range(protocol.rounds):
        first = (now % protocol.cohorts) * cohort
        total = population.clipped_sum(first, first + cohort, weights.flatten(1), clips)
        noise = {
            kind: torch.tensordot(torch.from_numpy(mixing[now]).float(), draws, 1)
            for kind, mixing in mixings.items()
        }
        added = torch.stack([noise[trial.kind] for trial in trials], 1)
        speed = momenta * speed + total.view_as(speed) / cohort + deviations * added
        weights = weights - rates * speed
    return weights


def accuracies(weights: Tensor, features: Tensor, labels: Tensor) -> list[float]:
    """Return the accuracy of every trial, in percent."""
    right = (features @ weights.flatten(1)).view(len(labels), -1, 10).argmax(2) == labels[:, None]
    return [100 * share for share in right.float().mean(0).tolist()]


def choose(
    protocol: Protocol,
    epsilon: float,
    mixings: Mixings,
    reached: Callable[[Sequence[Trial]], list[float]],
) -> list[Trial]:
    """Return the best trial for each noise and momentum, by the accuracy that `reached` returns."""
    best: dict[tuple[str, float], tuple[float, Trial]] = {}
    scale = epsilon ** (2 / 3) * 60 / protocol.rounds
    trials = [
        Trial(*kind, epsilon, CLIPS[0], product * scale / CLIPS[0])
        for kind in mixings
        for product in PRODUCTS
    ]
    for _ in range(2):
        for trial, value in zip(trials, reached(trials), strict=True):
            if value > best.get(trial.kind, (-1.0, trial))[0]:
                best[trial.kind] = value, trial
        trials = [
            replace(trial, clip=clip, step=trial.step * trial.clip / clip)
            for _, trial in best.values()
            for clip in CLIPS[1:]
        ]
    return [trial for _, trial in best.values()]


def simulate(
    clients: int,
    epsilon: float,
    kinds: Sequence[tuple[str, float]],
    protocols: Sequence[Protocol],
    seeds: int,
) -> None:
    """Choose clip and step of every row on the validation images, then test."""
    data = mnist.read(mnist.MNIST)
    features, test = oriented(data.train.x), oriented(data.test.x)
    labels, answers = torch.from_numpy(data.train.y), torch.from_numpy(data.test.y)
    tuning = Population(features[:HELD], labels[:HELD], clients, 0)
    populations = [Population(features, labels, clients, seed + 1) for seed in range(seeds)]
    print("| clients | epsilon | momentum | who | rounds | noise | clip, step | accuracy | gain |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for protocol in protocols:
        mixings = {kind: protocol.mixing(*kind) for kind in kinds if kind[0] in protocol.noises}

        def validated(
            trials: Sequence[Trial], protocol: Protocol = protocol, mixings: Mixings = mixings
        ) -> list[float]:
            heads = train(tuning, protocol, trials, mixings, 0)
            return accuracies(heads, features[HELD:], labels[HELD:])

        trials = choose(protocol, epsilon, mixings, validated)
        tested = np.array(
            [
                accuracies(train(population, protocol, trials, mixings, seed + 1), test, answers)
                for seed, population in enumerate(populations)
            ]
        )
        show(clients, protocol, trials, tested)


def show(clients: int, protocol: Protocol, trials: Sequence[Trial], tested: Matrix) -> None:
    """Print lines of the table. The gain is over independent noise with the same seed."""
    plain = {
        trial.momentum: reached
        for trial, reached in zip(trials, tested.T, strict=True)
        if trial.noise == "independent"
    }
    for trial, reached in zip(trials, tested.T, strict=True):
        gain = spread(reached - plain[trial.momentum], "+")
        print(
            f"| {clients:,} | {trial.epsilon:g} | {trial.momentum:g} | {protocol.name} "
            f"| {protocol.rounds} | {trial.noise} | {trial.clip:g}, {trial.step:.3g} "
            f"| {spread(reached)} | {'' if trial.noise == 'independent' else gain} |",
            flush=True,
        )


def spread(values: Matrix, sign: str = "") -> str:
    """Format the mean and the standard deviation over seeds."""
    return f"{values.mean():{sign}.2f} ± {values.std(ddof=1):.2f}"


def main() -> None:
    """Read the command line, and print the tables of the chosen command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("factorise")
    simulated = commands.add_parser("simulate")
    simulated.add_argument("--clients", type=int, default=1000)
    simulated.add_argument("--epsilon", type=float, default=1.0)
    simulated.add_argument("--momentum", type=float, nargs="+", default=MOMENTA)
    simulated.add_argument(
        "--who", nargs="+", default=sorted({protocol.name for protocol in PROTOCOLS})
    )
    simulated.add_argument("--rounds", type=int, nargs="+", default=[6, 12, 20, 24, 60, 300])
    simulated.add_argument("--noise", nargs="+", default=NOISES)
    simulated.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "factorise":
        factorise()
    else:
        protocols = [
            protocol
            for protocol in PROTOCOLS
            if protocol.rounds in arguments.rounds and protocol.name in arguments.who
        ]
        kinds = list(itertools.product(arguments.noise, arguments.momentum))
        simulate(arguments.clients, arguments.epsilon, kinds, protocols, arguments.seeds)


if __name__ == "__main__":
    main()
