"""The digits inside scikit-learn, enlarged."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest

from data_files import refused
from fedveil.data import datasets, digits
from fedveil.errors import MissingExtra


def test_digits_are_the_scans_enlarged():
    data = datasets.load("digits")
    assert data.name == "digits"
    assert data.classes == 10
    assert data.owners is None
    assert data.example_shape == (1, 28, 28)
    assert data.train.x.dtype == np.float32
    assert data.train.y.dtype == np.int64
    assert len(data.train) + len(data.test) == 1797
    assert (data.train.x.min(), data.train.x.max()) == (-1, 1)
    apart = datasets.load("digits", apart=True)
    assert apart.train.usable.tolist() == [True] * len(data.train)
    assert data.train.usable is apart.test.usable is None
    for part in (data.train, data.test):
        shares = np.bincount(part.y, minlength=10) / len(part)
        assert np.abs(shares - 0.1).max() < 0.005


def test_digits_are_the_same_bytes_everywhere():
    data = datasets.load("digits")
    found = hashlib.md5(data.train.x.tobytes() + data.train.y.tobytes() + data.test.y.tobytes())
    assert found.hexdigest() == "f59e22952744c440289df72b7ee27885"


def test_enlarging_agrees_with_torch():
    torch = pytest.importorskip("torch")
    images = np.arange(3 * 8 * 8, dtype=np.float64).reshape(3, 8, 8) ** 2 % 17
    for side in (28, 8, 5):
        theirs = torch.nn.functional.interpolate(
            torch.from_numpy(images)[:, None], size=(side, side), mode="bilinear"
        )
        np.testing.assert_allclose(digits.enlarged(images, side), theirs[:, 0], atol=1e-12)


def test_digits_are_read_without_an_import_of_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # an import would fail
    found = digits._rows()
    monkeypatch.undo()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)  # as if the file had moved
    np.testing.assert_array_equal(digits._rows(), found)


def test_who_writes_into_the_digits_changes_nobody_elses():
    first, second = datasets.load("digits"), datasets.load("digits")
    for part in (first.train, first.test):
        part.x[:], part.y[:] = 0, 1
    third = datasets.load("digits")
    for ours, theirs in ((second.train, third.train), (second.test, third.test)):
        assert ours.x.any()
        assert ours.y.any()
        np.testing.assert_array_equal(ours.x, theirs.x)
        np.testing.assert_array_equal(ours.y, theirs.y)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    digits._scans.cache_clear()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with refused(
        r"digits needs the package scikit-learn: pip install 'fedveil\[torch\]'", MissingExtra
    ):
        datasets.load("digits")
