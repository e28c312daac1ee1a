"""Fixed oriented filters: what a linear head sees of an image.

Noise is added to every weight that travels, so that few weights that see much are worth more than
many. These filters are nobody's data: pairs of an even and an odd Gabor filter, whose modulus says
how much of a stroke of one direction and width there is, wherever exactly it lies, averaged over
small squares of the image. What all directions share is taken away, and every image's features
have the same norm, so that no image's gradient is much longer than another's and little is clipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedveil.base.arrays import Float32s
from fedveil.errors import ModelInvalid

#: Filters are whole multiples of this, so that every machine's cosine gives the same ones.
_GRID = 2.0**-24
#: A filter ends where its window has fallen to a twentieth.
_REACH = 2.5
#: Added to the norm of a scale's strengths: what is far below is rounding, or dust, and stays so.
_FAINT = 1e-2
#: Added to a modulus' square, so that its root has a gradient where there is no stroke.
_DUST = 1e-12


@dataclass(frozen=True)
class FilterBank:
    """What decides the features; chosen on a part of MNIST's training set.

    `wavelengths`: a scale each, in pixels: a stroke and the gap beside it. `width`: the standard
    deviation of a filter's Gaussian window, in wavelengths. `stride`: how many pixels lie between
    two places of a filter. `pool`: the side of the squares that are averaged, in pixels, a
    multiple of the stride. `norm`: the L2 norm of every image's features. `twice`: whether the
    first scale's strengths, before they are averaged, go through its filters once more, which says
    how strokes are bent, end and cross: a scattering of second order, with as many features again
    for each orientation.
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
        """How many strengths a square has."""
        once = self.orientations * len(self.wavelengths)
        return once + self.twice * self.orientations**2

    def filters(self) -> Iterator[Float32s]:
        """For each scale, the even and the odd filter of each orientation: [filters, side, side].

        Each has norm 1, and mean 0: an even brightness is nothing.
        """
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
    """Images [examples, channels, height, width] as rows of `outputs` features.

    A strength is the mean, over one square of one channel, of sqrt(even^2 + odd^2) of one filter
    pair. The mean of a scale's directions is subtracted from each, square by square; each scale
    is divided by its L2 norm, the strengths of second order like a scale, and all features together
    are brought to norm `bank.norm`: nothing is known of any other image. One without a stroke gives
    next to nothing. Beyond its border an image goes on as it ends.
    """

    #: A convolution's bits do not depend on which images are beside it.
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
        self.outputs = channels * bank.channels * math.prod(side // bank.pool for side in sides)

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
        """A row of norm 1 for each plane, from [.., orientations, height, width]."""
        pooled = nn.functional.avg_pool2d(moduli, self.bank.pool // self.bank.stride)
        rows = (pooled - pooled.mean(1, keepdim=True)).reshape(planes, -1)
        strengths: torch.Tensor = rows / (rows.norm(dim=1, keepdim=True) + _FAINT)
        return strengths


def _moduli(planes: torch.Tensor, filters: torch.Tensor, stride: int) -> torch.Tensor:
    """sqrt(even^2 + odd^2) of each filter pair: [planes, orientations, height, width]."""
    padded = nn.functional.pad(planes, [filters.shape[-1] // 2] * 4, mode="replicate")
    answers = nn.functional.conv2d(padded, filters, stride=stride)
    return (answers[:, 0::2].square() + answers[:, 1::2].square() + _DUST).sqrt()
