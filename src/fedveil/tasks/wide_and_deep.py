"""The wide-and-deep model, cut between owners of features.

    OWNER_wide, OWNER_deep of every owner  →  top: a linear layer of the wide parts plus a
                                              nonlinear one of the deep parts

Each owner describes its features twice: one-hot for the wide part, which is linear in them, and
scaled for the deep part, a dense network.

Source: H.-T. Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, split by owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from fedveil.tasks.mnist_halves import Joint
from fedveil.vertical.split import Optimizer, Part, SplitModel
from fedveil.vertical.task import initial

_HIDDEN = 64
_OPTIMIZER = Optimizer("adam", lr=0.001)


@dataclass(frozen=True)
class Widths:
    """How many numbers an owner's columns `wide` and `deep` have."""

    wide: int
    deep: int


@dataclass(frozen=True)
class WideAndDeep:
    """What all owners agree on: how many numbers of each part cross, and what comes out.

    `scores` numbers of a wide part cross and `width` of a deep one.
    """

    seed: int
    leader: str
    scores: int
    width: int
    outputs: int

    def split(self, owners: Mapping[str, Widths | None]) -> SplitModel:
        """Two parts for each owner, and the top; an owner of None has no modules here."""
        parts = []
        for owner, widths in owners.items():
            make_wide = make_deep = None
            if widths is not None:
                make_wide = partial(nn.Linear, widths.wide, self.scores, bias=False)
                make_deep = partial(_deep, widths.deep, self.width)
            parts += [
                self._part(f"{owner}_wide", owner, ("data.wide",), self.scores, make_wide),
                self._part(f"{owner}_deep", owner, ("data.deep",), self.width, make_deep),
            ]
        inputs = tuple(part.name for part in parts)
        make_top = partial(_Top, len(owners) * self.scores, len(owners) * self.width, self.outputs)
        parts.append(self._part("top", self.leader, inputs, self.outputs, make_top))
        return SplitModel(parts, leader=self.leader)

    def _part(
        self,
        name: str,
        owner: str,
        inputs: tuple[str, ...],
        output: int,
        make: Callable[[], nn.Module] | None,
    ) -> Part:
        module = None if make is None else initial(self.seed, name, make)
        return Part(name, owner, inputs, (output,), module, optimizer=_OPTIMIZER)


class _Top(nn.Module):
    """Outputs that are linear in the wide scores, plus a network of what the deep parts give."""

    def __init__(self, scores: int, width: int, outputs: int) -> None:
        super().__init__()
        self.wide = nn.Linear(scores, outputs)
        self.deep = Joint(width, _HIDDEN, outputs)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """The outputs [rows, outputs] of every owner's wide and deep part, in turn."""
        scores: torch.Tensor = self.wide(torch.cat(given[0::2], dim=1))
        outputs: torch.Tensor = scores + self.deep(*given[1::2])
        return outputs


def _deep(features: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, width),
        nn.LayerNorm(width, elementwise_affine=False),
    )
