"""MNIST and its kin from the four files on this machine."""

from __future__ import annotations

import numpy as np
import pytest

from data_files import GENUINE, TINY, TINY_SET, place_tiny, refused
from fedveil.data import datasets, mnist
from fedveil.errors import DataUnavailable


def test_idx_files_are_read_compressed_or_not(folder):
    place_tiny(folder)
    data = mnist.read(TINY_SET)
    assert data.train.x.shape == (3, 1, 28, 28)
    images = TINY["train-images-idx3-ubyte"][:, None].astype(np.uint8)
    pixels = images.astype(np.float32) / np.float32(255)
    assert np.array_equal(data.train.x, 2 * pixels - 1)
    assert list(data.train.y) == [3, 1, 9]
    assert list(data.test.y) == [0, 1]
    assert data.classes == 10


def test_missing_idx_files_say_how_they_are_got(folder):
    place_tiny(folder)
    (folder / "tiny" / "t10k-labels-idx1-ubyte").unlink()
    assert TINY_SET.missing() == [TINY_SET.files[3]]
    with refused(
        "data tiny: t10k-labels-idx1-ubyte is not on this machine: `fedveil data fetch tiny`, "
        "or place its four IDX files",
        DataUnavailable,
    ):
        mnist.read(TINY_SET)


@pytest.mark.skipif(not (GENUINE / "mnist").exists(), reason="FEDVEIL_DATA has no mnist")
def test_the_genuine_mnist():
    data = datasets.load("mnist")
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert len(data.test) == 10_000
    assert list(np.bincount(data.test.y)) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (data.train.x.mean() + 1) / 2 == pytest.approx(0.1307, abs=5e-5)  # as everybody knows it
    assert data.train.x.std() / 2 == pytest.approx(0.3081, abs=5e-5)
