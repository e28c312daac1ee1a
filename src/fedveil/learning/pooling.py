"""2x2 max-pooling of channels-last images with few channels, in compiled loops.

torch's own loop runs over the channels; where they do not fill a vector it spends more on one
pooling than a small model spends on a convolution. The values and gradients here are exactly
torch's: of equal maxima the first in row order is taken, and NaN wins.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Float32s, Uint8s
from fedveil._kernels import HAVE_NUMBA, compiled

Floats = Float32s
Places = Uint8s
_NO_FLOOR = np.float32(-np.inf)


def fuse_pools(model: nn.Module) -> None:
    """Let the model's 2x2 poolings use the compiled loops while it trains on a CPU."""
    if not HAVE_NUMBA:
        return
    for module in model.modules():
        if is_plain_pool(module):
            module.forward = types.MethodType(_pool, module)


def is_plain_pool(module: nn.Module) -> bool:
    """Whether a layer takes the largest of every 2x2 and nothing else."""
    if type(module) is not nn.MaxPool2d:
        return False
    shape = (module.kernel_size, module.stride, module.padding, module.dilation)
    return shape == (2, 2, 0, 1) and not module.ceil_mode and not module.return_indices


def _pool(module: nn.MaxPool2d, x: torch.Tensor) -> torch.Tensor:
    fits = x.ndim == 4 and x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0
    # torch's loop is as good where the channels fill its vectors.
    narrow = fits and x.shape[1] % 8 != 0 and min(x.shape[2:]) > 1
    if narrow and x.is_contiguous(memory_format=torch.channels_last):
        y: torch.Tensor = _Pool.apply(x)  # type: ignore[no-untyped-call]
        return y
    return nn.functional.max_pool2d(x, 2)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        y = torch.empty((n, h // 2, w // 2, c))
        places = np.empty(y.shape, np.uint8)
        pool(x.detach().permute(0, 2, 3, 1).numpy(), _NO_FLOOR, y.numpy(), places)
        ctx.places, ctx.shape = places, x.shape
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        n, c, h, w = ctx.shape
        covered = h % 2 == w % 2 == 0
        out = (torch.empty if covered else torch.zeros)((n, h, w, c))
        source = gradient.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        _spread(source.numpy(), ctx.places, out.numpy())
        return out.permute(0, 3, 1, 2)


@compiled(reorder=True)
def pool(x: Floats, floor: np.float32, y: Floats, places: Places) -> None:
    """The largest of every 2x2, `floor` where that is not above it; and which of the four it is."""
    n, height, columns, filters = y.shape
    for i in range(n):
        for row in range(height):
            for column in range(columns):
                a, b = x[i, 2 * row, 2 * column], x[i, 2 * row, 2 * column + 1]
                c, d = x[i, 2 * row + 1, 2 * column], x[i, 2 * row + 1, 2 * column + 1]
                for k in range(filters):
                    value, place = largest(a[k], b[k], c[k], d[k])
                    y[i, row, column, k] = floor if value <= floor else value
                    places[i, row, column, k] = place


@compiled(reorder=True)
def largest(
    a: np.float32, b: np.float32, c: np.float32, d: np.float32
) -> tuple[np.float32, np.uint8]:
    """The largest, and which it is: a later one only where it is larger, or NaN. No branches."""
    take = (b > a) | (b != b)
    first = b if take else a
    place = np.uint8(1) if take else np.uint8(0)
    take = (d > c) | (d != d)
    second = d if take else c
    other = np.uint8(3) if take else np.uint8(2)
    take = (second > first) | (second != second)
    return (second if take else first), (other if take else place)


@compiled()
def _spread(gradient: Floats, places: Places, out: Floats) -> None:
    n, h, w, c = gradient.shape
    zero = np.float32(0)
    for i in range(n):
        for row in range(h):
            for column in range(w):
                for k in range(c):
                    g = gradient[i, row, column, k]
                    place = places[i, row, column, k]
                    out[i, 2 * row, 2 * column, k] = g if place == 0 else zero
                    out[i, 2 * row, 2 * column + 1, k] = g if place == 1 else zero
                    out[i, 2 * row + 1, 2 * column, k] = g if place == 2 else zero
                    out[i, 2 * row + 1, 2 * column + 1, k] = g if place == 3 else zero
