"""MNIST and its kin from the four files on this machine."""

from __future__ import annotations

import numpy as np
import pytest

from data_files import (
    GENUINE,
    TINY,
    TINY_SET,
    TINY_WRITERS,
    TINY_WRITERS_SET,
    idx,
    place_tiny,
    refused,
    write,
)
from fedveil.data import datasets, mnist
from fedveil.engine.assembly import load_data, make_partition
from fedveil.errors import DataInvalid, DataUnavailable
from fedveil.federated.job import Job


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
        "or place its IDX files",
        DataUnavailable,
    ):
        mnist.read(TINY_SET)


@pytest.fixture
def written(folder, monkeypatch):
    """A tiny MNIST and its writers, in place of the published one."""
    place_tiny(folder)
    for name, array in TINY_WRITERS.items():
        write(folder / "tiny" / name, idx(array, 12))
    monkeypatch.setattr(mnist, "MNIST", TINY_SET)
    monkeypatch.setattr(mnist, "WRITERS", TINY_WRITERS_SET)
    return folder


def test_each_writer_is_a_client(written):
    job = Job.load(None, ["data.name=mnist", "data.split=writers"])
    data = load_data(job)
    assert data.owners.tolist() == [1, 0, 1]  # in the order of the writers' numbers
    made = make_partition(job, data)
    assert [made.of(client).tolist() for client in range(2)] == [[1], [0, 2]]
    assert mnist.writers_are_here()
    assert mnist.read(TINY_SET).owners is None  # other splits do not need the file


def test_writers_that_are_missing_or_damaged_are_one_sentence(written):
    job = Job.load(None, ["data.name=mnist", "data.split=writers"])
    file = written / "tiny" / "qmnist-train-labels-idx2-int"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"\7")
    with refused("is not the published qmnist-train-labels-idx2-int: the MD5", DataInvalid):
        load_data(job)
    file.unlink()
    with refused(
        "data tiny: qmnist-train-labels-idx2-int is not on this machine: `fedveil data fetch tiny`",
        DataUnavailable,
    ):
        load_data(job)
    assert not mnist.writers_are_here()
    file.write_bytes(whole)
    assert mnist.writers_are_here()
    (written / "tiny" / "t10k-labels-idx1-ubyte").unlink()
    assert not mnist.writers_are_here()


@pytest.mark.skipif(not (GENUINE / "mnist").exists(), reason="FEDVEIL_DATA has no mnist")
@pytest.mark.skipif(bool(mnist.WRITERS.missing()), reason="FEDVEIL_DATA has no writers")
def test_the_genuine_writers():
    """Nobody wrote for both parts, and the labels beside the writers are those of MNIST."""
    data = datasets.load("mnist", writers=True)
    counts = np.bincount(data.owners)
    assert (len(counts), counts.min(), np.median(counts)) == (539, 19, 116)
    train, test = mnist._arrays(mnist.WRITERS)
    assert np.array_equal(train[:, 0], data.train.y)
    assert np.array_equal(test[:10_000, 0], data.test.y)
    assert not {*train[:, 2]} & {*test[:10_000, 2]}
    assert len({*test[:10_000, 2]}) == 297


@pytest.mark.skipif(not (GENUINE / "mnist").exists(), reason="FEDVEIL_DATA has no mnist")
def test_the_genuine_mnist():
    data = datasets.load("mnist")
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert len(data.test) == 10_000
    assert list(np.bincount(data.test.y)) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (data.train.x.mean() + 1) / 2 == pytest.approx(0.1307, abs=5e-5)  # as everybody knows it
    assert data.train.x.std() / 2 == pytest.approx(0.3081, abs=5e-5)
