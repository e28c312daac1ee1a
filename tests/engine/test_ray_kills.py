"""Processes, nodes and the head of a run on a real Ray cluster are killed at random instants."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_ray import left, machines
from test_simulation import job

import fedveil
import parts
from fedveil.engine.run_records import MACHINES
from ray_nodes import STORE_BYTES, added, node

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
from ray.cluster_utils import Cluster  # noqa: E402 - after the check that it is there

#: What each run loses, in an order that is drawn: processes of machines, nodes whose main process
#: is killed, nodes that are shut down, and the head of the run.
KILLS = ["process"] * 6 + ["raylet", "raylet", "node", "head", "head"]
#: Rounds of the run, and of each extension if it ends before the last kill.
ROUNDS = 25
WIDE = """
from torch import nn
def wide():
    return nn.Sequential(nn.Linear(6, 1500), nn.Tanh(), nn.Linear(1500, 5000), nn.Linear(5000, 3))
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Start a cluster of one node with one core, and twice the memory of the smallest node."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    made = Cluster()
    added(made, full(include_dashboard=False))
    yield made
    made.shutdown()


def full(**more: Any) -> dict[str, Any]:
    return node(1, **{"object_store_memory": 2 * STORE_BYTES, **more})


class Head:
    """The process of a run, which is resumed after it was killed, with more rounds if it ended."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.rounds = folder, ROUNDS
        self._file = file
        self._start()

    def _start(self) -> None:
        begun = (self.folder / "job.yaml").exists()
        what = ["--resume", self.folder] if begun else [self._file, "--out", self.folder]
        more = ["--set", f"rounds={self.rounds}"] if begun else []
        command = [sys.executable, "-m", "fedveil", "run", *what, *more]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def keep_on(self) -> None:
        """Resume the run with more rounds if it has ended."""
        if self._process.poll() is not None:
            assert self._process.returncode == 0
            self.rounds += ROUNDS
            self._start()

    def kill(self, *, resume: bool = True) -> None:
        self._process.kill()
        self._process.wait()
        if resume:
            self._start()


@pytest.mark.parametrize(("seed", "protection"), [(1, "not_encrypt"), (2, "pw_encrypt")])
def test_kills_at_random_instants_change_no_byte(
    seed: int, protection: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with half the memory takes part, and nodes join late in the place of lost ones."""
    settings = {
        "model": "parts:slow_plain",
        "clients": {"number": 8, "fraction": 1.0},
        "protection": {"name": protection, "pw_encrypt": {"reconstruct_secrets_threshold": 3}},
    }
    place = {"simulation": {"workers": 1, "on": cluster.address}}
    (tmp_path / "job.yaml").write_text(job(rounds=ROUNDS, **settings, **place).to_yaml())
    chance, nodes = random.Random(seed), [added(cluster, node(1))]
    head = Head(tmp_path / "run", tmp_path / "job.yaml")
    for kind in chance.sample(KILLS, len(KILLS)):
        time.sleep(chance.uniform(0.05, 6.0))
        head.keep_on()
        if kind == "process":
            some_machine(chance).kill()
        elif kind == "head":
            head.kill()
        else:
            lost = nodes.pop()
            if kind == "raylet":
                lost.all_processes["raylet"][0].process.kill()
            cluster.remove_node(lost, allow_graceful=kind == "node")
            nodes.append(added(cluster, full()))
        print(f"{time.strftime('%X')} killed: {kind}", flush=True)
    head.kill(resume=False)
    run = fedveil.resume(head.folder, rounds=head.rounds + 3)
    monkeypatch.setattr(parts, "time", SimpleNamespace(sleep=lambda seconds: None))
    alone = fedveil.simulate(job(rounds=head.rounds + 3, **settings), tmp_path / "alone")
    assert left(run) == left(alone)
    events = (head.folder / "events.log").read_text()
    assert " clients train again on other machines" in events
    assert " has joined" in events
    assert "ran out of memory" not in events
    none_is_left()


def some_machine(chance: random.Random) -> Any:
    limit = time.monotonic() + 120
    while not (found := machines()) and time.monotonic() < limit:
        time.sleep(0.1)
    return chance.choice(found)


def none_is_left() -> None:
    limit = time.monotonic() + 30
    while machines() and time.monotonic() < limit:
        time.sleep(0.2)
    assert not machines()


def test_a_node_with_half_the_memory_changes_no_byte(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model and sums of reports fill its memory for objects, so Ray moves some to the disk."""
    (tmp_path / "wide_net.py").write_text(WIDE)
    monkeypatch.syspath_prepend(tmp_path)
    added(cluster, node(1, memory=STORE_BYTES))
    settings = {"model": "wide_net:wide", "rounds": 2}
    place = {"simulation": {"workers": 1, "on": cluster.address}}
    run = fedveil.simulate(job(**settings, **place), tmp_path / "run")
    assert left(run) == left(fedveil.simulate(job(**settings), tmp_path / "alone"))
    assert len(run.metrics[-1][MACHINES]) == 2
    none_is_left()
