"""FEMNIST by writer, from files in LEAF's layout."""

from __future__ import annotations

import json

import numpy as np
import pytest

from data_files import refused, write
from fedveil.data import data_folders, datasets, femnist
from fedveil.data.partition import by_client
from fedveil.errors import DataUnavailable


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


def test_both_parts_come_from_one_folder(folder):
    """A test part elsewhere may have examples of this training part."""
    cache = data_folders.cache_folder()
    place_leaf(cache, "train", leaf(a=writer(1, 0)))
    place_leaf(cache, "test", leaf(a=writer(2, 1)))
    place_leaf(folder, "test", leaf(a=writer(1, 9)))
    assert list(datasets.load("femnist").test.y) == [1, 2]


def test_femnist_elsewhere_says_how_it_is_got(folder):
    with refused("data femnist: train/ is not on this machine: make it with LEAF", DataUnavailable):
        datasets.load("femnist")
    place_leaf(folder, "train", leaf(a=writer(1, 0)))
    with refused("femnist/test holds no writer's examples, but LEAF's .json files are needed"):
        datasets.load("femnist")


def changed(**changes):
    return leaf(a=writer(1, 0)) | changes


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (changed(users=["b"]), "names different writers in users and in user_data"),
        (changed(num_samples=[]), "names different writers in users and in user_data"),
        (
            changed(num_samples=[2]),
            r"writer a: x has shape \(1, 784\) and y \(1,\), but \(2, 784\)",
        ),
        (
            changed(num_samples=[0]),
            r"writer a: x has shape \(1, 784\) and y \(1,\), but \(0, 784\)",
        ),
        (changed(user_data={"a": {"x": [[0.0] * 783], "y": [1]}}), "x has shape"),
        (
            changed(num_samples=[2], user_data={"a": {"x": [[0], [0, 0]], "y": [1, 1]}}),
            "writer a: x is not rows of 784 numbers",
        ),
        (changed(user_data={"a": {"x": [[2.0] * 784], "y": [1]}}), "pixels outside"),
        (changed(user_data={"a": {"x": [[0.0] * 783 + [-0.1]], "y": [1]}}), "pixels outside"),
        (changed(user_data={"a": {"x": [[float("nan")] * 784], "y": [1]}}), "pixels outside"),
        (changed(user_data={"a": {"x": [[0.0] * 784], "y": [62]}}), r"label 62 is outside \[0, 62"),
        (changed(user_data={"a": {"x": [[0.0] * 784], "y": [0.5]}}), "y_train holds 0.5 at exam"),
        (changed(user_data={"a": {"x": [[0.0] * 784]}}), "is not in LEAF's layout: KeyError"),
        (changed(user_data=[]), "names different writers"),
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
    with refused("part_1.json holds the writer a, who is already in an earlier file"):
        datasets.load("femnist")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe{}"])
def test_what_is_not_json_is_told(folder, content):
    write(folder / "femnist" / "train" / "a.json", content)
    with refused("a.json is not JSON"):
        datasets.load("femnist")


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 200_000,
        b'{"users": ' * 100_000,
        json.dumps(
            {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[10**400]], "y": [1]}}}
        ).encode(),
        b'{"users": [1' + b"0" * 5_000 + b"]}",
    ],
)
def test_json_that_nests_too_deeply_is_told(tmp_path, content):
    with refused("file.json is not "):
        femnist._read_file(write(tmp_path / "file.json", content))
