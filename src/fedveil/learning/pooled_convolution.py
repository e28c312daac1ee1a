"""Convolution, ReLU and 2x2 max-pooling in one, for narrow layers on a CPU.

Behind a pooling three of four outputs of a convolution have no gradient, and ReLU silences more:
the backward pass here visits only the outputs that won, where a general one multiplies zeros. And
a first layer, which has too few channels to fill a vector, runs along whole image planes instead.
Values and gradients are torch's up to rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Int64s
from fedveil._kernels import HAVE_NUMBA, compiled
from fedveil.learning.pooling import Floats, Places, is_plain_pool, largest, pool

#: Beyond, a layer's weights leave the first cache, and torch's products are as good.
_MAX_WEIGHTS = 1 << 14
#: With so few channels an image's planes are the longest vectors to be had.
_FEW_CHANNELS = 3
#: Taps of a filter that are taken at once; their number is filled up with zeros.
_TAPS = 5
_LANES = 8
_ZERO = np.float32(0)

#: Images, height, width and channels.
_Shape = tuple[int, int, int, int]


def fits(conv: nn.Conv2d, pool: nn.MaxPool2d) -> bool:
    """Whether the layers around a ReLU are of the plain kind that is written out here."""
    plain_conv = (conv.stride, conv.dilation, conv.groups) == ((1, 1), (1, 1), 1)
    padded = isinstance(conv.padding, tuple) and conv.padding_mode == "zeros"
    narrow = conv.weight.numel() <= _MAX_WEIGHTS and conv.bias is not None
    return HAVE_NUMBA and is_plain_pool(pool) and plain_conv and padded and narrow


class PooledConvolution:
    """The three layers as one; `backward` also takes the weights' SGD step.

    `first`: nobody will want the gradient of the input.
    """

    def __init__(self, conv: nn.Conv2d, *, first: bool) -> None:
        assert conv.bias is not None
        assert isinstance(conv.padding, tuple)
        self._conv = conv
        self._weight, self._bias = conv.weight.detach(), conv.bias.detach()
        self._padding = (int(conv.padding[0]), int(conv.padding[1]))
        few = first and conv.in_channels <= _FEW_CHANNELS
        self._way: _Planes | _Rows = _Planes(conv) if few else _Rows(conv)
        self._y = np.empty(0, np.float32)
        self._places = np.empty(0, np.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The pooled output, channels last."""
        rows, columns = self._conv.kernel_size
        height = x.shape[-2] + 2 * self._padding[0] - rows + 1
        width = x.shape[-1] + 2 * self._padding[1] - columns + 1
        if x.ndim != 4 or x.shape[1] != self._conv.in_channels or min(height, width) < 2:
            return nn.functional.max_pool2d(self._conv(x), 2)  # says what is wrong
        self._y = np.empty((len(x), height // 2, width // 2, len(self._weight)), np.float32)
        self._places = np.empty(self._y.shape, np.uint8)
        self._way.forward(x, self._padding, self._y, self._places)
        return torch.from_numpy(self._y).permute(0, 3, 1, 2)

    def backward(self, gradient: torch.Tensor, lr: float, wanted: bool) -> torch.Tensor | None:
        """Step against the gradient; gives that of the input where it is wanted."""
        layout = gradient.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        g = np.where(self._y <= 0, np.float32(0), layout.numpy())
        for_x = self._way.for_input(g, self._places, self._padding) if wanted else None
        self._weight.numpy()[...] -= np.float32(lr) * self._way.for_weight(g, self._places)
        self._bias.numpy()[...] -= np.float32(lr) * g.sum((0, 1, 2))
        return for_x


class _Planes:
    """Along whole planes: an output plane is a sum of shifted input planes, one for each tap."""

    def __init__(self, conv: nn.Conv2d) -> None:
        assert conv.bias is not None
        self._weight, self._bias = conv.weight.detach().numpy(), conv.bias.detach().numpy()
        self._used = self._weight[0].size
        self._taps = -(-self._used // _TAPS) * _TAPS
        self._images = np.empty((0, 0, 0, 0), np.float32)
        self._offsets = np.empty(0, np.int64)

    def forward(self, x: torch.Tensor, padding: tuple[int, int], y: Floats, places: Places) -> None:
        n, c, h, w = x.shape
        top, left = padding
        shape = (n, c, h + 2 * top, w + 2 * left)
        if shape[1:] != self._images.shape[1:]:
            self._offsets = self._reach(*shape[2:])
        self._images = np.zeros(shape, np.float32)
        self._images[:, :, top : top + h, left : left + w] = x.numpy()
        weights = np.zeros((len(self._weight), self._taps), np.float32)
        weights[:, : self._used] = self._weight.reshape(len(weights), -1)
        flat = self._images.reshape(n, -1)
        _convolve_planes(flat, self._offsets, weights, self._bias, shape[3], y, places)

    def _reach(self, height: int, width: int) -> Int64s:
        """How far every tap reaches into a padded image."""
        _, channels, rows, columns = self._weight.shape
        c, r, s = np.ogrid[:channels, :rows, :columns]
        offsets = np.zeros(self._taps, np.int64)
        offsets[: self._used] = ((c * height + r) * width + s).reshape(-1)
        return offsets

    def for_weight(self, g: Floats, places: Places) -> Floats:
        flat, width = self._images.reshape(len(g), -1), self._images.shape[3]
        out = np.zeros((len(self._weight), self._taps), np.float32)
        _weigh_planes(flat, g, places, self._offsets, width, out)
        return out[:, : self._used].reshape(self._weight.shape)

    def for_input(self, g: Floats, places: Places, padding: tuple[int, int]) -> torch.Tensor:
        raise AssertionError("a first layer's input has no gradient")


class _Rows:
    """Row by row: under a filter's row lie columns * channels values side by side."""

    def __init__(self, conv: nn.Conv2d) -> None:
        self._conv = conv
        filters, channels, rows, columns = conv.weight.shape
        self._row = columns * channels
        lanes = -(-self._row // _LANES) * _LANES
        self._weights = np.zeros((filters, rows, lanes), np.float32)
        self._shape: _Shape = (0, 0, 0, 0)
        self._images = np.empty(0, np.float32)

    def forward(self, x: torch.Tensor, padding: tuple[int, int], y: Floats, places: Places) -> None:
        n, c, h, w = x.shape
        top, left = padding
        self._shape = (n, h + 2 * top, w + 2 * left, c)
        self._images = self._empty()
        images = self._images[: int(np.prod(self._shape))].reshape(self._shape)
        images[:, top : top + h, left : left + w] = x.permute(0, 2, 3, 1).numpy()
        outputs = torch.conv2d(x, self._conv.weight, self._conv.bias, padding=padding).detach()
        outputs = outputs.contiguous(memory_format=torch.channels_last)
        pool(outputs.permute(0, 2, 3, 1).numpy(), _ZERO, y, places)

    def _empty(self) -> Floats:
        """Room for the padded images, and for the last row's unused lanes."""
        return np.zeros(int(np.prod(self._shape)) + self._weights.shape[2], np.float32)

    def for_weight(self, g: Floats, places: Places) -> Floats:
        out = np.zeros_like(self._weights)
        _meet_rows(self._images, self._shape, g, places, out, False)
        filters, rows, _ = out.shape
        weights = out[:, :, : self._row].reshape(filters, rows, -1, self._shape[3])
        return weights.transpose(0, 3, 1, 2)

    def for_input(self, g: Floats, places: Places, padding: tuple[int, int]) -> torch.Tensor:
        _, height, width, _ = self._shape
        filters, rows, _ = self._weights.shape
        weight = self._conv.weight.detach().permute(0, 2, 3, 1).numpy()
        self._weights[:, :, : self._row] = weight.reshape(filters, rows, self._row)
        out = self._empty()
        _meet_rows(out, self._shape, g, places, self._weights, True)
        padded = torch.from_numpy(out[: int(np.prod(self._shape))].reshape(self._shape))
        top, left = padding
        inner = padded[:, top : height - top, left : width - left]
        return inner.permute(0, 3, 1, 2)


@compiled(reorder=True)
def _convolve_planes(
    images: Floats,
    offsets: Int64s,
    weights: Floats,
    bias: Floats,
    width: int,
    y: Floats,
    places: Places,
) -> None:
    n, height, columns, filters = y.shape
    # Up to the last output that counts: the farthest tap then ends with the image.
    length = 2 * height * width - (width - 2 * columns)
    plane = np.empty(2 * height * width, np.float32)
    values, which = np.empty(columns, np.float32), np.empty(columns, np.uint8)
    for i in range(n):
        for k in range(filters):
            plane[:] = bias[k]
            for t in range(0, len(offsets), 5):
                a, b = images[i, offsets[t] :], images[i, offsets[t + 1] :]
                c, d = images[i, offsets[t + 2] :], images[i, offsets[t + 3] :]
                e = images[i, offsets[t + 4] :]
                wa, wb, wc = weights[k, t], weights[k, t + 1], weights[k, t + 2]
                wd, we = weights[k, t + 3], weights[k, t + 4]
                for l in range(length):
                    plane[l] += wa * a[l] + wb * b[l] + wc * c[l] + wd * d[l] + we * e[l]
            for row in range(height):
                above, below = plane[2 * row * width :], plane[(2 * row + 1) * width :]
                for column in range(columns):
                    l = 2 * column
                    value, place = largest(above[l], above[l + 1], below[l], below[l + 1])
                    values[column] = _ZERO if value <= 0 else value
                    which[column] = place
                # Apart, so that the comparisons above run side by side.
                for column in range(columns):
                    y[i, row, column, k] = values[column]
                    places[i, row, column, k] = which[column]


@compiled(reorder=True)
def _weigh_planes(
    images: Floats, g: Floats, places: Places, offsets: Int64s, width: int, out: Floats
) -> None:
    n, height, columns, filters = g.shape
    length = 2 * height * width - (width - 2 * columns)
    plane = np.empty(2 * height * width, np.float32)
    for i in range(n):
        for k in range(filters):
            plane[:] = 0
            for row in range(height):
                for column in range(columns):
                    place = np.int64(places[i, row, column, k])
                    at = (2 * row + (place >> 1)) * width + 2 * column + (place & 1)
                    plane[at] = g[i, row, column, k]
            for t in range(0, len(offsets), 5):
                a, b = images[i, offsets[t] :], images[i, offsets[t + 1] :]
                c, d = images[i, offsets[t + 2] :], images[i, offsets[t + 3] :]
                e = images[i, offsets[t + 4] :]
                sa = sb = sc = sd = se = np.float32(0)
                for l in range(length):
                    sa += plane[l] * a[l]
                    sb += plane[l] * b[l]
                    sc += plane[l] * c[l]
                    sd += plane[l] * d[l]
                    se += plane[l] * e[l]
                out[k, t] += sa
                out[k, t + 1] += sb
                out[k, t + 2] += sc
                out[k, t + 3] += sd
                out[k, t + 4] += se


@compiled(reorder=True)
def _meet_rows(
    images: Floats, shape: _Shape, g: Floats, places: Places, weights: Floats, back: bool
) -> None:
    """Add g times what lies under each winner to its filter's weights; `back`: the other way."""
    _, height, width, channels = shape
    stride = width * channels
    n, pooled, columns, filters = g.shape
    _, rows, lanes = weights.shape
    for i in range(n):
        for row in range(pooled):
            for column in range(columns):
                for k in range(filters):
                    value = g[i, row, column, k]
                    if value != 0:
                        place = np.int64(places[i, row, column, k])
                        at = (i * height + 2 * row + (place >> 1)) * stride
                        at += (2 * column + (place & 1)) * channels
                        for r in range(rows):
                            under = images[at + r * stride : at + r * stride + lanes]
                            over = weights[k, r]
                            source, target = (over, under) if back else (under, over)
                            for l in range(lanes):
                                target[l] += value * source[l]
