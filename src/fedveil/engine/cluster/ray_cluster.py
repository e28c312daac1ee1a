"""Ray as a run's cluster: each machine of the run is a Ray actor with some cores of a node."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.own_code import described
from fedveil.base.untrusted import read_text
from fedveil.engine.cluster.cluster import Call, Cluster, MachineLost, Place, Remote
from fedveil.engine.cluster.machine import Machine
from fedveil.errors import ClusterUnavailable, MissingExtra, RunStopped

#: The values of `simulation.on` for the cluster that Ray finds by itself.
FOUND = ("ray", "auto")
#: Seconds to wait for a connection, and the most bytes of a file with a cluster's address.
_ANSWER_S, _LONGEST_ADDRESS = 10.0, 1000
#: The most bytes to send in pieces, and the bytes of a piece, for which Ray's limit is 100 KB.
_SMALL_BYTES, _PIECE_BYTES = 4 << 20, 90_000
#: The group of calls that an actor answers even while it runs another call.
_PULSE = "pulse"


class RayCluster(Cluster):
    """The Ray cluster at `address`. If this is "ray" or "auto", Ray looks for the cluster itself.

    Each machine of the cluster is a process of fedveil on a node. A machine uses `workers` cores
    and, if `gpus` is True, one GPU. If `workers` is None and `gpus` is False, it uses all cores of
    the node. If `workers` is None and `gpus` is True, it uses the node's number of cores divided by
    its number of GPUs.
    """

    def __init__(self, address: str, workers: int | None, *, gpus: bool) -> None:
        self._ray = need_ray()
        self._workers, self._gpus = workers, gpus
        self.name = "the Ray cluster" if address in FOUND else f"the Ray cluster at {address}"
        self._mine = not self._ray.is_initialized()
        if self._mine:
            self._connect(address)

    def _connect(self, address: str) -> None:
        where = _running() if address in FOUND else address
        try:
            if where is not None:
                _knock(where)  # Ray itself would wait for minutes
            self._ray.init(
                # Ray 2.60 uses this user's token for "auto", but not for an address.
                address="auto" if address in FOUND else address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace="fedveil",
            )
        except Exception as error:  # Ray raises errors of many kinds here
            with suppress(Exception):  # the next try starts anew
                self._ray.shutdown()
            said = f"no Ray cluster answers at {where or 'this machine'}"
            raise ClusterUnavailable(
                f"simulation.on = {address}: {said} ({described(error)[:200]}). Start one with "
                f"`ray start --head`, or check the address. If the cluster asks for a token, set "
                f"RAY_AUTH_MODE=token on all its machines and here"
            ) from error

    def places(self) -> Sequence[Place]:
        found = list[Place]()
        for node in sorted(self._ray.nodes(), key=lambda node: str(node["NodeID"])):
            resources = node["Resources"] if node["Alive"] else {}
            cpus, gpus = (int(resources.get(kind, 0)) for kind in ("CPU", "GPU"))
            if self._gpus:
                cores = self._workers or max(1, cpus // max(1, gpus))
                number = min(gpus, cpus // cores)
            else:
                cores = self._workers or cpus
                number = cpus // cores if cores else 0
            name = str(node["NodeManagerAddress"])
            found += [Place(f"{node['NodeID']}/{i}", name, cores) for i in range(number)]
        return found

    def start(self, place: Place, setup: Any, name: str) -> Remote:
        ray = self._ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = NodeAffinitySchedulingStrategy(place.key.partition("/")[0], soft=False)
        actor = ray.remote(concurrency_groups={_PULSE: 1})(_PiecewiseMachine).options(
            num_cpus=place.cores,
            num_gpus=1 if self._gpus else 0,
            scheduling_strategy=node,
            max_restarts=0,
            max_task_retries=0,
        )
        return _Actor(ray, actor.remote(setup, name, place.cores))

    def share(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.nbytes <= _SMALL_BYTES:
            return _Pieces(_cut(value.tobytes()), str(value.dtype))
        return self._ray.put(value)

    def wait(self, calls: Sequence[Call], timeout_s: float | None = None) -> Sequence[Call]:
        by_reference = {call.references[0]: call for call in calls if isinstance(call, _RayCall)}
        done, _ = self._ray.wait(list(by_reference), num_returns=1, timeout=timeout_s)
        return [by_reference[reference] for reference in done]

    def close(self) -> None:
        if self._mine:
            self._ray.shutdown()


@dataclass(frozen=True)
class _Pieces:
    """A small array's bytes in pieces, which Ray sends inside its own messages.

    Ray moves a larger object through the stores of both nodes, which takes some 5 ms each way.
    """

    pieces: Sequence[bytes]
    dtype: str


class _PiecewiseMachine(Machine):
    def piecewise(
        self, method: str, returns: int, dtype: str, packed: int, *pieces: bytes
    ) -> list[bytes]:
        """Call `method`, whose last argument is an array. Returns the pickled result, in pieces.

        The first `packed` of the `pieces` are the pickle of all other arguments. The remaining
        pieces are the bytes of the array, which has the type `dtype`. `returns` is the number of
        pieces of the result.
        """
        from ray import cloudpickle

        given = cloudpickle.loads(b"".join(pieces[:packed]))
        array = np.frombuffer(bytearray().join(pieces[packed:]), dtype)
        result = cloudpickle.dumps(getattr(self, method)(*given, array), protocol=5)
        size = -(-len(result) // returns)
        return [result[size * i : size * (i + 1)] for i in range(returns)]


def _cut(data: bytes) -> Sequence[bytes]:
    if len(data) > _SMALL_BYTES:
        return [data]
    return [data[i : i + _PIECE_BYTES] for i in range(0, len(data), _PIECE_BYTES)]


class _RayCall(Call):
    def __init__(self, ray: Any, *references: Any) -> None:
        self._ray, self.references = ray, references

    def result(self) -> Any:
        errors = self._ray.exceptions
        try:
            found = self._ray.get(list(self.references))
            return found[0] if len(found) == 1 else self._ray.cloudpickle.loads(b"".join(found))
        except errors.RayTaskError as raised:
            if isinstance(raised.cause, MemoryError):
                raise MachineLost("it ran out of memory") from raised
            raise RunStopped(
                f"a machine of the cluster raised {described(raised.cause)}"
            ) from raised
        except errors.ActorDiedError as lost:
            if lost.actor_init_failed:
                last = str(lost).strip().splitlines()[-1]
                raise ClusterUnavailable(
                    f"a machine of the cluster cannot start fedveil: {last}"
                ) from lost
            raise MachineLost(_reason(lost)) from lost
        except errors.RayError as lost:
            raise MachineLost(_reason(lost)) from lost


class _Actor(Remote):
    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor

    def call(self, method: str, *arguments: Any) -> Call:
        if arguments and isinstance(arguments[-1], _Pieces):
            *given, shared = arguments
            returns = 2 + 3 * len(shared.pieces)  # a sum of reports has 2 or 3 times the bytes
            made = self._actor.piecewise.options(num_returns=returns)
            packed = _cut(self._ray.cloudpickle.dumps(given, protocol=5))
            sent = (shared.dtype, len(packed), *packed, *shared.pieces)
            return _RayCall(self._ray, *made.remote(method, returns, *sent))
        return _RayCall(self._ray, getattr(self._actor, method).remote(*arguments))

    def pulse(self) -> Call:
        method = self._actor.pulse.options(concurrency_group=_PULSE)
        return _RayCall(self._ray, method.remote())

    def end(self) -> None:
        self._ray.kill(self._actor)


def _reason(lost: Exception) -> str:
    text = str(lost)
    # Ray also names the memory as one of several possible causes of a SIGKILL.
    unsure = "killed by the OOM killer" in text and "NODE_OUT_OF_MEMORY" not in text
    if "OutOfMemory" in type(lost).__name__ or ("memory" in text.lower() and not unsure):
        return "it ran out of memory"
    return "its node is gone" if "node" in text.lower() and "died" in text.lower() else "it died"


def need_ray() -> Any:
    """Return the package ray. Raises `MissingExtra` if it is not installed."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise MissingExtra("ray", "ray", "simulation.on") from None
    return ray


def _running() -> str | None:
    known = os.environ.get("RAY_ADDRESS", "")
    if ":" in known:
        return known
    file = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray/ray_current_cluster"
    try:
        return read_text(file, _LONGEST_ADDRESS).strip() or None
    except OSError:
        return None


def _knock(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
