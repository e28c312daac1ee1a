"""scikit-learn's digits: 1,797 scans of handwritten digits, in the files of the package itself."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedveil.base.array_types import Array, Float32s, Float64s, Int64s
from fedveil.data.examples import Dataset, centred, held_out
from fedveil.errors import MissingExtra

CLASSES = 10
SHAPE = (1, 28, 28)
_LEVELS = 16


def read() -> Dataset:
    """Return the scans, enlarged from 8 x 8 to 28 x 28 pixels and scaled from 0..16 to [-1, 1].

    The bytes are equal on every machine.
    """
    return held_out("digits", *_scans(), CLASSES)


@cache
def _scans() -> tuple[Float32s, Int64s]:
    """Return all scans, [scans, 1, 28, 28], and their digits. Cached, so do not change them.

    The second dimension is the one colour channel.
    """
    rows = _rows()
    images = rows[:, :-1].reshape(-1, 8, 8)
    return centred(enlarged(images, SHAPE[-1]) / _LEVELS)[:, None], rows[:, -1].astype(np.int64)


def _rows() -> Float64s:
    """Return the table of scikit-learn's `load_digits`: 64 pixels and the digit in each row."""
    found = find_spec("sklearn")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra("scikit-learn", "torch", "the data set digits") from None
    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def enlarged(images: Array, side: int) -> Array:
    """Enlarge images of shape (n, s, s) to (n, side, side) by bilinear interpolation.

    Pixels are areas (half-pixel centres) and the border is repeated, as in torch's
    interpolate(mode="bilinear", align_corners=False).
    """
    size = images.shape[-1]
    position = np.clip((np.arange(side) + 0.5) * size / side - 0.5, 0, size - 1)
    low = np.floor(position).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    share = position - low
    rows = images[:, low] * (1 - share)[:, None] + images[:, high] * share[:, None]
    result: Array = rows[:, :, low] * (1 - share) + rows[:, :, high] * share
    return result
