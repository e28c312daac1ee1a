"""The batch that is tried before the first round: what it finds, and that it changes nothing."""

from __future__ import annotations

import inspect
import re
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import fedveil
from fedveil.engine import dry_run
from fedveil.engine.assembly import ModelShape, load_data
from fedveil.engine.simulation import Simulator
from fedveil.errors import ModelInvalid, with_notes
from fedveil.record.run_folder import TRACEBACK, RunFolder
from task_parts import OwnStep, Uneven, Unsaid

OWN = """\
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.linear = nn.Linear(6, 2 if fault == "classes" else 3)

    def forward(self, x):
        if self.fault == "counted":
            CALLS.append(1)
            raise RuntimeError(f"call {len(CALLS)}")
        if self.fault == "raises":
            return self.linear(x).reshape(-1, 99)
        if self.fault == "tested" and not self.training:
            raise KeyError("unseen")
        if self.fault == "pair":
            return self.linear(x), x
        if self.fault == "flat":
            return self.linear(x)[:, 0]
        if self.fault == "vectorised" and float(x.sum()) > 1e9:
            return x
        return self.linear(x)


CALLS = []
def counted(): return Net("counted")
def raises(): return Net("raises")
def tested(): return Net("tested")
def pair(): return Net("pair")
def flat(): return Net("flat")
def classes(): return Net("classes")
def vectorised(): return Net("vectorised")


FAULT = ""
def fine(): return Net(FAULT)


def chain():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(7, 3))
"""


def job(model: str, **change: Any) -> fedveil.Job:
    settings = {
        "rounds": 2, "clients": {"number": 8, "fraction": 0.5}, "data": {"name": "parts:data"},
        "training": {"epochs": 1, "batch_size": 10}, "simulation": {"workers": 0},
        "record": {"page": False},
    }  # fmt: skip
    return fedveil.Job(model=model, **{**settings, **change})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user's in the current folder."""
    import sys

    file = tmp_path / "mine.py"
    file.write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return file


def line_of(text: str) -> int:
    return 1 + OWN[: OWN.index(text)].count("\n")


@pytest.mark.parametrize(
    ("model", "sentence", "place"),
    [
        ("raises", r"cannot train: RuntimeError: shape '\[-1, 99\]' is invalid", "return self.lin"),
        ("counted", "cannot train: RuntimeError: call 1 ", "raise RuntimeError"),
        ("tested", "cannot be tested: KeyError: 'unseen'", "raise KeyError"),
        ("pair", "cannot train: TypeError: it returns a tuple instead of one", "def pair"),
        ("flat", r"it returns a tensor of shape \(10,\) for 10 examples of 3 cla", "def flat"),
        (
            "classes",
            r"shape \(10, 2\) for 10 examples of 3 classes. Return a row of 3",
            "def classes",
        ),
        ("chain", "cannot train: RuntimeError: mat1 and mat2 shapes cannot be", "def chain"),
    ],
)
def test_a_model_that_must_fail_fails_before_the_first_round(
    own: Path, model: str, sentence: str, place: str
) -> None:
    with pytest.raises(ModelInvalid, match=sentence) as caught:
        fedveil.simulate(job(f"mine:{model}"), "run")
    told = with_notes(str(caught.value), caught.value)
    assert told.startswith(f"model = 'mine:{model}' cannot ")
    assert told.endswith(f" (mine.py, line {line_of(place)}); the traceback is in run/{TRACEBACK}")
    assert "\n" not in told
    assert "resume" not in told
    trace = Path("run", TRACEBACK).read_text()
    assert trace.startswith("Traceback (most recent call last):\n")
    assert {p.name for p in Path("run").iterdir()} == {".lock", TRACEBACK}


def test_a_model_that_cannot_be_vectorised_fails_under_vmap_alone(own: Path) -> None:
    training = {"epochs": 1, "batch_size": 10, "engine": "vmap"}
    with pytest.raises(ModelInvalid, match="vmap") as caught:
        fedveil.simulate(job("mine:vectorised", training=training), "run")
    assert f"(mine.py, line {line_of('float(x.sum())')})" in str(caught.value)
    assert fedveil.simulate(job("mine:vectorised"), "other").stopped is None


def test_the_mended_model_runs_in_the_same_folder(own: Path) -> None:
    with pytest.raises(ModelInvalid):
        fedveil.simulate(job("mine:raises"), "run")
    fedveil.simulate(job("mine:fine"), "run")
    assert not Path("run", TRACEBACK).exists()
    assert Path("run", "model.safetensors").exists()


