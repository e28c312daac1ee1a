"""Location-30, unpacked."""

from __future__ import annotations

import numpy as np
import pytest

from data_files import GENUINE, npz, refused, write
from fedveil.data import datasets
from fedveil.data.examples import holdout
from fedveil.errors import DataUnavailable

PLACES = np.arange(90 * 446).reshape(90, 446) % 5 % 2
VISITORS = np.arange(90) % 30


def packed(**changes):
    arrays = {
        "features": np.packbits(PLACES.astype(np.uint8), axis=1),
        "labels": VISITORS.astype(np.uint8),
        "n_features": np.int64(446),
    }
    return npz(**(arrays | changes))


def test_location30_is_unpacked(folder):
    with refused("location30.npz is not on this machine: place it|place", DataUnavailable):
        datasets.load("location30")
    write(folder / "location" / "location30.npz", packed())
    data = datasets.load("location30")
    train, test = holdout("location30", VISITORS)
    assert data.example_shape == (446,)
    assert data.classes == 30
    assert np.array_equal(data.train.x, PLACES[train])
    assert np.array_equal(data.test.y, VISITORS[test])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_features": np.int64(447)}, "has n_features = 447, but 446 is needed"),
        ({"n_features": np.array([446])}, r"has n_features = \[446\], but 446 is needed"),
        (
            {"features": PLACES.astype(np.uint8)},
            r"shape \(90, 446\), but uint8 and \[examples, 56\]",
        ),
        ({"features": np.zeros((90, 56), np.int64)}, "has features of dtype int64"),
        ({"labels": VISITORS[1:]}, r"has labels of shape \(89,\) and 90 examples"),
        ({"labels": VISITORS + 1}, r"the label 30 is outside \[0, 30\)"),
    ],
)
def test_a_wrong_location30_is_told(folder, changes, sentence):
    write(folder / "location" / "location30.npz", packed(**changes))
    with refused(sentence):
        datasets.load("location30")


@pytest.mark.skipif(not (GENUINE / "location").exists(), reason="FEDVEIL_DATA has no location")
def test_the_genuine_location30():
    data = datasets.load("location30")
    assert len(data.train) + len(data.test) == 5010
    assert set(np.unique(data.train.x)) == {0, 1}
    assert set(data.train.y) == set(data.test.y) == set(range(30))
