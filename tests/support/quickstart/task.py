"""A small network and three clients' digits, in place of the quickstart's CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

PROTECTED = (
    "[tool.flwr.app.config.fedveil]" in (Path(__file__).parent / "pyproject.toml").read_text()
)
#: The last of each client's digits. Their numbers of digits differ.
ENDS = (0, 500, 900, 1797)


def network() -> nn.Module:
    """Return a network of 650 parameters, equal in every process."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def digits(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the client's images and labels."""
    x, y = load_digits(return_X_y=True)
    mine = slice(ENDS[client], ENDS[client + 1])
    return torch.tensor(x[mine] / 16, dtype=torch.float32), torch.tensor(y[mine])


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, mu: float) -> float:
    """Train for an epoch, and return the last batch's loss."""
    torch.set_num_threads(1)
    start = [weights.detach().clone() for weights in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for inputs, targets in zip(x.split(32), y.split(32), strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        apart = zip(model.parameters(), start, strict=True)
        loss = loss + mu / 2 * sum((w - s).square().sum() for w, s in apart)
        loss.backward()
        optimizer.step()
    return float(loss)
