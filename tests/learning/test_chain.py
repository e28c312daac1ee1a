"""The steps that are written out are autograd's."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedveil._kernels import HAVE_NUMBA
from fedveil.entropy import Seeded
from fedveil.learning.chain import Chain
from fedveil.learning.pooled_convolution import PooledConvolution
from training_parts import Doubled, tied

LR = 0.1


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(Seeded(seed).generator().standard_normal(shape, dtype=np.float32))


def with_weights(model: nn.Sequential, seed: int) -> nn.Sequential:
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_(draw(seed + place, *parameter.shape) * 0.3)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def by_autograd(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=LR)
            parameter.grad = None


def check(model: nn.Sequential, x: torch.Tensor, classes: int, kinds: int | None = None) -> None:
    """Two steps of each, the second on a shorter batch."""
    theirs = copy.deepcopy(model)
    chain = Chain.of(model)
    assert chain is not None
    if kinds is not None and HAVE_NUMBA:
        assert sum(isinstance(layer, PooledConvolution) for layer in chain._layers) == kinds
    for size in (len(x), len(x) - 1):
        y = torch.arange(size) % classes
        by_autograd(theirs, x[:size], y)
        chain.step(x[:size].clone(memory_format=torch.preserve_format), y, LR)
    for one, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


@settings(max_examples=60, deadline=None)
@given(
    channels=st.integers(1, 6),
    filters=st.integers(1, 9),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    size=st.tuples(st.integers(6, 13), st.integers(6, 13)),
    deeper=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_pooled_convolutions(
    channels: int,
    filters: int,
    kernel: tuple[int, int],
    padding: tuple[int, int],
    size: tuple[int, int],
    deeper: bool,
    seed: int,
) -> None:
    first = nn.Conv2d(channels, filters, kernel, padding=padding)
    layers = [first, nn.ReLU(), nn.MaxPool2d(2)]
    if deeper:
        layers += [nn.Conv2d(filters, 4, 2, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2)]
    x = draw(seed, 3, channels, *size).contiguous(memory_format=torch.channels_last)
    width = nn.Sequential(*layers, nn.Flatten())(x).shape[1]
    if width == 0:
        return
    model = with_weights(nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3)), seed)
    check(model, x, 3, kinds=2 if deeper else 1)


MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "dense": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(144, 20), nn.Tanh(), nn.Linear(20, 9, bias=False), nn.Sigmoid(),
        nn.Linear(9, 4),
    ),
    "in place": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(144, 20), nn.ReLU(inplace=True), nn.Tanh(), nn.Linear(20, 4)
    ),
    "nested": lambda: nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(2), nn.Identity(), nn.Flatten()),
        nn.Linear(75, 4),
    ),
    "convolutions of other kinds": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, bias=False), nn.Tanh(), nn.Conv2d(4, 4, 2, groups=2),
        nn.MaxPool2d(3, 1, 1), nn.Conv2d(4, 2, 3, padding=1, dilation=1), nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(8, 4),
    ),
    "nothing but a layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_chains(name: str) -> None:
    x = draw(1, 5, 1, 12, 12).contiguous(memory_format=torch.channels_last)
    check(with_weights(MODELS[name](), 7), x, 4)


def test_equal_maxima_and_negative_ones() -> None:
    """Constant images: every window has four equal values, in half of the filters negative ones."""
    layers = (nn.Conv2d(2, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    model = with_weights(nn.Sequential(*layers), 3)
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([5.0, -5.0, 5.0, -5.0]))
    check(model, torch.ones(4, 2, 4, 4).contiguous(memory_format=torch.channels_last), 3, kinds=1)


@pytest.mark.parametrize("channels", [1, 4])
def test_nan_is_not_lost(channels: int) -> None:
    layers = (nn.Conv2d(channels, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    model = with_weights(nn.Sequential(*layers), 3)
    x = draw(2, 3, channels, 6, 6)
    x[1, 0, 3, 3] = np.nan
    chain = Chain.of(model)
    assert chain is not None
    chain.step(x.contiguous(memory_format=torch.channels_last), torch.tensor([0, 1, 2]), LR)
    assert all(bool(p.isnan().any()) for p in model.parameters())


def test_ignored_and_wrong_labels() -> None:
    model = with_weights(nn.Sequential(nn.Linear(4, 3)), 1)
    theirs, x = copy.deepcopy(model), draw(5, 4, 4)
    chain = Chain.of(model)
    assert chain is not None
    y = torch.tensor([0, -100, 2, 1])
    chain.step(x, y, LR)
    by_autograd(theirs, x, y)
    torch.testing.assert_close(model[0].weight, theirs[0].weight)
    with pytest.raises(IndexError):
        chain.step(x, torch.tensor([0, 3, 2, 1]), LR)


@pytest.mark.parametrize("shape", [(3, 1, 1, 9), (3, 2, 9, 9), (3, 9, 9)])
def test_images_that_do_not_fit(shape: tuple[int, ...]) -> None:
    layers = (nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3))
    chain = Chain.of(nn.Sequential(*layers))
    assert chain is not None
    with pytest.raises((RuntimeError, IndexError)):
        chain.step(torch.ones(shape), torch.tensor([0, 1, 2]), LR)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].register_forward_hook(lambda *_: None)
    return model


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model[0].weight.requires_grad_(False)
    return model


class Own(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def patched() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3))
    model[0].forward = lambda x: x[:, :3]  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    "make",
    [
        hooked,
        tied,
        frozen,
        patched,
        lambda: Own(nn.Linear(4, 3)),
        lambda: nn.Sequential(Doubled(4, 3)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        lambda: nn.Sequential(nn.Linear(4, 3, dtype=torch.float64)),
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))),
        lambda: nn.Sequential(nn.ReLU()),
    ],
)
def test_what_is_no_plain_chain(make: Callable[[], nn.Module]) -> None:
    assert Chain.of(make()) is None
