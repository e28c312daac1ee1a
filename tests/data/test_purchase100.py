"""Purchase-100 in each of its layouts, and its stand-in."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from data_files import npz, refused, write
from fedveil.data import datasets, purchase100
from fedveil.data.examples import holdout
from fedveil.errors import DataUnavailable
from hostile_files import bounded
from statistical_checks import ERROR_RATE

BITS = np.arange(300 * 600).reshape(300, 600) % 7 % 2
SHOPPERS = np.arange(300) % 100


def lines(labels, features):
    return "".join(
        f"{label},{','.join(map(str, row))}\n" for label, row in zip(labels, features, strict=True)
    ).encode()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("dataset_purchase", lines(SHOPPERS + 1, BITS)),
        ("purchase100.npz", npz(features=BITS, labels=SHOPPERS)),
        ("purchase100.npz", npz(features=BITS.astype(np.float64), labels=SHOPPERS + 1.0)),
        ("purchase100.npz", npz(features=BITS.astype(bool), labels=np.eye(100)[SHOPPERS])),
    ],
    ids=["lines", "npz from 0", "npz from 1", "npz one-hot"],
)
def test_purchase100_in_each_of_its_layouts(folder, file, content):
    write(folder / "purchase" / file, content)
    data = datasets.load("purchase100")
    train, test = holdout("purchase100", SHOPPERS)
    assert data.classes == 100
    assert np.array_equal(data.train.x, BITS[train])
    assert np.array_equal(data.test.x, BITS[test])
    assert np.array_equal(data.train.y, SHOPPERS[train])
    assert np.array_equal(data.test.y, SHOPPERS[test])


def test_purchase100_elsewhere_says_how_it_is_got(folder):
    with refused(
        "neither dataset_purchase nor purchase100.npz is on this machine: place .* "
        "purchase100-synthetic has the same shape and needs no file",
        DataUnavailable,
    ):
        datasets.load("purchase100")


@pytest.mark.parametrize(
    ("labels", "features", "sentence"),
    [
        ([0], BITS[:1], r"holds the label 0, which is outside \[1, 100\]"),
        ([101], BITS[:1], r"holds the label 101, which is outside \[1, 100\]"),
        ([1], BITS[:1] * 2, "holds features other than 0 and 1"),
        ([1], BITS[:1, :599], r"has features of shape \(1, 599\), but \[examples, 600\] is needed"),
        ([], [], r"is needed"),
        ([1, 2], [BITS[0], BITS[0, :9]], "is not lines of a label and 0/1 features"),
        (["x"], BITS[:1], "is not lines of a label and 0/1 features"),
        ([-1], BITS[:1], "is not lines of a label and 0/1 features"),
        ([300], BITS[:1], "is not lines of a label and 0/1 features"),
        ([1.5], BITS[:1], "is not lines of a label and 0/1 features"),
    ],
)
def test_wrong_lines_are_told(folder, labels, features, sentence):
    write(folder / "purchase" / "dataset_purchase", lines(labels, features))
    with refused(f"dataset_purchase {sentence}" if labels else sentence):
        datasets.load("purchase100")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (npz(features=BITS, labels=SHOPPERS[1:]), r"has labels of shape \(299,\) and features of"),
        (npz(features=BITS[0], labels=SHOPPERS[:1]), "has labels of shape"),
        (npz(features=BITS[:, :9], labels=SHOPPERS), r"features of shape \(300, 9\)"),
        (npz(features=BITS + 0.5, labels=SHOPPERS), "holds features other than 0 and 1"),
        (npz(features=BITS, labels=SHOPPERS - 1), r"holds the label -1, which is outside \[0, 99"),
        (npz(features=BITS, labels=SHOPPERS + 2), r"holds the label 100, which is outside \[0, "),
        (npz(features=BITS, labels=(SHOPPERS + 1) % 101 * 1.5), "labels that are not whole"),
        (npz(features=BITS, labels=SHOPPERS * np.nan), "labels that are not whole"),
        (npz(features=BITS, labels=SHOPPERS.astype(str)), "labels that are not whole"),
        (npz(features=BITS, labels=np.ones((300, 100))), "rows of labels that are not one-hot"),
        (npz(features=BITS, labels=np.eye(100)[SHOPPERS] * 2), "that are not one-hot"),
        (
            npz(features=BITS, labels=(np.eye(100) + np.eye(100)[::-1])[SHOPPERS] / 2),
            "that are not one-hot",
        ),
        (npz(features=BITS[:0], labels=SHOPPERS[:0]), r"features of shape \(0, 600\)"),
    ],
)
def test_a_wrong_archive_is_told(folder, content, sentence):
    write(folder / "purchase" / "purchase100.npz", content)
    with refused(f"purchase100.npz .*{sentence}|purchase100.npz {sentence}"):
        datasets.load("purchase100")


@pytest.fixture(scope="module")
def synthetic():
    return purchase100.synthesize(40_000)


def test_the_synthetic_set_has_the_genuine_shape(synthetic):
    assert purchase100.EXAMPLES == 197_324
    assert synthetic.name == "purchase100-synthetic"
    assert synthetic.example_shape == (600,)
    assert synthetic.classes == 100
    assert set(np.unique(synthetic.train.x)) == {0, 1}
    assert len(synthetic.train) + len(synthetic.test) == 40_000


def test_the_synthetic_set_is_always_the_same(synthetic):
    again = purchase100.synthesize(40_000)
    assert np.array_equal(again.train.x, synthetic.train.x)
    assert np.array_equal(again.test.y, synthetic.test.y)


def test_the_synthetic_set_has_the_stated_law(synthetic):
    """Profiles by majority of some 320 examples each, which a flip rate of 0.3 cannot mislead."""
    train, test = synthetic.train, synthetic.test
    counts = np.bincount(np.concatenate([train.y, test.y]), minlength=100)
    assert stats.chisquare(counts).pvalue > ERROR_RATE
    profiles = np.stack([train.x[train.y == label].mean(0) > 0.5 for label in range(100)])
    strays = int((test.x != profiles[test.y]).sum())
    assert stats.binomtest(strays, test.x.size, 0.3).pvalue > ERROR_RATE
    common = profiles.mean(0) > 0.5
    own = int((profiles != common).sum())  # redrawn with 0.1, and then different with 0.5
    assert stats.binomtest(own, profiles.size, 0.05).pvalue > ERROR_RATE
    assert stats.binomtest(int(common.sum()), 600, 0.5).pvalue > ERROR_RATE


def test_a_line_without_an_end_is_refused(tmp_path):
    """Play a file of gigabytes without a line end, which takes no room on the disk."""
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 31)
    with (
        bounded(),
        refused(r"lines of a label and 0/1 features: line 1 has more than 16,384 chara"),
    ):
        purchase100._read_text(tmp_path / "file")
