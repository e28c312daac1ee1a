"""Each data set as its source has it, and every wrong thing told in one sentence."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedveil.data import data_folders, datasets, digits, mnist, purchase100
from fedveil.data.examples import holdout, make_dataset, owner_codes
from fedveil.data.idx import IdxFile, IdxSet, parse_idx, read_idx
from fedveil.data.partition import by_client
from fedveil.errors import DataInvalid, DataUnavailable, MissingExtra
from folders import DOCS

ERROR_RATE = 1e-6
GENUINE = Path(os.environ.get("FEDVEIL_DATA", "/nowhere"))


@contextmanager
def refused(sentence, error=DataInvalid):
    """Expect one sentence that matches."""
    with pytest.raises(error, match=sentence) as caught:
        yield
    assert "\n" not in str(caught.value)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """FEDVEIL_DATA, an empty folder; the cache is another, which is not there yet."""
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# --- digits ---


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


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with refused(
        r"digits needs the package scikit-learn: pip install 'fedveil\[torch\]'", MissingExtra
    ):
        datasets.load("digits")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80))
def test_holdout_takes_a_fifth_of_each_class(labels):
    labels = np.array(labels)
    train, test = holdout("any", labels)
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in set(labels):
        count = (labels == label).sum()
        assert (labels[test] == label).sum() == int(count / 5 + 0.5)


def test_holdout_depends_on_the_name_and_is_no_fixed_end_of_the_file():
    labels = np.zeros(100, np.int64)
    one, other = holdout("one", labels)[1], holdout("other", labels)[1]
    assert list(one) == list(holdout("one", labels)[1])
    assert list(one) != list(other)
    assert set(one) not in (set(range(20)), set(range(80, 100)))


# --- IDX ---


def idx(array):
    header = bytes((0, 0, 8, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


TINY = {
    "train-images-idx3-ubyte": np.arange(3 * 784).reshape(3, 28, 28) % 256,
    "train-labels-idx1-ubyte": np.array([3, 1, 9]),
    "t10k-images-idx3-ubyte": np.arange(2 * 784).reshape(2, 28, 28) % 251,
    "t10k-labels-idx1-ubyte": np.array([0, 1]),
}
TINY_SET = IdxSet(
    "tiny",
    tuple(
        IdxFile(name, array.shape, hashlib.md5(idx(array)).hexdigest(), 0)
        for name, array in TINY.items()
    ),
    (),
)


def place_tiny(folder):
    for number, (name, array) in enumerate(TINY.items()):
        if number % 2:
            write(folder / "tiny" / name, idx(array))
        else:
            write(folder / "tiny" / f"{name}.gz", gzip.compress(idx(array)))


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


def test_the_first_bytes_tell_what_is_compressed(folder):
    name, array = "train-labels-idx1-ubyte", TINY["train-labels-idx1-ubyte"]
    file = TINY_SET.files[1]
    for path, content in (
        (folder / f"{name}.gz", idx(array)),
        (folder / name, gzip.compress(idx(array))),
    ):
        assert list(read_idx(write(path, content), file)) == [3, 1, 9]


def test_the_folder_comes_before_the_cache(folder):
    place_tiny(folder)
    place_tiny(data_folders.cache_folder())
    assert TINY_SET.path(TINY_SET.files[0]).is_relative_to(folder)
    (folder / "tiny" / "train-images-idx3-ubyte.gz").unlink()
    assert TINY_SET.path(TINY_SET.files[0]).is_relative_to(data_folders.cache_folder())
    assert len(mnist.read(TINY_SET).train) == 3


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


GOOD = idx(TINY["train-labels-idx1-ubyte"])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (GOOD[:-1] + b"\x08", "is not the published train-labels-idx1-ubyte: the MD5 of its cont"),
        (GOOD + b"\x00", "is not the published"),
        (b"", "is not the published"),
        (gzip.compress(GOOD[:-1], mtime=0), "is not the published"),
        (gzip.compress(GOOD, mtime=0)[:-9], "is a damaged gzip file"),
        (gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), "is a damaged gzip file"),
        (b"\x1f\x8b" + bytes(40), "is a damaged gzip file"),
    ],
)
def test_what_is_not_the_published_file_is_refused(tmp_path, content, sentence):
    path = write(tmp_path / "file", content)
    with refused(f"{path} {sentence}"):
        read_idx(path, TINY_SET.files[1])


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with refused("file cannot be read: Is a directory", DataUnavailable):
        (tmp_path / "file").mkdir()
        read_idx(tmp_path / "file", TINY_SET.files[1])


@given(st.binary(max_size=40))
def test_any_bytes_are_an_array_or_refused(content):
    try:
        array = parse_idx(content, "bytes")
    except DataInvalid:
        return
    assert idx(array) == content


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "bytes is not an IDX file of unsigned bytes"),
        (b"\x00\x00\x08", "bytes is not an IDX file of unsigned bytes"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x01", "bytes ends inside its IDX header"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x02\x07", "bytes holds 1 bytes of data, its IDX header a"),
    ],
)
def test_a_wrong_idx_header_is_told(content, sentence):
    with refused(sentence):
        parse_idx(content, "bytes")


@pytest.mark.skipif(not (GENUINE / "mnist").exists(), reason="FEDVEIL_DATA has no mnist")
def test_the_genuine_mnist():
    data = datasets.load("mnist")
    assert data.train.x.shape == (60_000, 1, 28, 28)
    assert len(data.test) == 10_000
    assert list(np.bincount(data.test.y)) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (data.train.x.mean() + 1) / 2 == pytest.approx(0.1307, abs=5e-5)  # as everybody knows it
    assert data.train.x.std() / 2 == pytest.approx(0.3081, abs=5e-5)


# --- FEMNIST ---


def writer(count, seed):
    return {
        "x": [[((seed + i) * j % 256) / 255 for j in range(784)] for i in range(count)],
        "y": [(seed + i) % 62 for i in range(count)],
    }


def leaf(**writers):
    return {
        "users": list(writers),
        "num_samples": [len(data["y"]) for data in writers.values()],
        "user_data": writers,
    }


def place_leaf(folder, part, *documents):
    for number, document in enumerate(documents):
        write(folder / "femnist" / part / f"part_{number}.json", json.dumps(document).encode())


def test_femnist_is_by_writer(folder):
    place_leaf(folder, "train", leaf(f02=writer(2, 5), f01=writer(3, 7)), leaf(f00=writer(1, 60)))
    place_leaf(folder, "test", leaf(f01=writer(1, 1), f09=writer(2, 2)))
    data = datasets.load("femnist")
    assert data.example_shape == (1, 28, 28)
    assert data.classes == 62
    assert list(data.owners) == [0, 1, 1, 1, 2, 2]
    assert list(data.train.y) == [60, 7, 8, 9, 5, 6]
    assert list(data.test.y) == [1, 2, 3]
    pixels = np.array(writer(3, 7)["x"][0], np.float32)
    assert np.array_equal(data.train.x[1].reshape(-1), 2 * pixels - 1)
    assert list(by_client(data.owners).sizes) == [1, 3, 2]


def test_a_writer_without_examples_owns_nothing(folder):
    place_leaf(folder, "train", leaf(a=writer(1, 0), b=writer(0, 0), c=writer(1, 1)))
    place_leaf(folder, "test", leaf(a=writer(1, 1)))
    assert list(datasets.load("femnist").owners) == [0, 1]


def test_femnist_elsewhere_says_how_it_is_got(folder):
    with refused("data femnist: train/ is not on this machine: make it with LEAF", DataUnavailable):
        datasets.load("femnist")
    place_leaf(folder, "train", leaf(a=writer(1, 0)))
    with refused("femnist/test holds no writer's examples, LEAF's .json files are needed"):
        datasets.load("femnist")


def changed(**changes):
    return leaf(a=writer(1, 0)) | changes


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (changed(users=["b"]), "names other writers in users than in user_data"),
        (changed(num_samples=[]), "names other writers in users than in user_data"),
        (changed(num_samples=[2]), r"writer a: x has shape \(1, 784\) and y \(1,\), \(2, 784\)"),
        (changed(num_samples=[0]), r"writer a: x has shape \(1, 784\) and y \(1,\), \(0, 784\)"),
        (changed(user_data={"a": {"x": [[0.0] * 783], "y": [1]}}), "x has shape"),
        (
            changed(num_samples=[2], user_data={"a": {"x": [[0], [0, 0]], "y": [1, 1]}}),
            "writer a: x is not rows of 784 numbers",
        ),
        (changed(user_data={"a": {"x": [[2.0] * 784], "y": [1]}}), "pixels outside"),
        (changed(user_data={"a": {"x": [[float("nan")] * 784], "y": [1]}}), "pixels outside"),
        (changed(user_data={"a": {"x": [[0.0] * 784], "y": [62]}}), r"label 62 is outside \[0, 62"),
        (changed(user_data={"a": {"x": [[0.0] * 784], "y": [0.5]}}), "y_train holds 0.5 at exam"),
        (changed(user_data={"a": {"x": [[0.0] * 784]}}), "is not in LEAF's layout: KeyError"),
        (changed(user_data=[]), "names other writers"),
        (changed(users=7), "is not in LEAF's layout"),
        ([], "is not in LEAF's layout"),
        ({}, "is not in LEAF's layout: KeyError"),
    ],
)
def test_what_is_not_leafs_layout_is_told(folder, document, sentence):
    place_leaf(folder, "train", document)
    place_leaf(folder, "test", leaf(a=writer(1, 0)))
    with refused(sentence):
        datasets.load("femnist")


def test_a_writer_in_two_files_is_told(folder):
    place_leaf(folder, "train", leaf(a=writer(1, 0)), leaf(a=writer(1, 1)))
    place_leaf(folder, "test", leaf(a=writer(1, 0)))
    with refused("part_1.json holds the writer a, whom an earlier file held"):
        datasets.load("femnist")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe{}"])
def test_what_is_not_json_is_told(folder, content):
    write(folder / "femnist" / "train" / "a.json", content)
    with refused("a.json is not JSON"):
        datasets.load("femnist")


# --- Purchase-100 and Location-30 ---

BITS = np.arange(300 * 600).reshape(300, 600) % 7 % 2
SHOPPERS = np.arange(300) % 100


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


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
        ([1], BITS[:1, :599], r"has features of shape \(1, 599\), \[examples, 600\] is needed"),
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
        (b"", "is not an .npz archive of plain arrays"),
        (b"PK\x03\x04 not really", "is not an .npz archive of plain arrays"),
        (npz(features=BITS, labels=SHOPPERS)[:-300], "is not an .npz archive of plain arrays"),
        (npz(x=BITS), "holds x, an array features is needed"),
        (npz(features=BITS), "holds features, an array labels is needed"),
        (npz(features=BITS, labels=np.array([{}] * 300)), "is not an .npz archive of plain arr"),
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
    ],
)
def test_a_wrong_archive_is_told(folder, content, sentence):
    write(folder / "purchase" / "purchase100.npz", content)
    with refused(f"purchase100.npz .*{sentence}|purchase100.npz {sentence}"):
        datasets.load("purchase100")


def test_an_array_file_is_no_archive(folder):
    stream = io.BytesIO()
    np.save(stream, BITS)
    write(folder / "purchase" / "purchase100.npz", stream.getvalue())
    with refused("purchase100.npz is one array, an .npz archive is needed"):
        datasets.load("purchase100")


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
        ({"n_features": np.int64(447)}, "has n_features = 447, 446 is needed"),
        ({"n_features": np.array([446])}, r"has n_features = \[446\], 446 is needed"),
        ({"features": PLACES.astype(np.uint8)}, r"shape \(90, 446\), uint8 and \[examples, 56\]"),
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


# --- the user's own ---

modules = itertools.count()

ARRAYS = """
import numpy as np
x, y = np.arange(12.).reshape(4, 3), np.array([0, 1, 2, 0])
x2, y2 = np.ones((2, 3)), np.array([1, 1])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module with a function `make` to the current folder and load what it returns."""
    monkeypatch.chdir(tmp_path)

    def load(body, head=ARRAYS):
        module = f"own_data_{next(modules)}"
        body = textwrap.indent(textwrap.dedent(body), "    ")
        (tmp_path / f"{module}.py").write_text(f"{head}\ndef make():\n{body}\n")
        before = list(sys.path)
        try:
            return datasets.load(f"{module}:make")
        finally:
            assert sys.path == before
            sys.modules.pop(module, None)

    return load


def test_four_arrays(own):
    data = own("return x, y, x2, y2")
    assert data.name.endswith(":make")
    assert data.train.x.dtype == np.float32
    assert data.train.y.dtype == np.int64
    assert data.train.x.tolist() == np.arange(12.0).reshape(4, 3).tolist()
    assert data.classes == 3
    assert data.owners is None


def test_lists_and_whole_floats_are_arrays_too(own):
    data = own("return x.tolist(), y.astype(float), [[1, 2, 3]], [True]")
    assert data.train.y.tolist() == [0, 1, 2, 0]
    assert data.test.y.tolist() == [1]


def test_a_mapping_with_owners_and_classes(own):
    data = own(
        "return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, client_ids=['b', 'a', 'b', 'c'],"
        " classes=5)"
    )
    assert data.classes == 5
    assert data.owners.tolist() == [1, 0, 1, 2]
    assert data.owners.dtype == np.int64


TORCH = """
import torch
class Numbers(torch.utils.data.Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return torch.full((2, 2), float(i), requires_grad=True), i % 2
"""


def test_torch_datasets_are_stacked(own):
    pytest.importorskip("torch")
    data = own("return Numbers(4), Numbers(2)", TORCH)
    assert data.train.x.shape == (4, 2, 2)
    assert data.train.x[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert data.test.y.tolist() == [0, 1]
    assert data.owners is None


def test_torch_datasets_with_owners(own):
    pytest.importorskip("torch")
    data = own("return Numbers(4), Numbers(2), torch.tensor([7, 7, 3, 7])", TORCH)
    assert data.owners.tolist() == [1, 1, 0, 1]


def test_torch_tensors_are_arrays(own):
    pytest.importorskip("torch")
    data = own(
        "t = torch.arange(6.).reshape(3, 2)\nreturn t, torch.tensor([0, 1, 1]), t, torch.ones(3)",
        TORCH,
    )
    assert data.train.x.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_package_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "own_package" / "__init__.py", b"")
    write(tmp_path / "own_package" / "parts.py", b"SIZE = 3\n")
    write(
        tmp_path / "own_package" / "data.py",
        b"def make():\n"
        b"    from own_package.parts import SIZE\n"  # at the call, not at the import
        b"    return [[0.0]] * SIZE, [0, 1, 0], [[0.0]], [0]\n",
    )
    assert len(datasets.load("own_package.data:make").train) == 3


def test_the_current_folder_comes_first(tmp_path, monkeypatch):
    name = f"own_data_{next(modules)}"
    for folder, size in (("installed", 2), ("current", 3)):
        code = f"def make(): return [[0.0]] * {size}, list(range({size})), [[0.0]], [0]\n"
        write(tmp_path / folder / f"{name}.py", code.encode())
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.chdir(tmp_path / "current")
    assert len(datasets.load(f"{name}:make").train) == 3


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return x, y, x2", "returned an object of type ndarray for train, not a map-"),
        ("return x, y, x2, y2, y", "the function returned a tuple of 5, not four arrays"),
        ("return None", "the function returned an object of type NoneType, not four arrays"),
        (
            "return (x, y), (x2, y2)",
            "the function returned a tuple of 2 for train, not a map-style",
        ),
        (
            "return iter([]), iter([])",
            "returned an object of type list_iterator for train, not a map-style",
        ),
        ("return {'x_train': x}", "the function returned lacks y_train, the keys are x_train, "),
        (
            "return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, clients=y)",
            "holds clients, the keys are",
        ),
        ("raise RuntimeError('no\\n disk')", "the function raised RuntimeError: no disk$"),
        ("raise ValueError", "the function raised ValueError$"),
        ("return x * float('nan'), y, x2, y2", "x_train holds NaN or infinity .* at example 0"),
        ("x2[1, 1] = 1e39; return x, y, x2, y2", "x_test holds NaN or infinity .* at example 1"),
        ("return x[:3], y, x2, y2", "x_train has 3 examples and y_train has 4 labels"),
        ("return x, y, x2, y2[:1]", "x_test has 2 examples and y_test has 1 labels"),
        ("return x, y, x2[:0], y2[:0]", r"x_test has shape \(0, 3\)"),
        ("return x, y, x2, y2[:0]", r"y_test has shape \(0,\)"),
        ("return y, y, x2, y2", r"x_train has shape \(4,\), \[examples, ...\] without a zero"),
        ("return x, y, x2[:, :2], y2", r"x_train has shape \(3,\) and one of x_test \(2,\)"),
        ("return x.astype(str), y, x2, y2", "x_train has dtype <U.*, real numbers are needed"),
        ("return x.astype(complex), y, x2, y2", "x_train has dtype complex128"),
        ("return x.astype(object), y, x2, y2", "x_train has dtype object"),
        ("return x.astype(int) + 2**24, y, x2, y2", r"x_train holds whole numbers beyond 2\^24"),
        ("return -x.astype(int) - 2**24, y, x2, y2", r"x_train holds whole numbers beyond 2\^24"),
        ("return [[1], [1, 2]], y, x2, y2", "x_train is not an array: ValueError"),
        ("return x, y - 1, x2, y2", "y_train holds -1 at example 0, a label is a whole number"),
        ("return x, y + 0.5, x2, y2", "y_train holds 0.5 at example 0, a label is a whole number"),
        ("return x, y * float('nan'), x2, y2", "y_train holds nan at example 0"),
        ("return x, y + float('inf'), x2, y2", "y_train holds inf at example 0"),
        ("return x, y.astype(str), x2, y2", "y_train has dtype <U"),
        ("return x, y[:, None], x2, y2", r"y_train has shape \(4, 1\), \[examples\] is needed"),
        ("return x, y * 0, x2, y2 * 0", "classes = 1, at least 2 are needed"),
        ("return x, y, x2, y2 + 2**40", "y_test holds 1099511627777 at example 0"),
    ],
)
def test_what_a_function_returns_wrongly_is_told(own, body, sentence):
    with refused(f"data own_data_[0-9]+:make: .*({sentence})"):
        own(body)


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ("classes=2", r"the label 2 is outside \[0, 2\), there are 2 classes"),
        ("classes='3'", "classes = '3' is not a whole number"),
        ("classes=True", "classes = True is not a whole number"),
        ("classes=3.0", "classes = 3.0 is not a whole number"),
        ("client_ids=[1, 2, 3]", "client_ids has 3 entries and x_train has 4 examples"),
        ("client_ids=[1, 'a', 2, 3]", "client_ids must be whole numbers alone or strings alone"),
        ("client_ids=[.5, 1, 2, 3]", "client_ids must be whole numbers alone or strings alone"),
        ("client_ids=x", r"client_ids has shape \(4, 3\), \[examples\] is needed"),
        ("client_ids=3", "client_ids is of type int, a list is needed"),
    ],
)
def test_what_a_mapping_adds_wrongly_is_told(own, extra, sentence):
    with refused(f"data own_data_[0-9]+:make: {sentence}"):
        own(f"return dict(x_train=x, y_train=y, x_test=x2, y_test=y2, {extra})")


ITEMS = """
class Items:
    def __init__(self, *items): self.items = items
    def __len__(self): return len(self.items)
    def __getitem__(self, i):
        if isinstance(self.items[i], Exception): raise self.items[i]
        return self.items[i]
good = Items(([1.0], 0), ([2.0], 1))
"""


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            "return good, Items(([1.0], 0), 7)",
            "item 1 of the test Dataset is an object of type int, a pair",
        ),
        ("return good, Items(([1.0], 0, 1))", r"item 0 of the test Dataset is a tuple of 3, a pa"),
        ("return Items(([1.0], 0), ([1.0, 2.0], 0)), good", r"item 1 .* an x of shape \(2,\)"),
        ("return Items(([1.0], [0])), good", r"item 0 .* and a y of shape \(1,\)"),
        ("return Items(OSError('gone')), good", "item 0 of the train Dataset raised OSError: gone"),
        ("return Items(), good", r"x_train has shape \(0,\)"),
        ("return Items((['a'], 0)), good", "x_train has dtype <U1"),
        ("return Items(([[1], [1, 2]], 0)), good", "x of item 0 of the train Dataset is not an ar"),
        ("return good, good, [1]", "client_ids has 1 entries and x_train has 2 examples"),
    ],
)
def test_what_a_dataset_holds_wrongly_is_told(own, body, sentence):
    with refused(f"data own_data_[0-9]+:make: {sentence}"):
        own(body, ITEMS)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mine", "data.name = 'mine' is not one of digits, mnist, .* package.module:function"),
        ("", "data.name = '' is not one of"),
        (":", "data :: package.module:function is needed"),
        ("mine:", "data mine:: package.module:function is needed"),
        (":load", "data :load: package.module:function is needed"),
        ("a.:load", "package.module:function is needed"),
        ("a b:load", "package.module:function is needed"),
        ("a:b:c", "package.module:function is needed"),
        ("no_such:load", "there is no module no_such, neither in the current folder nor install"),
        ("json.no_such:load", "there is no module json.no_such"),
        ("json:no_such", "data json:no_such: the module json has no no_such"),
        ("string:digits", "data string:digits: digits is not a function"),
        ("os:remove", r"data os:remove: the function raised TypeError: .*argument"),
    ],
)
def test_a_name_that_leads_nowhere_is_told(name, sentence):
    with refused(sentence):
        datasets.load(name)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("import no_such_dependency", "raised ModuleNotFoundError: No module named 'no_such_dep"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("def make(:", "raised SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told(tmp_path, monkeypatch, content, sentence):
    monkeypatch.chdir(tmp_path)
    name = f"own_data_{next(modules)}"
    (tmp_path / f"{name}.py").write_text(content)
    with refused(f"data {name}:make: importing {name} {sentence}"):
        datasets.load(f"{name}:make")


# --- checks that all share ---


@given(
    st.one_of(
        st.lists(st.integers(-(10**30), 10**30), max_size=20),
        st.lists(st.text(max_size=2), max_size=20),
    )
)
def test_owners_are_numbered_in_sorted_order(owners):
    codes = owner_codes(owners)
    assert codes.dtype == np.int64
    assert [sorted(set(owners))[code] for code in codes] == owners


def test_values_are_kept_as_they_are():
    values = np.array([[0.1, -300.0], [1e30, 0]], np.float32)
    data = make_dataset("any", (values, [0, 1]), (values, [0, 1]))
    assert np.array_equal(data.train.x, values)


# --- what there is, and where it is looked for ---


def test_what_is_available_is_listed(folder):
    listed = {line.name: line for line in datasets.available()}
    assert tuple(listed) == datasets.NAMES
    assert {name for name, line in listed.items() if line.here} == {
        "digits",
        "purchase100-synthetic",
    }
    assert (listed["femnist"].shape, listed["femnist"].classes) == ((1, 28, 28), 62)
    assert (listed["location30"].shape, listed["location30"].classes) == ((446,), 30)
    assert "fedveil data fetch mnist" in listed["mnist"].how
    assert all(line.origin and line.how for line in listed.values())


def test_what_is_here_is_listed_so(folder):
    for name in TINY:
        write(folder / "fashion_mnist" / name, b"")
    write(folder / "mnist" / "train-images-idx3-ubyte", b"")  # one of four
    write(folder / "purchase" / "dataset_purchase", b"")
    write(folder / "location" / "location30.npz", b"")
    write(data_folders.cache_folder() / "femnist" / "train" / "a.json", b"")
    here = {line.name for line in datasets.available() if line.here}
    assert here == set(datasets.NAMES) - {"mnist", "femnist"}
    write(data_folders.cache_folder() / "femnist" / "test" / "a.json", b"")
    assert "femnist" in {line.name for line in datasets.available() if line.here}


def test_a_variable_that_names_no_folder_is_told(folder, monkeypatch):
    monkeypatch.setenv("FEDVEIL_DATA", str(folder / "elsewhere"))
    with refused("FEDVEIL_DATA = '.*elsewhere' is not a folder", DataUnavailable):
        datasets.load("mnist")


@pytest.mark.parametrize("value", [None, "", "relative/path"])
def test_the_cache_is_in_the_home_folder_unless_a_full_path_is_named(tmp_path, monkeypatch, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert data_folders.cache_folder() == tmp_path / ".cache" / "fedveil"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert data_folders.cache_folder() == tmp_path / "other" / "fedveil"


def test_without_a_home_folder_the_variable_is_asked_for(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with refused("there is no home folder to cache data in: name a folder in F", DataUnavailable):
        data_folders.cache_folder()


def test_an_empty_variable_is_no_folder(folder, monkeypatch):
    monkeypatch.setenv("FEDVEIL_DATA", "")
    assert list(data_folders.folders("mnist")) == [data_folders.cache_folder() / "mnist"]


def test_the_data_floor_imports_neither_torch_nor_scikit_learn():
    code = (
        "import sys, fedveil.data.datasets, fedveil.data.partition\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


PAGE = (DOCS / "data.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_pages_functions_load(tmp_path, monkeypatch, example):
    if "import torch" in example:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    name = f"own_data_{next(modules)}"
    (tmp_path / f"{name}.py").write_text(example)
    data = datasets.load(f"{name}:load")
    assert (len(data.train), len(data.test)) == (80, 20)
    assert (data.owners is None) == ("client_ids" not in example)


def test_the_page_names_every_set():
    rows = re.findall(r"^\| `([\w-]+)` \| ([\dx]+) \| (\d+) \|", PAGE, re.MULTILINE)
    listed = datasets.available()
    assert rows == [
        (line.name, "x".join(map(str, line.shape)), str(line.classes)) for line in listed
    ]
