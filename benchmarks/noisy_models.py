"""The accuracy of small networks under noise, on held-out training images of MNIST.

    FEDVEIL_DATA=FOLDER python benchmarks/noisy_models.py [--models NAME ...] [--noise Z ...]

200 clients of 20 images, all in every round, take one full-batch step each. Updates are clipped to
an L2 norm, Gaussian noise of Z * 2 * clip is added to their sum, and the server uses momentum.
2,000 other images of the training set measure accuracy. The test set is not read. Noise Z = 0.16
disturbs the mean as much as epsilon 8 for a whole run does with 6,000 clients. Half a minute to a
minute per figure, on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.data.datasets import load
from fedveil.engine.executors.client_side import ClientsData
from fedveil.entropy import Seeded
from fedveil.learning import models
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import Classification
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.trainer import LoopTrainer, TrainingPlan
from fedveil.learning.weight_layout import Layout

CLIENTS, EACH, HELD_OUT, ROUNDS = 200, 20, 2000, 30
PLAN = TrainingPlan(1, EACH, "sgd", 0.1, 0.0, 0.0)


def lenet_group_norm() -> nn.Module:
    """Return LeNet with GroupNorm after its convolutions."""
    model = models.lenet((1, 28, 28), 10)
    assert isinstance(model, nn.Sequential)
    model.insert(1, nn.GroupNorm(2, 6))
    return model.insert(5, nn.GroupNorm(4, 16))


def lenet_tanh() -> nn.Module:
    """Return LeNet with tanh and torch's own initial weights."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10),
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "filters_linear": lambda: models.filters_linear((1, 28, 28), 10),
    "lenet": lambda: models.lenet((1, 28, 28), 10),
    "lenet, group norm": lenet_group_norm,
    "lenet, tanh": lenet_tanh,
    "tanh_cnn": lambda: models.tanh_cnn((1, 28, 28), 10),
}


def accuracy(make: Callable[[], nn.Module], noise: float, clip: float, lr: float) -> float:
    """Train a new model under noise. Returns its final accuracy on the held-out images."""
    torch.manual_seed(0)
    part = TrainedPart.of(make())
    train = load("mnist").train
    rows = Seeded(1, "part").permutation(len(train))[: CLIENTS * EACH + HELD_OUT]
    x, y = part.inputs(train.x[rows]), train.y[rows]
    count = CLIENTS * EACH
    data = ClientsData(x, y, np.arange(count), np.arange(0, count + 1, EACH))
    trainer = CompiledTrainer.of(part.module, PLAN) or LoopTrainer(part.module, PLAN)
    layout = Layout(part.module)
    weights, moving = layout.vector(), np.zeros(layout.dimension, np.float32)
    draw = Seeded(2, "noise").generator()
    for number in range(ROUNDS):
        trainer.start(weights)
        total = np.zeros(layout.dimension, np.float32)
        clients = [data.of(c, Seeded(3, number, c)) for c in range(CLIENTS)]
        for found, _ in trainer.train(clients):
            for update in found:
                total += update * min(1.0, clip / float(np.linalg.norm(update)))
        total += (noise * 2 * clip) * draw.standard_normal(len(total), dtype=np.float32)
        moving = np.float32(0.9) * moving + total / CLIENTS
        weights = weights + np.float32(lr) * moving
    layout.write(torch.from_numpy(weights))
    held_out = score(part.module, Classification(), x[count:], y[count:])
    return float(held_out.figures()["accuracy"])


def main() -> None:
    """Print a table with every step size for each model and noise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--noise", nargs="*", type=float, default=[0.0, 0.16])
    parser.add_argument("--lr", nargs="*", type=float, default=[1.0, 3.0])
    parser.add_argument("--clip", type=float, default=0.1)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | weights | noise | " + " | ".join(f"lr {lr:g}" for lr in chosen.lr) + " |")
    print("|---|---|---|" + "---|" * len(chosen.lr))
    for name in chosen.models:
        size = Layout(TrainedPart.of(MODELS[name]()).module).dimension
        for noise in chosen.noise:
            found = [accuracy(MODELS[name], noise, chosen.clip, lr) for lr in chosen.lr]
            figures = " | ".join(f"{value:.4f}" for value in found)
            print(f"| {name} | {size:,} | {noise:g} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
