"""Clients are trained by one of torch's threads each, and who asked has all of them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedveil
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


def test_on_threads(tmp_path: Path) -> None:
    fedveil.simulate(job(workers=2), tmp_path / "run")
    assert torch.get_num_threads() == 2
