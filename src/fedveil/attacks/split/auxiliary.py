"""Inversion with public examples: a trained network maps outputs of a part back to its inputs.

The attacker has public examples, and the attacked part's output for each.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from fedveil.attacks.split.evidence import Evidence
from fedveil.attacks.split.whitebox_inversion import Step, falling

_HIDDEN, _BATCH = 256, 64
#: The network's inputs are clipped at this many standard deviations from their mean.
_FAR = 5.0


def invert(
    public: torch.Tensor,
    outputs: torch.Tensor,
    evidence: Evidence,
    generator: torch.Generator,
    *,
    steps: int = 600,
    lr: float = 1e-3,
    tell: Step = lambda done, total: None,
) -> torch.Tensor:
    """Reconstruct the attacked examples, [examples, *shape], from the reports in `evidence`.

    `public`, [n, *shape], are the attacker's examples, and `outputs`, [n, *output], the attacked
    part's outputs for them before any protection. From these, the attacker trains a map from
    reports to examples: the best linear map plus a small dense network that corrects it. The
    network is trained for `steps` steps at learning rate `lr`. `tell` is called with the steps done
    and their total.
    """
    seen, inputs = _standing(evidence, outputs), public.flatten(1)
    held = torch.arange(len(public)) % 8 == 7
    if not held.any() or held.all():
        held = torch.ones(len(public), dtype=torch.bool)
        kept = held
    else:
        kept = ~held
    linear = _Linear.fitted(seen[kept], inputs[kept], evidence)
    correction = _trained(linear, seen[kept], inputs[kept], evidence, generator, steps, lr, tell)
    with torch.no_grad():
        trial = _drawn(seen[held], evidence, generator)
        first, more = linear(trial), correction(linear.scaled(trial))
        share = ((inputs[held] - first) * more).sum() / more.square().sum().clamp(min=1e-12)
        told = evidence.mean.flatten(1).to(public.dtype)
        found: torch.Tensor = linear(told) + share.clamp(0, 1) * correction(linear.scaled(told))
    return found.reshape(-1, *public.shape[1:])


def _standing(evidence: Evidence, outputs: torch.Tensor) -> torch.Tensor:
    flat = outputs.detach().flatten(1)
    if evidence.lie is None:
        return flat
    return evidence.lie + (1 - 2 * evidence.lie) * (flat > 0).to(flat.dtype)


def _drawn(seen: torch.Tensor, evidence: Evidence, generator: torch.Generator) -> torch.Tensor:
    """Draw `evidence.reports` random reports for each row of `seen`, and return their mean.

    `seen` is [n, values]. If reports are random bits, an entry is the probability that a bit is 1.
    If reports are not random, `seen` itself is returned.
    """
    if evidence.lie is None or evidence.lie == 0:
        return seen
    count = torch.full_like(seen, float(evidence.reports))
    return torch.binomial(count, seen, generator=generator) / evidence.reports


class _Linear:
    def __init__(
        self, centre: torch.Tensor, scale: torch.Tensor, mean: torch.Tensor, weights: torch.Tensor
    ) -> None:
        self._centre, self._scale, self._mean, self._weights = centre, scale, mean, weights

    @classmethod
    def fitted(cls, seen: torch.Tensor, inputs: torch.Tensor, evidence: Evidence) -> _Linear:
        n = len(seen)
        centre, mean = seen.mean(dim=0), inputs.mean(dim=0)
        noise = torch.zeros_like(centre)
        if evidence.lie is not None:
            noise = evidence.lie * (1 - evidence.lie) / evidence.reports + noise
        z, x = (seen - centre).double(), (inputs - mean).double()
        spread = z.square().mean(dim=0)
        ridge = noise.double() + 0.01 * spread.mean() + 1e-9
        weights = torch.linalg.solve(z.T @ z / n + torch.diag(ridge), z.T @ x / n)
        scale = (spread + noise.double()).sqrt()
        scale[scale < 1e-6] = torch.inf  # a constant value carries no information
        return cls(centre, scale.to(seen.dtype), mean, weights.to(seen.dtype))

    def __call__(self, told: torch.Tensor) -> torch.Tensor:
        return self._mean + (told - self._centre) @ self._weights

    def scaled(self, told: torch.Tensor) -> torch.Tensor:
        return ((told - self._centre) / self._scale).clamp(-_FAR, _FAR)


def _trained(
    linear: _Linear,
    seen: torch.Tensor,
    inputs: torch.Tensor,
    evidence: Evidence,
    generator: torch.Generator,
    steps: int,
    lr: float,
    tell: Step,
) -> nn.Module:
    """Train a dense network to predict the error of `linear`, a map from reports to examples.

    `inputs`, [n, features], are the public examples, and `seen`, [n, values], the expected values
    of their reports. New reports are drawn in each step as in `evidence` (`_drawn`). The learning
    rate falls from `lr` to 0 in `steps` steps. `tell` is called with the steps done and their
    total. Returns the network.
    """
    network = _network(seen.shape[1], inputs.shape[1], generator)
    optimizer = torch.optim.AdamW(network.parameters(), lr, weight_decay=0.01)
    rows = _batches(len(seen), generator)
    for step in range(steps):
        falling(optimizer, lr, step / steps)
        chosen = next(rows)
        told = _drawn(seen[chosen], evidence, generator)
        left = inputs[chosen] - linear(told)
        optimizer.zero_grad()
        loss = functional.mse_loss(network(linear.scaled(told)), left)
        torch.autograd.backward(loss)
        optimizer.step()
        tell(step + 1, steps)
    return network


def _network(inputs: int, outputs: int, generator: torch.Generator) -> nn.Module:
    first, last = nn.Linear(inputs, _HIDDEN), nn.Linear(_HIDDEN, outputs)
    for parameter in first.parameters():
        nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5, generator=generator)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(first, nn.ReLU(), last)


def _batches(count: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    while True:
        order = torch.randperm(count, generator=generator)
        yield from (order[first : first + _BATCH] for first in range(0, count, _BATCH))
