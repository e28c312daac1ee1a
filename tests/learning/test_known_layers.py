"""The layers of a model that compiled code may train: only those that nobody has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

from fedveil.learning.known_layers import parts_of, plain_layers
from fedveil.learning.residual import chain_of

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


def add_to_chain(model: nn.Sequential) -> None:
    model[1].scale = nn.Parameter(torch.ones(3))


def test_an_untouched_chain_is_its_layers_in_order() -> None:
    model = chain()
    assert plain_layers(model, KNOWN) == [model[0], model[1][0], model[1][1]]
    assert plain_layers(model[0], KNOWN) == [model[0]]
    assert plain_layers(nn.Sequential(nn.ReLU()), KNOWN) is None


@pytest.mark.parametrize(
    "change",
    [tie, freeze, double, hook, hook_whole, replace_forward, buffer, stranger, add_to_chain],
)
def test_a_changed_model_has_no_plain_layers(change: Callable[[nn.Sequential], None]) -> None:
    model = chain()
    change(model)
    assert plain_layers(model, KNOWN) is None


@pytest.mark.parametrize(
    "register",
    [
        modules.register_module_forward_pre_hook,
        modules.register_module_forward_hook,
        modules.register_module_full_backward_pre_hook,
        modules.register_module_full_backward_hook,
    ],
)
def test_a_hook_on_all_modules_changes_every_model(register: Callable[..., Any]) -> None:
    hook = register(lambda *_: None)
    try:
        assert plain_layers(chain(), KNOWN) is None
    finally:
        hook.remove()
    assert plain_layers(chain(), KNOWN) is not None


class OwnLinear(nn.Linear):
    pass


class OwnNorm(nn.LayerNorm):
    pass


class OwnCurve(nn.GELU):
    pass


class OwnAttention(nn.MultiheadAttention):
    pass


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("linear1", OwnLinear(8, 12)),
        ("linear2", OwnLinear(12, 8)),
        ("norm1", OwnNorm(8)),
        ("norm2", OwnNorm(8)),
        ("dropout2", nn.AlphaDropout(0.1)),
        ("activation", OwnCurve()),
        ("self_attn", OwnAttention(8, 2, batch_first=True)),
        ("self_attn", nn.MultiheadAttention(8, 2)),
        ("self_attn.out_proj", OwnLinear(8, 8)),
    ],
)
def test_a_transformer_layer_with_a_part_of_another_kind_is_no_chain(
    name: str, part: nn.Module
) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    assert chain_of(layer) is not None
    where, _, last = name.rpartition(".")
    setattr(layer.get_submodule(where), last, part)
    assert chain_of(layer) is None


class Scaled(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 4), nn.Sequential(nn.Linear(4, 2)))
        self.scale, self[1].shift = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(6))


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.rows = nn.ModuleDict({"one": nn.Linear(5, 4)}), nn.ModuleList([Scaled()])
        self.body.shift, self.rows.scale = nn.Parameter(torch.ones(7)), nn.Parameter(torch.ones(9))


def with_weights_of_its_own() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
    model.scale = nn.Parameter(torch.ones(8))
    return model


@pytest.mark.parametrize("make", [with_weights_of_its_own, Scaled, Holding, chain])
def test_the_parts_of_a_model_have_all_of_its_weights(make: Callable[[], nn.Module]) -> None:
    model = make()
    parts = list(parts_of(model, KNOWN))
    assert sorted(id(p) for part in parts for p in part.parameters) == sorted(
        map(id, model.parameters())
    )
    sizes = {part.name: sum(p.numel() for p in part.parameters) for part in parts}
    own = {"": 8} if make is with_weights_of_its_own else {"": 3, "1": 6} if make is Scaled else {}
    if make is Holding:
        own = {"": 0, "body": 7, "rows": 9, "rows.0": 3, "rows.0.1": 6}
    assert {name: sizes[name] for name in own} == own
    for part in parts:
        of_a_list = type(part.module) in (nn.Sequential, nn.ModuleDict, nn.ModuleList)
        assert any("weights of its own" in why for why in part.refusals) == of_a_list
