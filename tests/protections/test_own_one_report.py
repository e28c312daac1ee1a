"""A user's own protection with one report per round: the page's example, and its exceptions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from doc_blocks import blocks
from fedveil.errors import InvalidValue, RunStopped
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from folders import DOCS

PAGE = (DOCS / "own-protection.md").read_text()
CODE = next(block.text for block in blocks(PAGE, "") if "HalvedServer" in block.text)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's example as a module. A test may write it again before its first run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "halved", raising=False)
    (tmp_path / "halved.py").write_text(CODE)
    return tmp_path / "halved.py"


def job(**changes: Any) -> Job:
    base: dict[str, Any] = {
        "rounds": 2,
        "clients": {"number": 5, "fraction": 0.6},
        "data": {"name": "parts:data", "split": "dirichlet"},
        "model": "parts:linear",
        "training": {"epochs": 1, "batch_size": 9, "lr": 0.1},
        "server": {"weighting": "equal"},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    return Job(**base | changes)


def test_the_halves_are_short() -> None:
    text = CODE[CODE.index("class HalvedServer") : CODE.index("class Halved(")]
    server, _, client = text.partition("class HalvedClient")
    for half in (server, client):
        assert len([line for line in half.splitlines() if line.strip()]) < 30


def test_its_result_is_the_mean_of_rounded_updates(module: Path) -> None:
    runs = [fedveil.simulate(job(protection=name)) for name in ("halved:Halved", "not_encrypt")]
    found, plain = (Layout(run.model).vector() for run in runs)
    assert not np.array_equal(found, plain)
    np.testing.assert_allclose(found, plain, atol=2 * 0.5e-3 + 1e-4)
    assert runs[0].metrics[0]["bytes_up_per_client"] < 2 * 21 + 64


FAULTS = {
    "_fold": ("only_fields(message,", "1 / 0; only_fields(message,"),
    "_aggregate": ("return Aggregate(", "1 / 0; return Aggregate("),
    "_report": ("steps = np.clip(", "1 / 0; steps = np.clip("),
    "server_round": ("return HalvedServer(", "1 / 0; return HalvedServer("),
}


@pytest.mark.parametrize("where", FAULTS)
def test_an_exception_is_one_sentence_with_its_line(where: str, module: Path) -> None:
    before, after = FAULTS[where]
    spoilt = CODE.replace(before, after)
    module.write_text(spoilt)
    line = 1 + next(n for n, text in enumerate(spoilt.splitlines()) if "1 / 0" in text)
    with pytest.raises(RunStopped) as said:
        fedveil.simulate(job(protection="halved:Halved"))
    assert str(said.value).startswith(
        "protection.name = halved:Halved: it raised ZeroDivisionError: division by zero "
        f"(halved.py, line {line})"
    )


@pytest.mark.usefixtures("warm_workers")
def test_an_exception_in_a_worker_is_the_same_sentence(module: Path) -> None:
    module.write_text(CODE.replace(*FAULTS["_report"]))
    with pytest.raises(
        RunStopped, match=r"it raised ZeroDivisionError: .* \(halved.py, line \d+\)"
    ):
        fedveil.simulate(job(protection="halved:Halved", simulation={"workers": 1}))


def test_a_constructor_that_raises_is_one_sentence(module: Path) -> None:
    module.write_text(CODE + "    def __init__(self, settings, context):\n        1 / 0\n")
    with pytest.raises(InvalidValue) as said:
        fedveil.simulate(job(protection="halved:Halved"))
    assert str(said.value).startswith(
        "protection.name = halved:Halved: the class raised ZeroDivisionError: division by zero "
    )
