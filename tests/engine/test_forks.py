"""Forks of the simulating process train many clients of a small native model."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import fedveil
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.engine.assembly import ModelShape, fork_count, load_data, make_partition
from fedveil.engine.executors import local
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.pool import WorkerPool
from fedveil.errors import WorkerDied

pytestmark = [
    pytest.mark.skipif(not HAVE_NUMBA, reason="nothing trains in native code without numba"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks"),
]


def job(*settings: str) -> fedveil.Job:
    small = ["rounds=2", "clients.number=130", "clients.fraction=0.78", "data.split=iid"]
    fixed = ["model=logistic", "simulation.masks=false", "record.page=false"]
    return fedveil.Job.load(None, [*small, *fixed, "protection=distributed_dp", *settings])


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 6})


def test_they_give_the_bytes_of_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools = []

    class Watched(WorkerPool):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            pools.append(multiprocessing.active_children())

    monkeypatch.setattr(local, "WorkerPool", Watched)
    runs = [
        fedveil.simulate(job(f"simulation.workers={workers}"), tmp_path / workers)
        for workers in ("auto", "1")
    ]
    assert [len(forks) for forks in pools] == [3]
    assert not any(fork.is_alive() for fork in pools[0])
    ours, theirs = ((run.folder / "model.safetensors").read_bytes() for run in runs)
    assert ours == theirs
    assert runs[0].metrics[-1]["reports"] == 101


@pytest.mark.parametrize(
    "setting", ["clients.number=127", "simulation.workers=2", "training.engine=vmap"]
)
def test_few_clients_and_named_workers_have_none(setting: str) -> None:
    assert fork_count(job("clients.number=128")) == 3  # 100 in a round
    assert fork_count(job(setting)) == 0


def test_a_process_of_a_users_pool_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    assert fork_count(job()) == 0


def test_one_ends_with_its_own_pipe(tmp_path: Path) -> None:
    settings = job()
    data, split = load_data(settings), make_partition(settings, load_data(settings))
    held = ClientsData(data.train.x, data.train.y, split.indices, split.offsets)
    pool = WorkerPool(3, 650, held, local.serve)
    pool.start(settings, ModelShape.of(data), tmp_path)
    first = pool._workers[0]
    first.connection.close()
    assert first._process.wait(5) == 0
    assert len(multiprocessing.active_children()) == 2
    pool.close()
    assert multiprocessing.active_children() == []


def test_the_death_of_one_is_named(tmp_path: Path) -> None:
    def kill(record: Any) -> None:
        multiprocessing.active_children()[0].kill()

    with pytest.raises(WorkerDied, match="was killed by SIGKILL"):
        fedveil.simulate(job(), tmp_path / "run", progress=kill)
