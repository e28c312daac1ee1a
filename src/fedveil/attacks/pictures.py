"""Pictures of originals beside reconstructions, and measures of the similarity of two images."""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image
from skimage.metrics import structural_similarity

from fedveil.base.array_types import Float64s

_GAP, _SCALE = 2, 3


def mse(original: Float64s, other: Float64s) -> float:
    """Return the mean squared error of two images with values in [0, 1]."""
    return float(np.mean((original - other) ** 2))


def psnr(original: Float64s, other: Float64s) -> float:
    """Return the peak signal-to-noise ratio of two images in decibels, for values in [0, 1]."""
    error = mse(original, other)
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(original: Float64s, other: Float64s) -> float:
    """Return the structural similarity of two images, which is 1 if they are equal.

    The images are [channels, height, width] with values in [0, 1]. Source: Wang et al. 2004.
    """
    side = min(original.shape[1:])
    window = min(7, side - 1 + side % 2)
    return float(
        structural_similarity(  # type: ignore[no-untyped-call]
            original, other, data_range=1.0, channel_axis=0, win_size=window
        )
    )


def grid(rows: list[list[Float64s]]) -> bytes:
    """Return a PNG that shows rows of images [channels, height, width] with values in [0, 1]."""
    channels, height, width = rows[0][0].shape
    columns = max(len(row) for row in rows)
    shape = (len(rows) * (height + _GAP) + _GAP, columns * (width + _GAP) + _GAP, channels)
    canvas = np.ones(shape)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            top, left = _GAP + i * (height + _GAP), _GAP + j * (width + _GAP)
            canvas[top : top + height, left : left + width] = np.moveaxis(image, 0, -1)
    pixels = np.rint(255 * np.clip(canvas, 0, 1)).astype(np.uint8)
    pixels = pixels.repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)
    picture = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return out.getvalue()
