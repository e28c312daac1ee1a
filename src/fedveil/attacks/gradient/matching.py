"""Search for inputs whose update is close to the observed one: distances and optimisers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from fedveil.protections.reading import Reading

Objective: TypeAlias = Callable[[Tensor], Tensor]


class Distance:
    """Distance between a candidate update and the update that the attacker observed."""

    def __init__(self, reading: Reading, device: str = "cpu") -> None:
        self._weight = torch.tensor(reading.weight / reading.weight.max(), dtype=torch.float32)
        self._weight = self._weight.to(device)
        self._estimate = torch.tensor(reading.estimate, dtype=torch.float32, device=device)
        self._energy = self._dot(self._estimate, self._estimate)

    def _dot(self, one: Tensor, other: Tensor) -> Tensor:
        return (self._weight * one * other).sum()

    def squared(self, update: Tensor) -> Tensor:
        """Return the relative distance ||update - observed||² / ||observed||² (Zhu et al. 2019)."""
        apart = update - self._estimate
        return self._dot(apart, apart) / self._energy

    def cosine(self, update: Tensor) -> Tensor:
        """Return 1 - the cosine of `update` and the observed update (Geiping et al. 2020)."""
        size = (self._dot(update, update) * self._energy + 1e-30).sqrt()
        return 1 - self._dot(update, self._estimate) / size


@dataclass(frozen=True)
class Found:
    """Result of a search: the best point, and the objective's value there."""

    point: Tensor
    value: float


def by_lbfgs(objective: Objective, start: Tensor, iterations: int) -> Found:
    """Minimise `objective` from `start` by L-BFGS with line search, in up to `iterations` steps."""
    point = start.clone().requires_grad_()
    best = Found(start, float("inf"))
    optimizer = torch.optim.LBFGS(
        [point],
        max_iter=iterations,
        max_eval=2 * iterations,
        history_size=100,
        tolerance_grad=1e-12,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        nonlocal best
        value = objective(point)
        (point.grad,) = torch.autograd.grad(value, point)
        if value.item() < best.value:
            best = Found(point.detach().clone(), value.item())
        return value.detach()

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return best


def by_signed_adam(
    objective: Objective, start: Tensor, iterations: int, box: tuple[float, float]
) -> Found:
    """Minimise an objective within `box` by Adam on gradient signs (Geiping et al. 2020).

    The search begins at `start` and takes `iterations` steps. `box` is the range of all values.
    """
    point = start.clone().requires_grad_()
    best = Found(start, float("inf"))
    optimizer = torch.optim.Adam([point], lr=0.05 * (box[1] - box[0]))
    marks = [int(iterations * share) for share in (0.375, 0.625, 0.875)]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, marks, 0.1)
    for _ in range(iterations):
        value = objective(point)
        if value.item() < best.value:
            best = Found(point.detach().clone(), value.item())
        (gradient,) = torch.autograd.grad(value, point)
        point.grad = gradient.sign()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            point.clamp_(*box)
    return best
