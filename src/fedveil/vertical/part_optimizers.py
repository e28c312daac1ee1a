"""The torch optimisers of a party's parts. Their state can be saved and restored."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fedveil.errors import InvalidValue
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.split import Part, SplitModel, module_of

#: The names of Adam's state of a parameter, and the names of state that is never negative.
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
_NEVER_NEGATIVE = {"step", "exp_avg_sq"}
#: An optimiser's state: the number of a parameter -> a name -> a tensor.
Held = Mapping[int, Mapping[str, torch.Tensor]]


class PartOptimizers:
    def __init__(self, split: SplitModel, party: str) -> None:
        self._split, self._party = split, party
        for part in split.owned_by(party):
            if part.frozen:
                module_of(part).requires_grad_(False)
        self._made = list(_make(split, party))

    def __contains__(self, part: str) -> bool:
        return any(part in made.own for made in self._made)

    def step(self, number: int) -> None:
        """Update the weights by their gradients in training step `number`, counted from 1."""
        for made in self._made:
            made.step(number)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the optimisers' state as tensors with the names `<part>//<parameter>/<name>`.

        `<parameter>` is the parameter's index in its part.
        """
        tensors = {}
        for made in self._made:
            for place, held in made.optimizer.state_dict()["state"].items():
                part, number = made.places[place]
                for name, value in held.items():
                    if value is not None:
                        tensors[f"{part}//{number}/{name}"] = torch.as_tensor(value)
        return tensors

    def check(self, held: Mapping[str, Held]) -> None:
        """Raise `InvalidValue` unless the optimiser states in `held` fit this party's parts."""
        made_of = {part: made for made in self._made for part in made.own}
        for part, numbered in held.items():
            own = made_of[part].own[part]
            for number, values in numbered.items():
                shape = own[number].shape if 0 <= number < len(own) else None
                if not made_of[part].can_hold(values, shape):
                    raise InvalidValue(f"its optimiser state does not fit the part {part}")

    def restore(self, held: Mapping[str, Held]) -> None:
        """Restore the optimiser states of the parts in `held`.

        Learning rates need no state: `step` computes them from the number of its training step.
        """
        self._made = list(_make(self._split, self._party))
        for made in self._made:
            groups = made.optimizer.state_dict()["param_groups"]
            state: Any = {
                place: held[part][number]
                for place, (part, number) in enumerate(made.places)
                if number in held.get(part, {})
            }
            made.optimizer.load_state_dict({"state": state, "param_groups": groups})


@dataclass(frozen=True)
class _Made:
    """The torch optimiser of one part, or of several parts with equal `Optimizer` settings.

    `own` has each part's trained parameters. `rule` has the settings or, if the task makes its own
    optimiser, the task's function.
    """

    rule: Any
    own: Mapping[str, list[nn.Parameter]]
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None

    @cached_property
    def places(self) -> list[tuple[str, int]]:
        """Return, for each parameter of the optimiser, its part and its index in that part."""
        return [(part, number) for part, own in self.own.items() for number in range(len(own))]

    def step(self, number: int) -> None:
        if isinstance(self.rule, Optimizer):
            if self.rule.gradient_norm is not None:
                for own in self.own.values():
                    torch.nn.utils.clip_grad_norm_(own, self.rule.gradient_norm)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rule.lr_of(number)
        elif self.schedule is not None:
            with warnings.catch_warnings():  # torch warns when a resumed schedule skips steps
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
                while self.schedule.last_epoch < number - 1:
                    self.schedule.step()
        self.optimizer.step()

    def can_hold(self, values: Mapping[str, torch.Tensor], shape: torch.Size | None) -> bool:
        """Return True if `values` are a valid optimiser state for a parameter of shape `shape`.

        `shape` is None if the part has no such parameter. The result is then False.
        """
        if not isinstance(self.rule, Optimizer):
            return shape is not None  # the state of a task's own optimiser cannot be checked
        sgd = isinstance(self.optimizer, torch.optim.SGD)
        return set(values) == ({"momentum_buffer"} if sgd else _MOMENTS) and all(
            tensor.is_floating_point()
            and tensor.shape == (torch.Size([]) if name == "step" else shape)
            and (name not in _NEVER_NEGATIVE or bool((tensor >= 0).all()))
            for name, tensor in values.items()
        )


def _make(split: SplitModel, party: str) -> Iterator[_Made]:
    """Yield the optimisers of a party's parts. Parts with equal `Optimizer` settings share one."""
    alike: dict[Optimizer, dict[str, list[nn.Parameter]]] = defaultdict(dict)
    for part, own in trained(split, party):
        if isinstance(part.optimizer, Optimizer):
            alike[part.optimizer][part.name] = own
        else:
            made = part.optimizer(own)
            optimizer, schedule = made if isinstance(made, tuple) else (made, None)
            yield _Made(part.optimizer, {part.name: own}, optimizer, schedule)
    for rule, owned in alike.items():
        yield _Made(rule, owned, rule.over([each for own in owned.values() for each in own]))


def trained(split: SplitModel, party: str) -> Iterator[tuple[Part, list[nn.Parameter]]]:
    taken: set[int] = set()
    for part in split.owned_by(party):
        if not split.runs_backward(part.name):
            continue
        held = module_of(part).parameters()
        own = [each for each in held if each.requires_grad and id(each) not in taken]
        taken.update(map(id, own))
        if own:
            yield part, own
