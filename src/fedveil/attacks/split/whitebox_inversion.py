"""Inversion with known weights: finds likely examples whose outputs fit the reports.

If a job runs in one process, an attacker can compute the initial weights from the job's seed. If
parties run on different machines, each has a secret seed of its own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import nn

from fedveil.attacks.attack_randomness import generator
from fedveil.attacks.split.evidence import Evidence
from fedveil.attacks.split.example_prior import Prior, Search

Bottom: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
#: Width of a bit's slope, as a share of the spread of likely outputs.
_SLOPE = 0.1
#: Receives the number of steps done, and the total.
Step: TypeAlias = Callable[[int, int], None]


def invert(
    bottom: Bottom,
    evidence: Evidence,
    prior: Prior,
    *,
    steps: int = 600,
    tell: Step = lambda done, total: None,
) -> torch.Tensor:
    """Return the most likely examples, [examples, *shape], given the evidence and the prior.

    `bottom` maps examples to outputs. Each of `prior.searches` is tried, and each example comes
    from the search that finds it most likely. If the reports reveal nothing, the result is the
    prior's most likely examples. `tell` is called after each of the `steps` steps of Adam in each
    search, with the steps done and their total.
    """
    total = steps * len(prior.searches)
    found, costs = [], []
    for number, search in enumerate(prior.searches):
        told = partial(tell_later_part, tell, number * steps, total)
        examples, cost = _searched(bottom, evidence, prior, search, steps, told)
        found.append(examples)
        costs.append(cost)
    best = torch.stack(costs).argmin(dim=0)
    return torch.stack(found)[best, torch.arange(len(best))]


def _searched(
    bottom: Bottom,
    evidence: Evidence,
    prior: Prior,
    search: Search,
    steps: int,
    tell: Callable[[int], None],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Search with Adam. Returns the examples, and -ln of each one's likelihood, up to a constant.

    `tell` is called after each of the `steps` steps with the steps done.
    """
    numbers = prior.start(len(evidence.mean), search.spread)
    with torch.no_grad():
        likely = numbers + torch.randn(numbers.shape, generator=generator(0, "likely"))
        slope = max(_SLOPE * float(bottom(prior.examples(likely)).std(correction=0)), 1e-12)

    def cost() -> torch.Tensor:
        return evidence.misfit(bottom(prior.examples(numbers)), slope) + prior.cost(numbers)

    numbers.requires_grad_()
    optimizer = torch.optim.Adam([numbers], search.rate)
    for step in range(steps):
        falling(optimizer, search.rate, step / steps)
        optimizer.zero_grad()
        torch.autograd.backward(cost().sum())
        optimizer.step()
        tell(step + 1)
    with torch.no_grad():
        return prior.examples(numbers), cost()


def tell_later_part(tell: Step, before: int, total: int, done: int) -> None:
    """Call `tell` with the steps done in all: those `before` this part, and `done` of the part."""
    tell(before + done, total)


def falling(optimizer: torch.optim.Optimizer, lr: float, share: float) -> None:
    """Set the learning rate of `optimizer` by a cosine schedule that falls from `lr` to 0.

    `share` is the part of the schedule that is done, from 0 to 1.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * (1 + math.cos(math.pi * share)) / 2


def steady(module: nn.Module) -> nn.Module:
    """Return a copy of a module, with frozen parameters, in training mode but without dropout."""
    own = copy.deepcopy(module).requires_grad_(False).train()
    for inner in own.modules():
        if isinstance(inner, nn.modules.dropout._DropoutNd):
            inner.eval()
    return own
