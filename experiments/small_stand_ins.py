"""Replacements for the sources' data and models at scale small, by the names that jobs use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from torch import nn

from fedveil.base.array_types import Array
from fedveil.data import purchase100
from fedveil.data.datasets import load

#: Pixels of an image's side that become one; classes and features kept from Purchase-100.
_POOLED = 4
CLASSES, _FEATURES, _EXAMPLES = 20, 300, 15_000


@cache  # loaded once for several runs
def pooled_mnist() -> tuple[Array, Array, Array, Array]:
    """Return MNIST in 7x7 pixels, each the mean of 4x4 original ones.

    The training part has every fifteenth image.
    """
    data = load("mnist")
    train, test = data.train, data.test
    return _pooled(train.x[::15]), train.y[::15], _pooled(test.x), test.y


def _pooled(images: Array) -> Array:
    side = images.shape[-1] // _POOLED
    split = images.reshape(len(images), side, _POOLED, side, _POOLED)
    means: Array = split.mean(axis=(2, 4), dtype=np.float32)
    return means[:, None]


@cache
def purchase_part_synthetic() -> tuple[Array, Array, Array, Array]:
    """Return the first 20 classes and 300 features of a made-up Purchase-100."""
    data = purchase100.synthesize(_EXAMPLES)
    parts = []
    for part in (data.train, data.test):
        held = part.y < CLASSES
        parts += [part.x[held][:, :_FEATURES], part.y[held]]
    return tuple(parts)  # type: ignore[return-value]


def narrow(shape: Sequence[int], classes: int) -> nn.Module:
    """Return a net with 24 hidden tanh units: 1,450 parameters for 7x7 images of ten classes."""
    inputs = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 24), nn.Tanh(), nn.Linear(24, classes))
