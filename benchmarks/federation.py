"""The workload of benchmarks/simulator.py: models, and the data function `federation:data`.

Shapes, sizes and number types are those of benchmarks/peers, which trains these models too.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from torch import nn

#: The vocabulary size, and the tokens of a window, each with a next token to predict.
TOKENS, WINDOW = 2340, 20
SHAPES = {
    "lenet": ((1, 28, 28), 10),
    "cnn": ((3, 32, 32), 10),
    "dense": ((600,), 100),
    "logistic": ((4,), 2),
}


def data() -> dict[str, Any]:
    """Return synthetic examples with owners. Their sizes are set by environment variables."""
    clients, examples = int(os.environ["BENCHMARK_CLIENTS"]), int(os.environ["BENCHMARK_EXAMPLES"])
    generator = np.random.default_rng(int(os.environ["BENCHMARK_SEED"]))
    owners = np.repeat(np.arange(clients), examples)
    if os.environ["BENCHMARK_MODEL"] == "transformer":
        words = generator.integers(0, TOKENS, (clients * examples, WINDOW + 1))
        words[:1, 0] = TOKENS - 1
        return {"x_train": words, "x_test": words[:examples], "client_ids": owners}
    shape, classes = SHAPES[os.environ["BENCHMARK_MODEL"]]
    size = (clients * examples, *shape)
    if os.environ["BENCHMARK_BYTES"] == "True":
        x = generator.integers(-2, 3, size, np.int8)
    else:
        x = generator.standard_normal(size, np.float32)
    y = generator.integers(0, classes, clients * examples)
    y[:classes] = np.arange(classes)
    return {
        "x_train": x,
        "y_train": y,
        "x_test": x[:examples],
        "y_test": y[:examples],
        "client_ids": owners,
        "classes": classes,
    }


def dense() -> nn.Module:
    """Return a dense network, 600-1024-512-256-100 with ReLU: 1,297,252 parameters."""
    return nn.Sequential(
        *(nn.Linear(600, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU()),
        *(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 100)),
    )


def cnn() -> nn.Module:
    """Return LeNet for images of CIFAR's shape, as in torch's tutorial: 62,006 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )
