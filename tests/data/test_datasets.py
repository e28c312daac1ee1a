"""Which data sets there are, and what the page says of them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from data_files import TINY, new_module, write
from fedveil.data import data_folders, datasets
from fedveil.federated.blocks import DATASETS
from folders import DOCS


def test_what_is_available_is_listed(folder):
    listed = {line.name: line for line in datasets.available()}
    assert sorted(listed) == sorted(DATASETS)
    assert {name for name, line in listed.items() if line.here()} == {
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
    here = {line.name for line in datasets.available() if line.here()}
    assert here == set(DATASETS) - {"mnist", "cifar10", "femnist", "shakespeare"}
    write(data_folders.cache_folder() / "femnist" / "test" / "a.json", b"")
    assert "femnist" in {line.name for line in datasets.available() if line.here()}


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
    name = new_module()
    (tmp_path / f"{name}.py").write_text(example)
    data = datasets.load(f"{name}:load")
    assert (len(data.train), len(data.test)) == (80, 20)
    assert (data.owners is None) == ("client_ids" not in example)


def test_the_page_names_every_set():
    rows = re.findall(
        r"^\| `([\w-]+)` \| ([\dx]+)(?: \w+)? \| (\d+)(?: \w+)? \|", PAGE, re.MULTILINE
    )
    listed = datasets.available()
    assert rows == [
        (line.name, "x".join(map(str, line.shape)), str(line.classes)) for line in listed
    ]
