"""A cluster whose machines are threads of this process, and that can lose any of them.

A machine runs the real program (`Machine`). What travels to it and back is pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from fedveil.engine.executors.cluster import Call, Cluster, MachineLost, Place, Remote
from fedveil.engine.executors.machine import Machine


class _Call(Call):
    def __init__(self, future: Future[bytes]) -> None:
        self.future = future

    def result(self) -> Any:
        return pickle.loads(self.future.result())


class ThreadMachine(Remote):
    """A machine. `lost` is called with each call's method and number; True loses the machine."""

    def __init__(
        self, setup: bytes, place: Place, name: str, lost: Callable[[str, str, int], bool]
    ) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._machine: Machine | None = None
        self._setup, self._place, self._name, self._lost = setup, place, name, lost
        self._calls = 0
        self._dead = False

    def call(self, method: str, *arguments: Any) -> Call:
        sent = [a if isinstance(a, bytes) else pickle.dumps(a) for a in arguments]
        return _Call(self._pool.submit(self._run, method, sent))

    def end(self) -> None:
        self._dead = True

    def _run(self, method: str, sent: Sequence[bytes]) -> bytes:
        self._calls += 1
        if self._dead or self._lost(self._name, method, self._calls):
            self._dead = True
            raise MachineLost("the test lost it")
        if self._machine is None:
            self._machine = Machine(pickle.loads(self._setup), self._name, self._place.cores)
        result = getattr(self._machine, method)(*map(pickle.loads, sent))
        return pickle.dumps(result, protocol=5)


class ThreadCluster(Cluster):
    """A cluster with machines of these numbers of cores."""

    name = "the cluster of threads"

    def __init__(
        self, *cores: int, lost: Callable[[str, str, int], bool] = lambda name, method, n: False
    ) -> None:
        self.cores, self._lost = list(cores), lost
        self.started: list[str] = []
        #: Bytes sent to the machines, by method.
        self.machines: list[ThreadMachine] = []

    def places(self) -> Sequence[Place]:
        return [Place(f"p{i}", f"m{i}", cores) for i, cores in enumerate(self.cores) if cores]

    def start(self, place: Place, setup: Any, name: str) -> Remote:
        self.started.append(name)
        machine = ThreadMachine(setup, place, name, self._lost)
        self.machines.append(machine)
        return machine

    def share(self, value: Any) -> Any:
        return pickle.dumps(value)

    def wait(self, calls: Sequence[Call], timeout_s: float | None = None) -> Sequence[Call]:
        by_future = {call.future: call for call in calls if isinstance(call, _Call)}
        done, _ = wait(by_future, timeout_s, FIRST_COMPLETED)
        return [by_future[future] for future in done]

    def close(self) -> None:
        for machine in self.machines:
            machine._pool.shutdown(wait=False)
