"""Every error survives being sent between processes."""

from __future__ import annotations

import ast
import pickle
import re
import tomllib
from collections.abc import Iterator

import pytest

from fedveil import errors
from folders import ROOT


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidValue("x"),
        errors.JobError(["one", "two"]),
        errors.MissingExtra("torch", "torch", "training"),
        errors.ReportRejected(3, "wrong round"),
        errors.RoundVoid("share", 3, 5),
        errors.WorkerDied("worker 0 exited"),
    ],
)
def test_pickled_and_back(error: errors.FedveilError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


#: Packages that another one brings along.
BROUGHT_BY = {"tokenizers": "transformers"}


def extras() -> dict[str, set[str]]:
    """Return the packages of each extra, in small letters, with those of the extras it names."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found: dict[str, set[str]] = {}
    for extra, needs in told["optional-dependencies"].items():
        found[extra] = {re.split("[<>=;]", need)[0].strip().lower() for need in needs}
    for packages in found.values():
        for name in [name for name in packages if name.startswith("fedveil[")]:
            for other in name.removeprefix("fedveil[").rstrip("]").split(","):
                packages |= found[other]
    return found


def told_extras() -> Iterator[tuple[str, str, str]]:
    """Yield the file, package and extra of each `MissingExtra` in the code."""
    for path in sorted((ROOT / "src" / "fedveil").rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "MissingExtra(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "MissingExtra":
                package, extra, *_ = (getattr(value, "value", None) for value in node.args)
                if isinstance(package, str) and isinstance(extra, str):
                    yield path.name, package.lower(), extra


def test_the_extra_that_an_error_names_brings_the_missing_package() -> None:
    brought, told = extras(), list(told_extras())
    assert len(told) > 15
    for file, package, extra in told:
        needed = {package, BROUGHT_BY.get(package, package)}
        assert needed & brought[extra], f"{file}: {extra} does not bring {package}"