def test_a_model_that_breaks_later_is_told_at_resuming(own: Path) -> None:
    """Its weights are the same, its forward pass is not: the advice is not to resume once more."""
    fedveil.simulate(job("mine:fine"), "run")
    import mine

    mine.FAULT = "flat"
    with pytest.raises(ModelInvalid, match=r"shape \(10,\) for 10 examples") as caught:
        fedveil.resume("run")
    assert "--resume" not in with_notes(str(caught.value), caught.value)
    assert Path("run", TRACEBACK).exists()


def test_a_run_has_the_bytes_that_it_has_without_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, BatchNorm and its count of batches: a tensor of every fate."""
    tried = []
    real = Simulator.try_out

    def spy(self: Simulator, *arguments: Any) -> None:
        before = torch.get_rng_state()
        real(self, *arguments)
        assert torch.equal(torch.get_rng_state(), before)
        tried.append(arguments)

    monkeypatch.setattr(Simulator, "try_out", spy)
    fedveil.simulate(job("parts:net"), tmp_path / "with")
    assert len(tried) == 1
    monkeypatch.setattr(Simulator, "try_out", lambda *arguments: None)
    fedveil.simulate(job("parts:net"), tmp_path / "without")
    for name in ("model.safetensors", "job.yaml"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    seconds = re.compile(r'"seconds_\w+": [0-9.e-]+')
    metrics = [(tmp_path / n / "metrics.jsonl").read_text() for n in ("with", "without")]
    assert seconds.sub("", metrics[0]) == seconds.sub("", metrics[1])


def test_the_trial_is_one_batch(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: of however many examples, one batch is trained on and one or two looked at."""
    seen: list[int] = []
    forward = torch.nn.Linear.forward

    def counting(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return forward(self, x)

    real = Simulator.try_out

    def tried(self: Simulator, *arguments: Any) -> None:
        monkeypatch.setattr(torch.nn.Linear, "forward", counting)
        real(self, *arguments)
        monkeypatch.setattr(torch.nn.Linear, "forward", forward)

    monkeypatch.setattr(Simulator, "try_out", tried)
    fedveil.simulate(job("parts:picky"), "run")
    assert len(seen) <= 3 + 8
    assert set(seen) == {10}


def test_a_language_model_is_named_by_its_folder() -> None:
    assert dry_run._defined_at("hf:models/small") == "hf:models/small"


def noisy() -> torch.nn.Module:
    class Noisy(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            warnings.warn(f"{len(x)} examples", RuntimeWarning, stacklevel=1)
            return super().forward(x)

    return Noisy(6, 3)


class NoStep(OwnStep):
    """A task whose loss can be computed, but whose own training step fails."""

    def train(self, model: torch.nn.Module, batches: Any, plan: Any) -> None:
        raise LookupError("no step")


def tried(settings: fedveil.Job, folder: Path) -> None:
    """Try a batch of the job, as a run does before its first round."""
    dataset, engine = load_data(settings), Simulator()
    settings = engine.settle(settings, dataset)
    with closing(RunFolder.create(folder, "tried")) as opened:
        engine.try_out(settings, ModelShape.of(dataset), opened)


def test_the_trial_repeats_no_warning_of_the_rounds(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        tried(job("test_dry_run:noisy"), tmp_path / "run")
    assert [str(one.message) for one in heard if one.category is RuntimeWarning] == []


def test_the_trial_takes_the_own_step_of_a_task(tmp_path: Path) -> None:
    own = {"task": "test_dry_run:NoStep", "data": {"name": "task_parts:slope"}}
    with pytest.raises(ModelInvalid, match="cannot train: LookupError: no step"):
        tried(job("task_parts:linear", **own), tmp_path / "run")


class Floated(OwnStep):
    """A task whose loss is a float, as `.item()` gives it, and so has no gradient."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets).item()


def test_a_loss_that_is_a_float_is_called_a_float(tmp_path: Path) -> None:
    own = {"task": "test_dry_run:Floated", "data": {"name": "task_parts:slope"}}
    with pytest.raises(ModelInvalid, match=r"the task's loss is a float\. Return it as a tensor"):
        tried(job("task_parts:linear", **own), tmp_path / "run")


@pytest.mark.parametrize("task", [Unsaid, Uneven])
def test_a_task_s_fault_is_placed_in_the_task(tmp_path: Path, task: type[fedveil.Task]) -> None:
    own = {"task": f"task_parts:{task.__name__}", "data": {"name": "task_parts:slope"}}
    line = inspect.getsourcelines(task)[1]
    with pytest.raises(ModelInvalid, match=rf"task_parts.py, line {line}\)"):
        tried(job("task_parts:linear", **own), tmp_path / "run")
