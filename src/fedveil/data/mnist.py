"""MNIST and Fashion-MNIST: 60,000 + 10,000 images of 28 x 28, ten classes.

The labels of QMNIST name the writer of every MNIST image: 539 people in training, and 297 others in
the test part. Source: C. Yadav and L. Bottou, Cold Case: The Lost MNIST Digits, 2019.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Array
from fedveil.data.data_folders import located
from fedveil.data.examples import Dataset, centred, make_dataset
from fedveil.data.idx import IdxFile, IdxSet, read_idx
from fedveil.errors import DataUnavailable

CLASSES = 10
SHAPE = (1, 28, 28)

#: The four files of each set, and their shapes.
_FILES = (
    ("train-images-idx3-ubyte", (60_000, 28, 28)),
    ("train-labels-idx1-ubyte", (60_000,)),
    ("t10k-images-idx3-ubyte", (10_000, 28, 28)),
    ("t10k-labels-idx1-ubyte", (10_000,)),
)


def _published(name: str, md5s: tuple[str, ...], sizes: tuple[int, ...], *mirrors: str) -> IdxSet:
    parts = zip(_FILES, md5s, sizes, strict=True)
    files = tuple(IdxFile(file, shape, md5, size) for (file, shape), md5, size in parts)
    return IdxSet(name, files, mirrors)


MNIST = _published(
    "mnist",
    (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    (9_912_422, 28_881, 1_648_877, 4_542),
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION_MNIST = _published(
    "fashion_mnist",
    (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    (26_421_880, 29_515, 4_422_102, 5_148),
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
)
#: QMNIST's labels. In both files, row i describes image i of MNIST. The test file has further rows.
WRITERS = IdxSet(
    "mnist",
    (
        IdxFile(
            "qmnist-train-labels-idx2-int",
            (60_000, 8),
            "1d43300e7f41ddcbf7fd006cbe865af9",
            463_024,
            number_bytes=4,
        ),
        IdxFile(
            "qmnist-test-labels-idx2-int",
            (60_000, 8),
            "5e00709fb0090091f3afc51d204ad83c",
            526_800,
            number_bytes=4,
        ),
    ),
    ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
)
#: The column of the writer's number.
_WRITER = 2


def read(source: IdxSet, writers: IdxSet | None = None) -> Dataset:
    """Return the data set `source`, from verified files on this machine.

    If `writers` is given, each image is owned by its writer.
    """
    train_images, train_labels, test_images, test_labels = _arrays(source)
    owners = None if writers is None else _arrays(writers)[0][: len(train_labels), _WRITER]
    return make_dataset(
        source.name,
        (_scaled(train_images), train_labels),
        (_scaled(test_images), test_labels),
        classes=CLASSES,
        owners=owners,
    )


def _arrays(source: IdxSet) -> list[Array]:
    arrays = []
    for file in source.files:
        path = source.path(file)
        if path is None:
            raise DataUnavailable(
                f"data {source.name}: {file.name} is not on this machine: {located(how(source))}"
            )
        arrays.append(read_idx(path, file))
    return arrays


def writers_are_here() -> bool:
    """Return True if the files of MNIST and of its writers are on this machine."""
    return not MNIST.missing() and not WRITERS.missing()


def how(source: IdxSet) -> str:
    return (
        f"`fedveil data fetch {source.name}`, or place its IDX files in $FEDVEIL_DATA/{source.name}"
    )


def _scaled(images: np.ndarray) -> np.ndarray:
    return centred(images[:, None].astype(np.float32) / 255)
