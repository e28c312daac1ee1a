"""A simulation on a real Ray cluster of several nodes on this machine, whose processes are killed.

`test_many_machines.py` tests everything but Ray itself, without it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from test_simulation import job, timeless

import fedveil
from fedveil.base.message import encode
from fedveil.engine.cluster import membership, start
from fedveil.engine.cluster.ray_cluster import RayCluster
from fedveil.engine.run_records import MACHINES, RETRAINED
from fedveil.errors import ClusterUnavailable
from fedveil.protections.catalog import POSITIONS
from ray_nodes import STORE_BYTES, free_port, node

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.slow
from ray.cluster_utils import Cluster  # noqa: E402 - after the check that it is there
from ray.util import get_node_ip_address  # noqa: E402

FEW = {"reconstruct_secrets_threshold": 3}
PROTECTIONS = {"pw_encrypt": FEW, "distributed_dp": FEW}
SLOW = {"model": "parts:plain", "rounds": 5, "clients": {"number": 8, "fraction": 1.0}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start a cluster of a node with one core and a node with two."""
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    made = Cluster(initialize_head=True, head_node_args=node(1, include_dashboard=False))
    made.add_node(**node(2))
    os.environ["RAY_ADDRESS"] = made.address
    yield made
    del os.environ["RAY_ADDRESS"]
    made.shutdown()
    os.environ |= {} if path is None else {"PYTHONPATH": path}


def left(run: fedveil.Run) -> tuple[bytes, list[str], bytes]:
    """Return what a run left, without times and machines."""
    records = [
        {key: value for key, value in record.items() if key not in (MACHINES, RETRAINED)}
        for record in run.metrics
    ]
    model = (run.folder / "model.safetensors").read_bytes()
    return model, timeless(records), encode(run.ledger.to_state())


def on(place: str, folder: Path, **settings: Any) -> fedveil.Run:
    progress = settings.pop("progress", None)
    settings["simulation"] = {"workers": 0} | settings.get("simulation", {}) | {"on": place}
    return fedveil.simulate(job(**settings), folder, progress=progress)


def machines() -> list[psutil.Process]:
    """Return the processes of Ray that are machines of a run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "ray::_PiecewiseMachine" in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.parametrize("protection", sorted(POSITIONS))
def test_a_cluster_changes_no_byte(protection: str, cluster: Cluster, tmp_path: Path) -> None:
    settings = {"model": "parts:plain", "protection": {"name": protection, **PROTECTIONS}}
    alone = left(on("here", tmp_path / "here", **settings))
    for workers in (1, "auto"):
        run = on("ray", tmp_path / str(workers), simulation={"workers": workers}, **settings)
        assert left(run) == alone
        assert len(run.metrics[-1][MACHINES]) == (3 if workers == 1 else 2)


def test_processes_of_a_machine_and_states_change_no_byte(cluster: Cluster, tmp_path: Path) -> None:
    for number, training in enumerate([
        {"engine": "loop"}, {"engine": "vmap"}, {"algorithm": "scaffold", "engine": "loop"}
    ]):  # fmt: skip
        settings = {"model": "parts:plain", "training": training}
        folder = tmp_path / str(number)
        alone = on("here", folder / "here", simulation={"workers": "auto"}, **settings)
        run = on("ray", folder / "ray", simulation={"workers": "auto"}, **settings)
        assert left(run) == left(alone)


NET = """
from torch import nn
WIDTH = 5
def net():
    return nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
