"""The peers' workload: the models of fedveil's benchmarks on synthetic data of their shapes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))
import federation
import large_models

IMAGES = federation.SHAPES | {"resnet18": ((3, 32, 32), 10)}
PARAMETERS = {
    "cnn": 62_006,
    "lenet": 61_706,
    "dense": 1_297_252,
    "resnet18": 11_173_962,
    "transformer": 123_505_152,
    "adapters": 294_912,
}


def synthetic(
    model: str, clients: int, examples: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random inputs and targets for `model`. The first axis of both is the client.

    The inputs of a language model are tokens, and the target of a token is the next one.
    """
    generator = np.random.default_rng(seed)
    size = (clients, examples)
    if model in ("transformer", "adapters"):
        shape = (*size, large_models.CONTEXT + 1)
        tokens = torch.from_numpy(generator.integers(0, large_models.VOCABULARY, shape))
        return tokens[..., :-1], tokens[..., 1:]
    shape, classes = IMAGES[model]
    features = generator.standard_normal((*size, *shape), dtype=np.float32)
    return torch.from_numpy(features), torch.from_numpy(generator.integers(0, classes, size))


def build(model: str) -> nn.Module:
    """Return a new network of the kind `model`, and check its number of trained weights."""
    network = _network(model)
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert trained == PARAMETERS[model]
    return network


def sent(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a network that a client sends: all except weights not trained."""
    fixed = {name for name, value in network.named_parameters() if not value.requires_grad}
    return {name: value for name, value in network.state_dict().items() if name not in fixed}


def loss(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over all targets `y`."""
    scores = network(x)
    return nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten())


def _network(model: str) -> nn.Module:
    if model == "adapters":
        return large_models.adapters()
    if model == "transformer":
        return large_models.transformer((), large_models.VOCABULARY)
    if model == "resnet18":
        return large_models.resnet18(*IMAGES[model])
    if model in ("dense", "cnn"):
        return federation.dense() if model == "dense" else federation.cnn()
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )
