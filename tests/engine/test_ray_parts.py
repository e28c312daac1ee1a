"""The cluster of Ray's machines, without Ray: a stand-in records what Ray is asked for.

`test_ray.py` tests the same code with Ray itself, where it is installed.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest

from fedveil.engine.cluster import ray_cluster
from fedveil.engine.cluster.cluster import MachineLost, Place
from fedveil.engine.cluster.ray_cluster import (
    RayCluster,
    _Actor,
    _cut,
    _knock,
    _PiecewiseMachine,
    _RayCall,
    _running,
)
from fedveil.errors import ClusterUnavailable, RunStopped


class RayError(Exception):
    """The base of Ray's errors."""


class RayTaskError(RayError):
    cause: BaseException = KeyError("lost")


class ActorDiedError(RayError):
    actor_init_failed = False


class Ray:
    """Stands for the package: tasks are done at once, and their results are the references."""

    cloudpickle = cloudpickle
    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, ActorDiedError=ActorDiedError
    )

    def __init__(self, running: bool = False, nodes: Any = ()) -> None:
        self.running, self.found, self.asked = running, nodes, list[Any]()

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **how: Any) -> None:
        self.asked.append(("init", how["address"], how["namespace"]))

    def shutdown(self) -> None:
        self.asked.append("shutdown")

    def nodes(self) -> Any:
        return self.found

    def put(self, value: Any) -> Any:
        self.asked.append("put")
        return "handle", value

    def get(self, references: list[Any]) -> list[Any]:
        for reference in references:
            if isinstance(reference, Exception):
                raise reference
        return references

    def wait(self, references: list[Any], **how: Any) -> tuple[list[Any], list[Any]]:
        self.asked.append(how)
        return references[1:2], references[:1]

    def kill(self, actor: Any) -> None:
        self.asked.append(("kill", actor))


def cluster(ray: Ray, workers: int | None = None, *, gpus: bool = False) -> RayCluster:
    made = RayCluster.__new__(RayCluster)
    made._ray, made._workers, made._gpus = ray, workers, gpus
    return made


def node(key: str, name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": key, "NodeManagerAddress": name, "Alive": alive, "Resources": resources}


NODES = [
    node("c", "third", CPU=3.0), node("b", "dead", False, CPU=64.0, GPU=8.0),
    node("a", "first", CPU=7.0, GPU=2.0), node("d", "none", GPU=1.0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "gpus", "places"),
    [
        (None, False, [("a/0", "first", 7), ("c/0", "third", 3)]),
        (2, False, [("a/0", "first", 2), ("a/1", "first", 2), ("a/2", "first", 2),
                    ("c/0", "third", 2)]),
        (None, True, [("a/0", "first", 3), ("a/1", "first", 3)]),
        (4, True, [("a/0", "first", 4)]),
        (8, False, []),
    ],
)  # fmt: skip
def test_a_node_has_as_many_machines_as_its_cores_and_gpus_allow(
    workers: int | None, gpus: bool, places: list[tuple[str, str, int]]
) -> None:
    found = cluster(Ray(nodes=NODES), workers, gpus=gpus).places()
    assert list(found) == [Place(*place) for place in places]


def test_a_small_array_is_sent_in_pieces_and_a_large_one_through_the_stores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_cluster, "_PIECE_BYTES", 9)
    monkeypatch.setattr(ray_cluster, "_SMALL_BYTES", 28)
    ray, array = Ray(), np.arange(7, dtype=np.float32)
    shared = cluster(ray).share(array)
    assert ([len(piece) for piece in shared.pieces], shared.dtype) == ([9, 9, 9, 1], "float32")
    assert b"".join(shared.pieces) == array.tobytes()
    assert ray.asked == []
    for other in (np.arange(8, dtype=np.float32), b"a few"):
        assert cluster(ray).share(other)[1] is other
    assert _cut(b"x" * 29) == [b"x" * 29]
    assert _cut(b"x" * 28) == [b"x" * 9] * 3 + [b"x"]


class Machine(_PiecewiseMachine):
    def __init__(self) -> None:
        """Hold nothing."""

    def added(self, one: int, more: dict[str, Any], model: Any) -> Any:
        model += one  # it may be written
        return model, more["b"] * 500


class Handle:
    """An actor whose methods are called in this process."""

    def __init__(self, machine: Machine, asked: list[Any]) -> None:
        self._machine, self._asked = machine, asked

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            self._asked.append((name, len(arguments)))
            return getattr(self._machine, name)(*arguments)

        def options(**how: Any) -> Any:
            self._asked.append(how)
            return SimpleNamespace(remote=remote)

        return SimpleNamespace(remote=remote, options=options)


def test_a_call_in_pieces_gives_what_the_method_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", Ray())  # type: ignore[arg-type]
    monkeypatch.setattr(ray_cluster, "_PIECE_BYTES", 40)
    asked: list[Any] = []
    actor = _Actor(Ray(), Handle(Machine(), asked))
    model = np.arange(33, dtype=np.float32)
    shared = cluster(Ray()).share(model)
    found, text = actor.call("added", 2, {"b": "xy"}, shared).result()
    assert (found.tolist(), text) == ((model + 2).tolist(), "xy" * 500)
    pieces = -(-model.nbytes // 40)
    assert asked[0] == {"num_returns": 2 + 3 * pieces}
    assert actor.call("pulse").result() is None
    actor.pulse().result()
    assert asked[-2:] == [{"concurrency_group": "pulse"}, ("pulse", 0)]
    actor.end()
    assert actor._ray.asked == [("kill", actor._actor)]


def init_failed() -> ActorDiedError:
    error = ActorDiedError("a long text\nModuleNotFoundError: fedveil\n")
    error.actor_init_failed = True
    return error


def task_error(cause: BaseException) -> RayTaskError:
    error = RayTaskError("a traceback")
    error.cause = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (task_error(MemoryError()), MachineLost, "it ran out of memory"),
        (task_error(ValueError("no")), RunStopped, "a machine of the cluster raised ValueError"),
        (init_failed(), ClusterUnavailable, "cannot start fedveil: ModuleNotFoundError: fedveil"),
        (ActorDiedError("because its node has died"), MachineLost, "its node is gone"),
        (RayError("unknown"), MachineLost, "it died"),
    ],
)
def test_an_error_of_ray_is_the_machines_or_the_runs(
    error: Exception, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        _RayCall(Ray(), error).result()


def test_the_calls_that_have_ended_are_returned() -> None:
    ray = Ray()
    calls = [_RayCall(ray, key, key + " more") for key in ("a", "b", "c")]
    assert list(cluster(ray).wait(calls, 7.5)) == [calls[1]]
    assert ray.asked == [{"num_returns": 1, "timeout": 7.5}]
    assert [_RayCall(ray, "one").result(), _RayCall(ray, cloudpickle.dumps(3)[:4],
            cloudpickle.dumps(3)[4:]).result()] == ["one", 3]  # fmt: skip


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    monkeypatch.setattr(ray_cluster, "need_ray", lambda: made)
    monkeypatch.setattr(ray_cluster, "_knock", lambda address: made.asked.append(address))
    monkeypatch.setattr(ray_cluster, "_running", lambda: "10.0.0.7:6379")
    return made


def test_a_cluster_is_joined_once_and_left_by_who_has_joined_it(ray: Ray) -> None:
    there = "ray://10.0.0.1:6379"
    for address, name, knocks, asks in (
        (there, f"the Ray cluster at {there}", there, there),
        ("ray", "the Ray cluster", "10.0.0.7:6379", "auto"),
    ):
        ray.asked.clear()
        made = RayCluster(address, 2, gpus=False)
        assert made.name == name
        assert ray.asked == [knocks, ("init", asks, "fedveil")]
        made.close()
        assert ray.asked[-1] == "shutdown"
    ray.asked.clear()
    ray.running = True
    RayCluster(there, None, gpus=True).close()
    assert ray.asked == []


def test_a_cluster_that_does_not_answer_is_one_sentence(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(address: str) -> None:
        raise OSError(111, "Connection refused")

    monkeypatch.setattr(ray_cluster, "_knock", refused)
    with pytest.raises(
        ClusterUnavailable,
        match=r"simulation\.on = auto: no Ray cluster answers at 10\.0\.0\.7:6379 \(.*refused",
    ):
        RayCluster("auto", None, gpus=False)
    assert ray.asked == ["shutdown"]


@pytest.mark.parametrize(
    ("known", "file", "found"),
    [
        ("10.0.0.9:1", "10.0.0.2:6379\n", "10.0.0.9:1"), ("auto", "10.0.0.2:6379\n",
        "10.0.0.2:6379"), ("", " \n", None), ("", None, None),
    ],
)  # fmt: skip
def test_the_running_cluster_is_the_named_one_or_the_last_that_was_started(
    known: str, file: str | None, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", known)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    if file is not None:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(file)
    assert _running() == found


@pytest.mark.parametrize("known", [None, ""])
def test_the_running_cluster_is_sought_in_the_folder_for_temporary_files(
    known: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
        if known is not None:
            monkeypatch.setenv(name, known)
    monkeypatch.setattr(ray_cluster.tempfile, "gettempdir", lambda: str(tmp_path))
    assert _running() is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.3:6380\n")
    assert _running() == "10.0.0.3:6380"


@pytest.mark.parametrize("form", ["{}:{}", "ray://{}:{}", "[{}]:{}"])
def test_an_address_is_tried_before_ray_waits_for_it(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = form.format(*server.getsockname())
        _knock(address)
    with pytest.raises(OSError, match="refused"):
        _knock(address)


def test_a_machine_gets_its_cores_on_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def remote(**groups: Any) -> Callable[[type], Any]:
        asked.append(groups)
        return lambda kind: SimpleNamespace(options=lambda **how: options(how))

    def options(how: dict[str, Any]) -> Any:
        asked.append(how)
        return SimpleNamespace(remote=lambda *given: asked.append(given))

    affinity = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *at, **how: (at, how))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", affinity)  # type: ignore[arg-type]
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())  # type: ignore[arg-type]
    ray: Any = SimpleNamespace(remote=remote)
    cluster(ray, gpus=True).start(Place("node-3/1", "10.0.0.3", 5), "a setup", "10.0.0.3 (2)")
    how = asked[1]
    assert asked[0] == {"concurrency_groups": {"pulse": 1}}
    assert (how["num_cpus"], how["num_gpus"]) == (5, 1)
    assert how["scheduling_strategy"] == (("node-3",), {"soft": False})
    assert (how["max_restarts"], how["max_task_retries"]) == (0, 0)
    assert asked[2] == ("a setup", "10.0.0.3 (2)", 5)
