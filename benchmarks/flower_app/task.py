"""The training of the app in benchmarks/flower.py: LeNet on noise in the shape of MNIST."""

from __future__ import annotations

import torch
from torch import nn

EXAMPLES, EPOCHS, BATCH = 3000, 4, 20


def network() -> nn.Sequential:
    """Return LeNet, with 61,706 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def train(model: nn.Module, client: int) -> float:
    """Train for some epochs on the client's own examples. Returns the last batch's loss."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(EXAMPLES, 1, 28, 28, generator=generator)
    y = torch.randint(0, 10, (EXAMPLES,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        for inputs, targets in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
    return float(loss)
