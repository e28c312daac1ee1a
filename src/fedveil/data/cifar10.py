"""CIFAR-10 from its official binary files: 50,000 + 10,000 colour images of 32 x 32, ten classes.

    file := (label red green blue)*     10,000 images; a label is a byte, a colour 1,024 bytes

The official Python version of the files, a pickle, is not read, because a pickle can run code.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.untrusted import MOST_DATA_BYTES, read_bytes
from fedveil.data.data_folders import find, located, reading
from fedveil.data.examples import Dataset, centred, make_dataset
from fedveil.errors import DataInvalid, DataUnavailable

CLASSES = 10
SHAPE = (3, 32, 32)
FOLDER = "cifar10"
TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST = ("test_batch.bin",)
HOW = (
    f"unpack cifar-10-binary.tar.gz (www.cs.toronto.edu/~kriz/cifar.html) in $FEDVEIL_DATA/{FOLDER}"
)
#: The folder inside the archive.
_INSIDE = "cifar-10-batches-bin"
IMAGES = 10_000


def path_of(name: str) -> Path | None:
    return find(FOLDER, f"{_INSIDE}/{name}", name)


def here() -> bool:
    return all(path_of(name) is not None for name in (*TRAIN, *TEST))


def read() -> Dataset:
    return make_dataset("cifar10", _joined(TRAIN), _joined(TEST), classes=CLASSES)


def _joined(names: tuple[str, ...]) -> tuple[Array, Array]:
    parts = [_batch(name) for name in names]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return centred(pixels.astype(np.float32) / 255), labels


def _batch(name: str) -> tuple[Array, Array]:
    path = path_of(name)
    if path is None:
        raise DataUnavailable(f"data cifar10: {name} is not on this machine: {located(HOW)}")
    with reading(path):
        content = read_bytes(path, MOST_DATA_BYTES)
    size = IMAGES * (1 + math.prod(SHAPE))
    if len(content) != size:
        raise DataInvalid(
            f"{path} has {len(content):,} bytes, but {size:,} are needed for {IMAGES:,} images"
        )
    rows = np.frombuffer(content, np.uint8).reshape(IMAGES, -1)
    labels = rows[:, 0]
    if labels.max() >= CLASSES:
        raise DataInvalid(
            f"{path} has the label {labels.max()}, but labels from 0 to {CLASSES - 1} are needed"
        )
    return rows[:, 1:].reshape(-1, *SHAPE), labels
