"""UnSplit: finds inputs and a model part that fit the reports, given only the architecture.

Source: E. Erdogan, A. Kupcu, A. E. Cicek, UnSplit: data-oblivious model inversion, model stealing,
and label inference attacks against split learning, 2022, algorithm 1. This module adds several
starts and falling learning rates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from fedveil.attacks.smoothness import total_variation
from fedveil.attacks.split.evidence import Evidence
from fedveil.attacks.split.whitebox_inversion import Step, falling, tell_later_part

#: Number of steps on the inputs, then on the bottom, in a round.
_IN_TURN = 10
_INPUT_LR, _BOTTOM_LR = 0.1, 0.01
#: lambda_tv and lambda_l2 of the source. The misfit is scaled so that a blind guess gives 1.
_SMOOTHNESS, _SIZE = 0.003, 0.01


#: Width of a bit's slope, as a share of the spread of the dummy outputs.
_SLOPE = 0.3


@dataclass(frozen=True)
class Recovered:
    """Inputs [examples, *shape] and a model part, and how badly they fit the reports (`misfit`)."""

    inputs: torch.Tensor
    bottom: nn.Module
    misfit: float


def invert(
    make: Callable[[int], nn.Module],
    evidence: Evidence,
    shape: tuple[int, ...],
    *,
    low: float = 0.0,
    high: float = 1.0,
    starts: int = 5,
    rounds: int = 150,
    tell: Step = lambda done, total: None,
) -> Recovered:
    """Find inputs and a model part that fit the reports in `evidence`, optimising both in turn.

    The inputs are [examples, *shape], with values from `low` to `high`. `make(number)` returns a
    part of the right architecture. Its initial weights are different for each number. The best of
    `starts` parts is improved for `rounds` rounds. `tell` is called in every round with the rounds
    done and their total.
    """
    short = max(1, rounds // 3)
    total = starts * short + rounds
    best: _Pair | None = None
    for start in range(starts):
        pair = _Pair(make(start), torch.zeros(len(evidence.mean), *shape), evidence, low, high)
        pair.improve(short, partial(tell_later_part, tell, start * short, total))
        if best is None or pair.cost < best.cost:
            best = pair
    assert best is not None, "there is a start"
    best.improve(rounds, partial(tell_later_part, tell, starts * short, total))
    return Recovered(best.inputs.detach(), best.bottom, best.misfit)


class _Pair:
    def __init__(
        self, bottom: nn.Module, numbers: torch.Tensor, evidence: Evidence, low: float, high: float
    ) -> None:
        self.bottom = bottom.train()
        self._numbers = numbers.requires_grad_()
        self._evidence, self._low, self._high = evidence, low, high
        self._scale = _guessing(evidence)
        self.misfit = self.cost = float("inf")

    @property
    def inputs(self) -> torch.Tensor:
        return self._low + (self._high - self._low) * torch.sigmoid(self._numbers)

    def improve(self, rounds: int, tell: Callable[[int], None]) -> None:
        own = [each for each in self.bottom.parameters() if each.requires_grad]
        inputs = torch.optim.Adam([self._numbers], _INPUT_LR)
        weights = torch.optim.Adam(own, _BOTTOM_LR)
        for number in range(rounds):
            falling(inputs, _INPUT_LR, number / rounds)
            falling(weights, _BOTTOM_LR, number / rounds)
            for _ in range(_IN_TURN):
                inputs.zero_grad()
                cost = self._fit(self.inputs) + self._unlikely()
                torch.autograd.backward(cost, inputs=[self._numbers])
                inputs.step()
            held = self.inputs.detach()
            for _ in range(_IN_TURN):
                weights.zero_grad()
                torch.autograd.backward(self._fit(held), inputs=own)
                weights.step()
            tell(number + 1)
        with torch.no_grad():
            self.misfit = float(self._fit(self.inputs))
            self.cost = self.misfit + float(self._unlikely())

    def _fit(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.bottom(inputs)
        slope = max(_SLOPE * float(outputs.detach().std(correction=0)), 1e-12)
        return self._evidence.misfit(outputs, slope).mean() / self._scale

    def _unlikely(self) -> torch.Tensor:
        plain = torch.sigmoid(self._numbers)
        smooth = plain.new_zeros(())
        if plain.ndim == 4:
            smooth = total_variation(plain).mean() / plain[0].numel()
        return _SMOOTHNESS * smooth + _SIZE * plain.square().mean()


def _guessing(evidence: Evidence) -> float:
    """Return how badly a blind guess fits the reports in `evidence`, averaged over the examples.

    The guess is the same for every entry of every report. For unprotected numbers, the guess is the
    mean of all these numbers. For bits, the guess is that each bit is 1 with probability 1/2.
    """
    mean = evidence.mean.mean() if evidence.lie is None else evidence.mean.new_zeros(())
    guess = mean.expand_as(evidence.mean)
    return max(float(evidence.misfit(guess, 1.0).mean()), 1e-12)
