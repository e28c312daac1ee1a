"""The layers that native code refuses are named exactly where it does not train the model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.compiled.operation import ROW, TOKENS
from fedveil.learning.token_layers import CausalLayer
from known_chains import chains, word_chains
from native_training import refused
from training_parts import plan

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")

Made = tuple[nn.Sequential, tuple[int, ...]]


def form_of(model: nn.Sequential) -> str:
    return TOKENS if isinstance(model[0], nn.Embedding) else ROW


@given(st.one_of(chains(), word_chains()))
@settings(max_examples=40)
def test_no_layer_of_a_native_chain_is_refused(made: Made) -> None:
    model, shape = made
    loss = {ROW: "cross_entropy", TOKENS: "next_token"}[form_of(model)]
    assert CompiledTrainer.of(model, plan(loss=loss), shape) is not None
    assert refused(model, shape, form_of(model), called=False) == [[]] * len(model)


@given(st.one_of(chains(), word_chains()), st.data())
@settings(max_examples=40)
def test_an_unknown_layer_is_refused_alone(made: Made, data: st.DataObject) -> None:
    model, shape = made
    place = data.draw(st.integers(1, len(model)))
    model.insert(place, nn.Softplus())
    found = refused(model, shape, form_of(model))
    assert found.pop(place) == ["native code does not know Softplus"]
    assert found == [[]] * (len(model) - 1)


class Beside(nn.Module):
    """Returns the output of a layer twice, side by side."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return torch.cat([y, y], -1)


def still(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


BESIDE = ["native code cannot follow the forward pass of Beside"]
SOFTPLUS = ["native code does not know Softplus"]


@pytest.mark.parametrize(
    ("layers", "shape", "found"),
    [
        (
            (still(nn.Conv2d(2, 3, 2, dilation=3)), nn.Flatten(), nn.Linear(24, 3)), (2, 7, 5),
            [["a weight is frozen", "nn.Conv2d has a dilation"], [], []],
        ),
        # the layer behind a module reads what the module returns, not what is inside it
        (
            (nn.Linear(7, 9), Beside(nn.Linear(9, 4)), nn.Linear(8, 3)), (7,),
            [[], BESIDE, [], []],
        ),
        # a layer is refused for what it gets, not for what a layer before it should return
        (
            (nn.Softplus(), nn.Linear(7, 9), nn.Linear(8, 3)), (7,),
            [SOFTPLUS, [], ["the input of nn.Linear has another shape"]],
        ),
        (
            (nn.Conv2d(2, 4, 3),), (2, 5, 5),
            [["the scores have the form image, the loss needs row"]],
        ),
        (
            (nn.Linear(7, 9), nn.ReLU(), nn.Flatten(), nn.Linear(45, 3)), (5, 7),
            [["an example is neither a row nor an image"], [], [], []],
        ),
        (
            (Beside(nn.Embedding(9, 8)), nn.Flatten(), nn.Linear(96, 3)), (6,),
            [BESIDE, [], [], []],
        ),
        (
            (nn.ReLU(), nn.Embedding(9, 8), nn.Flatten(), nn.Linear(48, 3)), (6,),
            [[], ["nn.Embedding is not the first layer"], [], []],
        ),
        (
            (nn.Hardtanh(0, 8), nn.Embedding(9, 8), nn.Flatten(), nn.Linear(48, 3)), (6,),
            [
                ["native code does not know Hardtanh"], ["nn.Embedding is not the first layer"],
                [], [],
            ],
        ),
        (
            (nn.Softplus(), nn.Unflatten(1, (2, 3, 1, 1)), nn.ReLU(), nn.Flatten(),
             nn.Linear(6, 3)), (6,),
            [
                SOFTPLUS, ["native code does not know Unflatten"],
                ["its input is neither a row nor tokens nor an image"],
                ["its input is neither a row nor tokens nor an image"], [],
            ],
        ),
        (
            (nn.Embedding(9, 16), nn.Softplus(), CausalLayer(16, 4, 24), nn.Flatten(),
             nn.Linear(96, 3)), (6,),
            [[], SOFTPLUS, ["an attention head has 4 values, no multiple of 8"], [], []],
        ),
    ],
)  # fmt: skip
def test_each_layer_is_judged_by_the_input_that_it_gets(
    layers: Sequence[nn.Module], shape: tuple[int, ...], found: list[list[str]]
) -> None:
    assert refused(nn.Sequential(*layers), shape) == found


def test_a_layer_whose_input_is_unknown_is_not_judged() -> None:
    model = nn.Sequential(nn.Softplus(), nn.Linear(7, 9), nn.Mish(), still(nn.Linear(9, 3)))
    assert refused(model, (7,), called=False) == [
        SOFTPLUS, None, ["native code does not know Mish"], ["a weight is frozen"],
    ]  # fmt: skip


def test_every_form_that_the_loss_takes_is_named() -> None:
    (found,) = refused(nn.Conv2d(2, 4, 3), (2, 5, 5), ROW, TOKENS)
    assert found == ["the scores have the form image, the loss needs row or tokens"]
