"""Threads that train clients: torch's are restored, and the simulator's are counted."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedveil
from fedveil.engine.assembly import ModelShape, load_data, make_client_sides, make_partition
from fedveil.engine.executors.client_side import ClientsData
from fedveil.learning.trained_part import one_torch_thread
from fedveil.learning.trainer import LoopTrainer


def job(engine: str = "auto", workers: int = 0) -> fedveil.Job:
    return fedveil.Job(
        rounds=1, clients={"number": 4, "fraction": 1.0}, data={"name": "parts:data"},
        model="parts:linear", training={"epochs": 1, "batch_size": 8, "engine": engine},
        protection="not_encrypt", simulation={"workers": workers},
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("engine", ["loop", "auto"])
def test_in_the_calling_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    seen, train_one = [], LoopTrainer._train_one

    def watched(*arguments: Any) -> None:
        seen.append(torch.get_num_threads())
        train_one(*arguments)

    monkeypatch.setattr(LoopTrainer, "_train_one", watched)
    fedveil.simulate(job(engine), tmp_path / "run")
    assert torch.get_num_threads() == 2
    assert set(seen) == ({1} if engine == "loop" else set())


def test_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch trains unusual clients there, and its bytes depend on the number of its threads."""
    told, of_torch = set(), torch.set_num_threads

    def watched(count: int) -> None:
        told.add((threading.current_thread().name.split("_")[0], count))
        of_torch(count)

    monkeypatch.setattr(torch, "set_num_threads", watched)
    fedveil.simulate(job(workers=2), tmp_path / "run")
    assert torch.get_num_threads() == 2
    assert ("clients", 1) in told


def test_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), one_torch_thread():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def threads_of(parameters: int, **settings: Any) -> int:
    """Return the number of threads that train a native model with this number of `parameters`."""
    digits = {"name": "digits", "split": "iid"}
    native = fedveil.Job(
        **{"model": "logistic", "data": digits, "clients": {"number": 7},
           "protection": "not_encrypt", **settings}
    )  # fmt: skip
    data = load_data(native)
    split = make_partition(native, data)
    held = ClientsData(data.train.x, data.train.y, split.indices, split.offsets, None)
    model = np.zeros(parameters, np.float32)
    return len(make_client_sides(native, ModelShape.of(data), held, model, lambda text: None))


@pytest.mark.parametrize(("parameters", "threads"), [(19_999, 1), (20_001, 3)])
def test_clients_of_a_small_native_model_share_one_thread(
    parameters: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 6})
    assert threads_of(parameters) == threads


@pytest.mark.parametrize(
    "settings",
    [
        {"training": {"lr_schedule": "step", "lr_rounds": 2}},
        {"training": {"lr_schedule": "cosine"}},
        {"clients": {"number": 7, "own_layers": ["*bias"]}},
        {"simulation": {"workers": 0}},
    ],
)
def test_threads_train_only_at_one_rate_and_without_states(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread has one trainer for all rounds, with the learning rate of the first round."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 6})
    assert threads_of(20_001, **settings) == 0
