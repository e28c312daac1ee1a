"""The folders that are searched for data files."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import TINY_SET, place_tiny, refused, write
from fedveil.data import data_folders, datasets, mnist
from fedveil.errors import DataUnavailable


def test_the_folder_comes_before_the_cache(folder):
    place_tiny(folder)
    place_tiny(data_folders.cache_folder())
    assert TINY_SET.path(TINY_SET.files[0]).is_relative_to(folder)
    (folder / "tiny" / "train-images-idx3-ubyte.gz").unlink()
    assert TINY_SET.path(TINY_SET.files[0]).is_relative_to(data_folders.cache_folder())
    assert len(mnist.read(TINY_SET).train) == 3


def test_any_form_of_a_file_in_the_folder_comes_before_the_cache(folder):
    """A file of one's own replaces what was downloaded, also if its form is the second choice."""
    own = write(folder / "set" / "plain.txt", b"")
    write(data_folders.cache_folder() / "set" / "packed.npz", b"")
    assert data_folders.find("set", "packed.npz", "plain.txt") == own
    first = write(folder / "set" / "packed.npz", b"")
    assert data_folders.find("set", "packed.npz", "plain.txt") == first


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
    with refused("there is no home folder for the data cache: set F", DataUnavailable):
        data_folders.cache_folder()


def test_the_variable_may_begin_with_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("FEDVEIL_DATA", f"~/{folder.name}")
    assert next(data_folders.folders("mnist")) == folder / "mnist"


def test_an_empty_variable_is_no_folder(folder, monkeypatch):
    monkeypatch.setenv("FEDVEIL_DATA", "")
    assert list(data_folders.folders("mnist")) == [data_folders.cache_folder() / "mnist"]


def test_the_current_folder_is_named_for_a_path_that_depends_on_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, hint in ((Path("none.csv"), True), (tmp_path / "none.csv", False)):
        with pytest.raises(DataUnavailable) as told, data_folders.reading(path):
            path.read_text()
        assert str(told.value).startswith(f"{path} cannot be read: No such file or directory")
        assert str(told.value).endswith(f"from the current folder, {tmp_path}") == hint


@pytest.mark.parametrize("name", ["mnist", "cifar10", "femnist", "location30", "purchase100"])
def test_a_missing_data_set_names_a_folder_that_exists_without_the_variable(
    tmp_path, monkeypatch, name
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDVEIL_DATA", raising=False)
    with pytest.raises(DataUnavailable) as missing:
        datasets.load(name)
    assert f" in {tmp_path}/fedveil/" in str(missing.value)
    assert "FEDVEIL_DATA" not in str(missing.value)
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    with pytest.raises(DataUnavailable, match=r" in \$FEDVEIL_DATA/"):
        datasets.load(name)
