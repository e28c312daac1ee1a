"""The wide-and-deep model, cut between owners of features.

    OWNER_wide, OWNER_deep of every owner  →  top: a linear layer of the leader's own wide part
                                              plus a nonlinear one of all other parts

Each owner describes its features twice: one-hot for the wide part, which is linear in them, and
scaled for the deep part, a dense network.

What is linear into the outputs has the label in the sign of its gradient, for everybody who gets
one: so a follower's wide part goes through the leader's hidden layer with the deep ones. Under
`wide: linear` it does not, as in the paper, and the follower reads every label of two classes.

Source: H.-T. Cheng et al., Wide & Deep Learning for Recommender Systems, 2016, split by owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import nn

from fedveil.tasks.mnist_halves import Joint
from fedveil.vertical.split import Optimizer, Part, SplitModel
from fedveil.vertical.task import initial
from fedveil.vertical.task_settings import TablesSettings, TabularSettings

#: What makes a module; None where another party has it.
_Make: TypeAlias = Callable[[], nn.Module] | None

_HIDDEN = 64
_OPTIMIZER = Optimizer("adam", lr=0.001)


def wide_and_deep(
    settings: TabularSettings | TablesSettings,
    owners: Mapping[str, tuple[int, int] | None],
    *,
    leader: str,
    classes: int | None,
    seed: int,
) -> SplitModel:
    """Two parts for each owner, and the top, which gives a number of each example or its classes.

    `owners` says how many numbers an owner's columns `wide` and `deep` have; None: it has no
    modules here. `settings.scores` numbers of a wide part cross and `settings.width` of a deep one.
    """
    scores, width, outputs = settings.scores, settings.width, classes or 1

    def part(name: str, owner: str, inputs: Sequence[str], output: int, make: _Make) -> Part:
        module = None if make is None else initial(seed, name, make)
        return Part(name, owner, tuple(inputs), (output,), module, optimizer=_OPTIMIZER)

    parts = []
    for owner, widths in owners.items():
        make_wide = make_deep = None
        if widths is not None:
            make_wide = partial(nn.Linear, widths[0], scores, bias=False)
            make_deep = partial(_deep, widths[1], width)
        parts += [
            part(f"{owner}_wide", owner, ["data.wide"], scores, make_wide),
            part(f"{owner}_deep", owner, ["data.deep"], width, make_deep),
        ]
    linear = [settings.wide == "linear" or owner == leader for owner in owners]
    make_top = partial(_Top, linear, scores, width, outputs)
    parts.append(part("top", leader, [bottom.name for bottom in parts], outputs, make_top))
    return SplitModel(parts, leader=leader)


class _Top(nn.Module):
    """Outputs that are linear in some owners' wide scores, plus a network of all that is left."""

    def __init__(self, linear: Sequence[bool], scores: int, width: int, outputs: int) -> None:
        super().__init__()
        self._linear = tuple(linear)
        lines, owners = sum(linear), len(linear)
        self.wide = nn.Linear(lines * scores, outputs) if lines else None
        self.deep = Joint(owners * width + (owners - lines) * scores, _HIDDEN, outputs)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """The outputs [rows, outputs] of every owner's wide and deep part, in turn."""
        scores = list(zip(given[0::2], self._linear, strict=True))
        hidden = (wide for wide, linear in scores if not linear)
        outputs: torch.Tensor = self.deep(*given[1::2], *hidden)
        if self.wide is None:
            return outputs
        lines = torch.cat([wide for wide, linear in scores if linear], dim=1)
        summed: torch.Tensor = self.wide(lines) + outputs
        return summed


def _deep(features: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, _HIDDEN),
        nn.ReLU(),
        nn.Linear(_HIDDEN, width),
        nn.LayerNorm(width, elementwise_affine=False),
    )
