"""The compiled poolings give torch's values and gradients, bit for bit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedveil.entropy import Seeded
from fedveil.learning import pooling
from fedveil.learning.pooling import fuse_pools

pytestmark = pytest.mark.skipif(not pooling.HAVE_NUMBA, reason="compiled loops need numba")


def images(shape: tuple[int, ...], *, ties: bool = False) -> torch.Tensor:
    draw = Seeded(0, *shape).generator()
    values = draw.integers(-2, 3, shape) if ties else draw.normal(size=shape)
    x = torch.from_numpy(values.astype(np.float32))
    return x.contiguous(memory_format=torch.channels_last)


def outcome(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x)
    weights = torch.arange(y.numel(), dtype=torch.float32).view(y.shape) - 3
    (gradient,) = torch.autograd.grad((y * weights).sum(), x)
    return y.detach(), gradient


def assert_same(model: nn.Module, x: torch.Tensor) -> None:
    fused = copy.deepcopy(model)
    fuse_pools(fused)
    for one, other in zip(outcome(model, x), outcome(fused, x), strict=True):
        assert torch.equal(torch.nan_to_num(one, 7e7), torch.nan_to_num(other, 7e7))


@given(st.integers(1, 3), st.integers(1, 9), st.integers(2, 9), st.integers(2, 9), st.booleans())
def test_any_shape_with_and_without_ties(n: int, c: int, h: int, w: int, ties: bool) -> None:
    assert_same(nn.MaxPool2d(2), images((n, c, h, w), ties=ties))


def test_nan_wins_and_infinity_counts() -> None:
    x = images((2, 3, 6, 6))
    x[0, 0, 0, 1] = x[1, 2, 5, 5] = x[1, 2, 4, 4] = float("nan")
    x[0, 1, 2, 2], x[0, 1, 4, 4] = float("inf"), float("-inf")
    assert_same(nn.MaxPool2d(2), x)


def test_what_does_not_fit_is_left_to_torch() -> None:
    for x in (
        images((2, 3, 4, 4)).contiguous(),
        images((2, 3, 4, 4)).double(),
        images((2, 3, 4, 4))[0],
    ):
        assert_same(nn.MaxPool2d(2), x)
    for pool in (nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, ceil_mode=True)):
        fused = copy.deepcopy(pool)
        fuse_pools(fused)
        assert "forward" not in vars(fused)
