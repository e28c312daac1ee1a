"""The layers of a model that compiled code may train: only those that nobody has changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedveil.learning.known_layers import plain_layers

KNOWN = (nn.Linear, nn.ReLU)


def chain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.ReLU(), nn.Linear(5, 5)))


def tie(model: nn.Sequential) -> None:
    model[1][1].weight = model[0].weight


def freeze(model: nn.Sequential) -> None:
    model[1][1].bias.requires_grad_(False)


def double(model: nn.Sequential) -> None:
    model[0].double()


def hook(model: nn.Sequential) -> None:
    model[1][1].register_forward_hook(lambda *_: None)


def hook_whole(model: nn.Sequential) -> None:
    model[1].register_full_backward_hook(lambda *_: None)


def replace_forward(model: nn.Sequential) -> None:
    model[0].forward = torch.neg


def buffer(model: nn.Sequential) -> None:
    model[0].register_buffer("seen", torch.zeros(1))


def stranger(model: nn.Sequential) -> None:
    model[1].append(nn.Tanh())


def test_an_untouched_chain_is_its_layers_in_order() -> None:
    model = chain()
    assert plain_layers(model, KNOWN) == [model[0], model[1][0], model[1][1]]
    assert plain_layers(model[0], KNOWN) == [model[0]]
    assert plain_layers(nn.Sequential(nn.ReLU()), KNOWN) is None


@pytest.mark.parametrize(
    "change", [tie, freeze, double, hook, hook_whole, replace_forward, buffer, stranger]
)
def test_a_changed_model_has_no_plain_layers(change: Callable[[nn.Sequential], None]) -> None:
    model = chain()
    change(model)
    assert plain_layers(model, KNOWN) is None
