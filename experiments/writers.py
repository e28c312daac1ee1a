"""Handwriting by writer: FEMNIST's or MNIST's writers if available, otherwise simulated hands."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import ndimage

from fedveil.base.array_types import Array
from fedveil.data import femnist, mnist
from fedveil.data.data_folders import find
from fedveil.data.datasets import load
from fedveil.entropy import Seeded

WRITERS = 100
#: Images of a simulated writer: FEMNIST's writers have about 220 each.
_IMAGES = 220
_MEDIUM_IMAGES = 40
SMALL_WRITERS, _SMALL_IMAGES = 30, 20
#: Largest slant of a writer (the tangent), and largest relative change of height and width.
_SLANT, _SIZE = 0.4, 0.2


def femnist_is_here() -> bool:
    """Return True if FEMNIST's files are on this machine."""
    return all(find(femnist.FOLDER, part) is not None for part in ("train", "test"))


def femnist_100() -> dict[str, Any]:
    """Return the first hundred writers of FEMNIST."""
    data = load("femnist")
    assert data.owners is not None
    held = data.owners < WRITERS
    return {
        "x_train": data.train.x[held],
        "y_train": data.train.y[held],
        "x_test": data.test.x,
        "y_test": data.test.y,
        "client_ids": data.owners[held],
        "classes": data.classes,
    }


def mnist_name(scale: str) -> str:
    """Return the name of the data function for a scale.

    Its images are grouped by MNIST's real writers if these are known on this machine, otherwise by
    simulated ones.
    """
    kind = "written" if mnist.writers_are_here() else "synthetic"
    return f"mnist_{kind}" if scale == "full" else f"mnist_{kind}_{scale}"


def hands(name: str) -> str:
    """Return who wrote the images of the data function `name`, as a remark, or "" for FEMNIST."""
    if "femnist" in name:
        return ""
    real = " (MNIST by its real writers; others wrote the test images)"
    return real if "written" in name else " (MNIST, divided among simulated writers)"


def mnist_written() -> dict[str, Any]:
    """Return the first hundred writers of MNIST, with all of their images."""
    return _written_by(WRITERS, None)


def mnist_written_medium() -> dict[str, Any]:
    """Return the first hundred writers of MNIST, with 40 images each."""
    return _written_by(WRITERS, _MEDIUM_IMAGES)


def mnist_written_small() -> dict[str, Any]:
    """Return the first thirty writers of MNIST, with 20 images each."""
    return _written_by(SMALL_WRITERS, _SMALL_IMAGES)


def _written_by(writers: int, images: int | None) -> dict[str, Any]:
    """Return up to `images` images of each real writer. Other people wrote the test images."""
    data = load("mnist", writers=True)
    assert data.owners is not None
    rows = np.concatenate([np.flatnonzero(data.owners == w)[:images] for w in range(writers)])
    return {
        "x_train": data.train.x[rows],
        "y_train": data.train.y[rows],
        "x_test": data.test.x,
        "y_test": data.test.y,
        "client_ids": data.owners[rows],
        "classes": data.classes,
    }


def mnist_synthetic() -> dict[str, Any]:
    """Return a hundred simulated writers of 220 digits each."""
    return _simulated(WRITERS, _IMAGES)


def mnist_synthetic_medium() -> dict[str, Any]:
    """Return a hundred simulated writers of 40 digits each."""
    return _simulated(WRITERS, _MEDIUM_IMAGES)


def mnist_synthetic_small() -> dict[str, Any]:
    """Return thirty simulated writers of 20 digits each."""
    return _simulated(SMALL_WRITERS, _SMALL_IMAGES)


def _simulated(writers: int, images: int) -> dict[str, Any]:
    """Deal MNIST to simulated writers, who slant and stretch all of their images in their own way.

    The test images are dealt to equally many writers, in turn.
    """
    data = load("mnist")
    order = Seeded(0, "mnist by simulated writers").permutation(len(data.train))
    rows = order[: writers * images]
    owners = np.repeat(np.arange(writers), images)
    return {
        "x_train": _written(data.train.x[rows], owners, writers),
        "y_train": data.train.y[rows],
        "x_test": _written(data.test.x, np.arange(len(data.test)) % writers, writers),
        "y_test": data.test.y,
        "client_ids": owners,
        "classes": data.classes,
    }


def _written(images: Array, owners: Array, writers: int) -> Array:
    """Slant and stretch every image as its simulated writer does."""
    out = np.empty_like(images)
    middle = (np.array(images.shape[2:]) - 1) / 2
    for writer in range(writers):
        drawn = Seeded(0, "writer", writer).generator().uniform(-1, 1, 3)
        height, width = 1 + _SIZE * drawn[:2]
        hand = np.array([[height, 0], [_SLANT * drawn[2], width]])
        offset = middle - hand @ middle
        for row in np.flatnonzero(owners == writer):
            out[row, 0] = ndimage.affine_transform(
                images[row, 0], hand, offset, order=1, cval=float(images.min())
            )
    return out
