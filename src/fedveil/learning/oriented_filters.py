"""Fixed oriented filters that compute features for a linear classifier.

The filters do not depend on any data. A pair of Gabor filters measures strokes of one direction and
width, regardless of their exact position. The features of all images with clear strokes have the
same norm, so their gradients have similar lengths and little is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Float32s
from fedveil.errors import ModelInvalid

#: Filters are rounded to multiples of this, so that they are the same on every machine.
_GRID = 2.0**-24
#: A filter ends where its window falls to a twentieth of its peak.
_REACH = 2.5
#: Added to the norm of a scale's strengths, so that an almost empty image is not amplified.
_FAINT = 1e-2
#: Added to the squared modulus, so that its root has a gradient when there is no stroke.
_DUST = 1e-12


@dataclass(frozen=True)
class FilterBank:
    """The settings of the features, chosen on a part of MNIST's training set.

    There is one scale of filters for each of the `wavelengths`. A wavelength is the width of a
    stroke plus that of the gap beside it, in pixels. The standard deviation of a filter's Gaussian
    window is `width` times the wavelength. `stride` is the number of pixels between two positions
    of a filter. Filter outputs are averaged over squares with sides of `pool` pixels, a multiple of
    the stride. `norm` is the L2 norm of the features of an image with clear strokes. If `twice` is
    True, the first scale's outputs are filtered a second time (second-order scattering).
    """

    orientations: int = 8
    wavelengths: tuple[float, ...] = (5.0, 11.0)
    width: float = 0.4
    stride: int = 2
    pool: int = 4
    norm: float = 10.0
    twice: bool = False

    @property
    def channels(self) -> int:
        once = self.orientations * len(self.wavelengths)
        return once + self.twice * self.orientations**2

    def filters(self) -> Iterator[Float32s]:
        """Yield each scale's filters, of shape [filters, side, side], with norm 1 and mean 0."""
        for wavelength in self.wavelengths:
            reach = math.ceil(_REACH * self.width * wavelength)
            steps = np.arange(-reach, reach + 1, dtype=np.float64)
            y, x = np.meshgrid(steps, steps, indexing="ij")
            window = np.exp(-(x**2 + y**2) / (2 * (self.width * wavelength) ** 2))
            found = []
            for turn in range(self.orientations):
                angle = math.pi * turn / self.orientations
                across = x * math.cos(angle) + y * math.sin(angle)
                phase = 2 * math.pi / wavelength * across
                even = window * np.cos(phase)
                even -= window * (even.sum() / window.sum())
                found += [even, window * np.sin(phase)]
            unit = [values / np.linalg.norm(values) for values in found]
            yield (np.round(np.stack(unit) / _GRID) * _GRID).astype(np.float32)


class OrientedFilters(nn.Module):
    """Maps images [examples, channels, height, width] to rows of `outputs` features.

    An image's features do not depend on other images. Their norm is `bank.norm` for an image with
    clear strokes. It is lower for an image with faint ones, and close to zero without strokes.
    """

    #: The bits of a convolution do not depend on the other images in the batch.
    examples_at_once = 16

    def __init__(self, shape: Sequence[int], bank: FilterBank | None = None) -> None:
        super().__init__()
        self.bank = bank = bank or FilterBank()
        if len(shape) != 3 or min(shape[1:]) < bank.pool:
            raise ModelInvalid(
                f"model = filters_linear needs images [channels, height, width] of at least "
                f"{bank.pool} x {bank.pool}, not {tuple(shape)}"
            )
        for scale, filters in enumerate(bank.filters()):
            self.register_buffer(f"scale{scale}", torch.from_numpy(filters)[:, None], False)
        channels, *sides = shape
        squares = [-(-side // bank.stride) // (bank.pool // bank.stride) for side in sides]
        self.outputs = channels * bank.channels * math.prod(squares)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        planes = x.reshape(-1, 1, *x.shape[2:])
        parts = []
        for filters in self.buffers():
            moduli = _moduli(planes, filters, self.bank.stride)
            parts.append(self._strengths(moduli, len(planes)))
            if self.bank.twice and len(parts) == 1:
                again = _moduli(moduli.flatten(0, 1)[:, None], filters, 1)
                parts.append(self._strengths(again, len(planes)))
        rows = torch.cat(parts, 1).reshape(len(x), -1)
        features: torch.Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1)
        return self.bank.norm * features

    def _strengths(self, moduli: torch.Tensor, planes: int) -> torch.Tensor:
        """Return a row of features for each plane (one channel of an image).

        `planes` is the number of planes. `moduli` is [n, pairs, rows, columns], as `_moduli`
        returns it. n is the number of planes or, after a second filtering, the number of planes
        times the number of pairs in the first one. A plane is divided into squares of `pool` x
        `pool` pixels. A feature is the mean modulus of one pair in one square, minus the mean over
        all pairs in this square. Each row is scaled to a norm of almost 1, or less if the plane has
        only faint strokes.
        """
        pooled = nn.functional.avg_pool2d(moduli, self.bank.pool // self.bank.stride)
        rows = (pooled - pooled.mean(1, keepdim=True)).reshape(planes, -1)
        strengths: torch.Tensor = rows / (rows.norm(dim=1, keepdim=True) + _FAINT)
        return strengths


def _moduli(planes: torch.Tensor, filters: torch.Tensor, stride: int) -> torch.Tensor:
    """Return sqrt(even² + odd²) of the outputs of each pair of filters, an even and an odd one.

    `planes` is [planes, 1, height, width], images with one channel. `stride` is the number of
    pixels between two positions of a filter. The result is [planes, pairs, rows, columns].
    """
    padded = nn.functional.pad(planes, [filters.shape[-1] // 2] * 4, mode="replicate")
    answers = nn.functional.conv2d(padded, filters, stride=stride)
    return (answers[:, 0::2].square() + answers[:, 1::2].square() + _DUST).sqrt()