"""


@pytest.mark.parametrize("place", ["carried_net", "__main__"])
def test_own_modules_and_cells_travel(
    place: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node has the module, or the notebook, in which the model is defined."""
    (tmp_path / "carried_net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    cells = ModuleType("__main__")
    exec(compile(NET, "<cell>", "exec"), vars(cells))
    monkeypatch.setitem(sys.modules, "__main__", cells)
    settings = {"model": f"{place}:net", "rounds": 2}
    alone = on("here", tmp_path / "here", **settings)
    assert left(on("ray", tmp_path / "ray", **settings)) == left(alone)


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start a cluster by `ray start --head`, and return the address of its client server."""
    pytest.importorskip("grpc", reason="Ray's client is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # this process has read its mode already
    folder, host, port = tempfile.mkdtemp(prefix="ray"), get_node_ip_address(), free_port()
    options = {"port": free_port(), "ray-client-server-port": port, "num-cpus": 2}
    options |= {"temp-dir": folder, "object-store-memory": STORE_BYTES}
    flags = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *flags]
    for _ in range(3):  # a node gives up if its helper processes need more than 15 seconds to start
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if any("Ray runtime started" in line for line in server.stdout or ()):
            break
    yield f"ray://{host}:{port}"
    server.terminate()
    server.wait(60)
    shutil.rmtree(folder, ignore_errors=True)


def test_rays_client_changes_no_byte(outside: str, tmp_path: Path) -> None:
    """Under `ray://` this process is outside the cluster, and reaches it over one port."""
    settings = {**SLOW, "protection": {"name": "pw_encrypt", **PROTECTIONS}}
    alone = left(on("here", tmp_path / "here", **settings))
    for number in (1, 2):  # each run has a server of its own
        run = on(outside, tmp_path / str(number), **settings)
        assert left(run) == alone
        assert len(run.metrics[-1][MACHINES]) == 2


def during(round: int, what: Callable[[], object]) -> Callable[[dict[str, Any]], None]:
    """Return a progress function that calls `what` in the middle of a round."""

    def progress(record: dict[str, Any]) -> None:
        if record["round"] == round - 1:
            threading.Timer(0.3, what).start()

    return progress


@pytest.mark.parametrize("protection", ["not_encrypt", "pw_encrypt"])
def test_a_killed_process_changes_no_byte(
    protection: str, cluster: Cluster, tmp_path: Path
) -> None:
    settings = {**SLOW, "protection": {"name": protection, **PROTECTIONS}}
    settings["model"] = "parts:slow_plain"
    alone = left(on("here", tmp_path / "here", **settings))
    kill = during(2, lambda: machines()[0].kill())
    run = on("ray", tmp_path / "ray", progress=kill, **settings)
    assert left(run) == alone
    assert run.metrics[1][RETRAINED] > 0
    assert "was lost" in (run.folder / "events.log").read_text()


def test_a_stopped_process_changes_no_byte(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither works nor dies, so only its missing pulse says that it is lost."""
    monkeypatch.setattr(membership, "_PULSE_S", 1.0)
    monkeypatch.setattr(membership, "_SILENT_S", 5.0)
    settings = {**SLOW, "model": "parts:slow_plain"}
    alone = left(on("here", tmp_path / "here", **settings))
    stopped: list[psutil.Process] = []

    def stop() -> None:
        stopped.append(machines()[0])
        stopped[0].suspend()

    run = on("ray", tmp_path / "ray", progress=during(2, stop), **settings)
    assert left(run) == alone
    assert sum(record.get(RETRAINED, 0) for record in run.metrics) > 0
    assert "gives no sign of life: it is given up" in (run.folder / "events.log").read_text()
    gone, _ = psutil.wait_procs(stopped, timeout=30)
    assert gone == stopped  # ended, not left stopped with its memory


def test_a_machine_without_memory_changes_no_byte(cluster: Cluster, tmp_path: Path) -> None:
    """Ray's own monitor kills the process of a node that counts as full."""
    settings = {**SLOW, "model": "parts:slow_plain", "rounds": 60}
    alone = left(on("here", tmp_path / "here", **settings))
    full = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "20000"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in full.items():
            patch.setenv(name, value)
        small = cluster.add_node(**node(1))
    run = on("ray", tmp_path / "ray", **settings)
    cluster.remove_node(small)
    assert left(run) == alone
    events = (run.folder / "events.log").read_text()
    assert "was lost (it ran out of memory)" in events
    assert sum(record.get(RETRAINED, 0) for record in run.metrics) > 0


def test_a_removed_node_and_a_late_one_change_no_byte(cluster: Cluster, tmp_path: Path) -> None:
    settings = {**SLOW, "model": "parts:slow_plain", "rounds": 40}
    alone = left(on("here", tmp_path / "here", **settings))
    removed = cluster.add_node(**node(1))
    late: list[object] = []

    def progress(record: dict[str, Any]) -> None:
        if record["round"] == 1:
            threading.Timer(0.3, cluster.remove_node, [removed, False]).start()
        if record["round"] == 3:
            late.append(cluster.add_node(**node(1)))

    run = on("ray", tmp_path / "ray", progress=progress, **settings)
    cluster.remove_node(late[0])
    assert left(run) == alone
    events = (run.folder / "events.log").read_text()
    assert "was lost" in events
    assert "has joined" in events


def test_a_killed_head_resumes_on_the_cluster_or_here(cluster: Cluster, tmp_path: Path) -> None:
    settings = {**SLOW, "model": "parts:slow_plain"}
    alone = left(on("here", tmp_path / "here", **settings))
    file = tmp_path / "job.yaml"
    file.write_text(job(simulation={"workers": 0}, **settings).to_yaml())
    command = [sys.executable, "-m", "fedveil", "run", file, "--on", "ray", "--out"]
    for number, place in enumerate(("ray", "here")):
        folder = tmp_path / place
        head = subprocess.Popen([*command, folder])
        metrics = folder / "metrics.jsonl"
        while head.poll() is None and not (metrics.exists() and metrics.read_text().count("\n")):
            time.sleep(0.05)
        time.sleep(0.4 * number)
        head.send_signal(signal.SIGKILL)
        head.wait()
        assert left(fedveil.resume(folder, on=place)) == alone


def test_each_gpu_of_a_node_is_a_machine_and_is_reserved(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node only says that it has GPUs, so the job trains on its processor."""
    monkeypatch.setattr(
        start, "_ray_cluster", lambda job: RayCluster(job.simulation.on, None, gpus=True)
    )
    settings = {**SLOW, "rounds": 2}
    alone = left(on("here", tmp_path / "here", **settings))
    with_gpus = cluster.add_node(**node(5, num_gpus=2))
    free: list[dict[str, float]] = []

    def progress(record: dict[str, Any]) -> None:
        limit = time.monotonic() + 20
        while (now := ray.available_resources()).get("GPU") and time.monotonic() < limit:
            time.sleep(0.2)
        free.append(now)

    run = on("ray", tmp_path / "ray", progress=progress, **settings)
    cluster.remove_node(with_gpus)
    assert left(run) == alone
    assert len(run.metrics[-1][MACHINES]) == 2
    assert free[-1].get("GPU", 0.0) == 0.0
    assert free[-1]["CPU"] == 1 + 2 + 5 - 2 * (5 // 2)


def test_ctrl_c_ends_the_machines(cluster: Cluster, tmp_path: Path) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on("ray", tmp_path / "ray", progress=interrupt, **SLOW)
    limit = time.monotonic() + 20
    while machines() and time.monotonic() < limit:
        time.sleep(0.2)
    assert not machines()
    run = fedveil.resume(tmp_path / "ray", on="here")
    assert left(run) == left(on("here", tmp_path / "here", **SLOW))


def test_no_cluster_at_the_address_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        on("127.0.0.1:9", tmp_path / "run", **SLOW)
