"""Folders and modules that the tests of the data sets read from."""

from __future__ import annotations

import sys
import textwrap

import pytest

from data_files import new_module
from fedveil.data import datasets


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """FEDVEIL_DATA, an empty folder; the cache is another, which is not there yet."""
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


ARRAYS = """
import numpy as np
x, y = np.arange(12.).reshape(4, 3), np.array([0, 1, 2, 0])
x2, y2 = np.ones((2, 3)), np.array([1, 1])
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module with a function `make` to the current folder and load what it returns."""
    monkeypatch.chdir(tmp_path)

    def load(body, head=ARRAYS, **options):
        module = new_module()
        body = textwrap.indent(textwrap.dedent(body), "    ")
        (tmp_path / f"{module}.py").write_text(f"{head}\ndef make():\n{body}\n")
        before = list(sys.path)
        try:
            return datasets.load(f"{module}:make", **options)
        finally:
            assert sys.path == before
            sys.modules.pop(module, None)

    return load
