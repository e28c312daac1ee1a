"""A package's names are imported at their first use, and a missing extra is named."""

from __future__ import annotations

import math
import os
import pprint
import subprocess
import sys
from types import ModuleType

import pytest

from fedveil.base.lazy import lazy
from fedveil.errors import MissingExtra


def test_a_name_is_taken_from_its_own_module() -> None:
    find, _ = lazy("os", {"math": ["pi", "tau"], "os.path": ["path"], "pprint": ["pprint"]})
    assert (find("pi"), find("tau")) == (math.pi, math.tau)
    assert find("path") is os.path  # a submodule as a whole
    assert find("pprint") is pprint.pprint  # a function of the module that has its name
    with pytest.raises(AttributeError, match=r"^module 'os' has no attribute 'e'$"):
        find("e")


def test_the_names_of_a_package_are_listed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("own_package")
    package.__all__ = ["b", "c", "a"]
    monkeypatch.setitem(sys.modules, "own_package", package)
    assert lazy("own_package", {"math": ["a"]})[1]() == ["a", "b", "c"]


def test_a_missing_package_is_named_with_the_extra_that_has_it() -> None:
    find, _ = lazy("os", {"math": ["pi"]}, needs=("no_such_package", "some_extra"))
    with pytest.raises(MissingExtra) as missing:
        find("pi")
    needs = "os.pi needs the package no_such_package: pip install 'fedveil[some_extra]' installs it"
    assert str(missing.value) == needs
    with pytest.raises(AttributeError):
        find("e")
    find, _ = lazy("os", {"math": ["pi"]}, needs=("json", "some_extra"))
    assert find("pi") == math.pi


def test_a_listed_package_needs_no_import_of_its_own() -> None:
    code = (
        "import sys, fedveil; assert {'secagg', 'vertical'} <= {*dir(fedveil)}; "
        "print(fedveil.secagg.__name__, fedveil.vertical.__name__, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "fedveil.secagg fedveil.vertical False\n"
