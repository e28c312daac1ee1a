"""A release: its version, its exact requirements, and the content of the sdist."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import pairwise

import pytest
import yaml

from fedveil import __version__
from fedveil.cli.exits import EXTRA_OF
from fedveil.federated.job import Job
from fedveil.starter import DEFAULT_JOB
from folders import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = {"core": [], "node": ["torch", "flower"], "all": ["all"]}
NAME = re.compile(r"[\w.-]+")


def direct(extras: list[str]) -> set[str]:
    """Return the names of the packages that fedveil asks for with these extras."""
    asked, names = list(PROJECT["dependencies"]), set()
    for extra in extras:
        asked += PROJECT["optional-dependencies"][extra]
    for line in asked:
        own = re.fullmatch(r"fedveil\[(.*)\]", line)
        if own:
            names |= direct(own[1].split(","))
        else:
            names.add(NAME.match(line)[0].lower())  # type: ignore[index]
    return names


def locked(name: str) -> dict[str, list[str]]:
    """Return the hashes of each package of a file in requirements/."""
    found: dict[str, list[str]] = {}
    package = ""
    for line in (ROOT / "requirements" / f"{name}.txt").read_text("utf-8").splitlines():
        if "--hash=" in line:
            found[package].append(line.strip(" \\"))
        elif "==" in line:
            package = line.partition("==")[0]
            found.setdefault(package, [])
    return found


@pytest.mark.parametrize("name", EXTRAS)
def test_the_lock_has_every_package_with_its_hashes(name: str) -> None:
    found = locked(name)
    left_out = {"torch"} if name == "node" else set()
    assert direct(EXTRAS[name]) - left_out <= set(found)
    for package, hashes in found.items():
        assert hashes, f"{package} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)


def test_a_node_leaves_pytorch_to_the_index_that_was_chosen() -> None:
    assert not [name for name in locked("node") if name.startswith(("torch", "nvidia", "triton"))]


@pytest.mark.parametrize("name", EXTRAS)
def test_the_lock_names_no_index(name: str) -> None:
    assert "://" not in (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")


def test_the_core_has_no_package_that_only_an_extra_needs() -> None:
    assert not {"torch", "numba", "llvmlite", "flwr", "plotly", "scikit-learn"} & set(
        locked("core")
    )


def test_the_citation_has_the_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (cited["version"], cited["license"]) == (__version__, PROJECT["license"])


def test_the_container_copies_what_there_is() -> None:
    lines = (ROOT / "Containerfile").read_text("utf-8").splitlines()
    (torch,) = (line.partition("=")[2] for line in lines if line.startswith("ARG TORCH="))
    assert f"TORCH ?= {torch}\n" in (ROOT / "Makefile").read_text("utf-8")
    (file,) = re.findall(r"--require-hashes -r (\S+)", "\n".join(lines))
    assert (ROOT / file).is_file()


def test_the_container_runs_only_what_is_in_it() -> None:
    """No engine builds the image here, so this follows its instructions."""
    steps = [line.split() for line in (ROOT / "Containerfile").read_text("utf-8").splitlines()]
    stages = [step[3] for step in steps if step[:1] == ["FROM"] and step[2:3] == ["AS"]]
    copied = [step[1:] for step in steps if step[:1] == ["COPY"]]
    assert copied == [[".", "/source"], [f"--from={stages[0]}", "/opt/fedveil", "/opt/fedveil"]]
    environment = next(step[-1] for step in steps if step[:3] == ["RUN", "python", "-m"])
    assert environment == copied[1][1]
    assert ["ENV", f"PATH={environment}/bin:$PATH"] in steps
    used = [step[1] for step in steps if step[:1] == ["RUN"] and step[1].startswith("/")]
    assert set(used) == {f"{environment}/bin/pip"}
    warm = next(step[1 : step.index("&&")] for step in steps if step[:2] == ["RUN", "fedveil"])
    settings = [value for key, value in pairwise(warm) if key == "--set"]
    assert Job.load(DEFAULT_JOB, settings).rounds == 1
    assert json.loads(next(" ".join(s[1:]) for s in steps if s[:1] == ["CMD"])) == [
        "fedveil",
        "run",
    ]
    assert warm[0] in PROJECT["scripts"]
    node = direct(EXTRAS["node"])
    assert {"torch", "numba", "flwr"} <= node, "it trains, compiles, and serves as a Flower node"


def test_errors_name_every_extra_and_no_other() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"dev"}
    named = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text("utf-8")
        named |= set(re.findall(r'MissingExtra\("\w+", "(\w+)"', text))
    named |= set(EXTRA_OF.values()) - {"dev"}
    known = {"torch", "flower", "vertical", "parquet", "notebook", "trackers", "ray", "nvflare"}
    known |= {"language"}
    assert named == known
    assert named | {"all"} == extras
