"""CIFAR-10's binary files."""

from __future__ import annotations

import numpy as np
import pytest

from data_files import refused, write
from fedveil.data import cifar10, datasets
from fedveil.errors import DataUnavailable

IMAGES = 3


def batch(number):
    """Return three images: the label, then red, green and blue, row by row."""
    labels = np.array([number, 9, 0], np.uint8)[:, None]
    pixels = (np.arange(IMAGES * 3072).reshape(IMAGES, -1) * 7 + number) % 256
    return np.concatenate([labels, pixels.astype(np.uint8)], axis=1)


@pytest.fixture
def files(folder, monkeypatch):
    monkeypatch.setattr(cifar10, "IMAGES", IMAGES)
    names = (*cifar10.TRAIN, *cifar10.TEST)
    for number, name in enumerate(names):
        inside = "cifar-10-batches-bin/" if number % 2 else ""
        write(folder / "cifar10" / f"{inside}{name}", batch(number).tobytes())
    return folder / "cifar10"


def test_the_official_layout_is_read(files):
    data = datasets.load("cifar10")
    assert data.train.x.shape == (15, 3, 32, 32)
    assert data.train.y.tolist() == [0, 9, 0, 1, 9, 0, 2, 9, 0, 3, 9, 0, 4, 9, 0]
    assert data.test.y.tolist() == [5, 9, 0]
    green = batch(2)[1, 1 + 1024 : 1 + 2048].reshape(32, 32)
    np.testing.assert_allclose(data.train.x[7, 1], green / np.float32(255) * 2 - 1, atol=1e-6)
    assert cifar10.here()


def test_a_file_that_is_missing_short_or_wrong_is_told(files):
    last = files / "data_batch_5.bin"
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    with refused("data_batch_5.bin has 9,218 bytes, but 9,219 are needed for 3 images"):
        datasets.load("cifar10")
    last.write_bytes(b"\x0a" + whole[1:])
    with refused("has the label 10, but labels from 0 to 9 are needed"):
        datasets.load("cifar10")
    last.unlink()
    with refused("data_batch_5.bin is not on this machine: unpack cifar", DataUnavailable):
        datasets.load("cifar10")
    assert not cifar10.here()
