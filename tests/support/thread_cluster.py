"""A cluster whose machines are threads of this process, and that can lose any of them.

A machine runs the real program (`Machine`). What travels to it and back is pickled.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from fedveil.engine.cluster.cluster import Call, Cluster, MachineLost, Place, Remote
from fedveil.engine.cluster.machine import Machine

#: Real machines share no generator of torch's, which makes a model's initial weights.
_ONE = threading.Lock()


Plan = Callable[[str, str, int], bool]


def _never(name: str, method: str, number: int) -> bool:
    return False


class _Call(Call):
    def __init__(self, future: Future[bytes]) -> None:
        self.future = future

    def result(self) -> Any:
        return pickle.loads(self.future.result())


class ThreadMachine(Remote):
    """A machine of `cluster`, which decides before each call whether the machine is lost."""

    def __init__(self, cluster: ThreadCluster, setup: bytes, place: Place, name: str) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.name = name
        self._machine: Machine | None = None
        self._cluster, self._setup, self._place = cluster, setup, place
        self._calls = 0
        self._dead = False
        self._stopped, self._ended = False, threading.Event()

    def clients(self) -> set[int]:
        """Return the clients whose examples the machine holds."""
        return set() if self._machine is None else set(self._machine._shards.clients())

    def call(self, method: str, *arguments: Any) -> Call:
        sent = [a if isinstance(a, bytes) else pickle.dumps(a) for a in arguments]
        return _Call(self.pool.submit(self._run, method, sent))

    def pulse(self) -> Call:
        sign: Future[bytes] = Future()
        if not self._stopped:
            sign.set_result(pickle.dumps(None))
        return _Call(sign)

    def end(self) -> None:
        self._dead = True
        self._ended.set()

    def _run(self, method: str, sent: Sequence[bytes]) -> bytes:
        self._calls += 1
        if self._cluster.stopped(self.name, method, self._calls):
            self._stopped = True
            self._ended.wait()
        if self._dead or self._cluster.lost(self.name, method, self._calls):
            self._dead = True
            raise MachineLost("the test lost it")
        with _ONE:
            if self._machine is None:
                self._machine = Machine(pickle.loads(self._setup), self.name, self._place.cores)
            result = getattr(self._machine, method)(*map(pickle.loads, sent))
        change = self._cluster.changes.get((self.name, method))
        result = result if change is None else change(result)
        return pickle.dumps(result, protocol=5)


class ThreadCluster(Cluster):
    """A cluster with machines of these numbers of cores.

    `lost` is called with a machine's name, a method and the number of the machine's call. If it
    returns True, the machine is lost. A machine that is `stopped` likewise does nothing until it is
    ended.
    """

    name = "the cluster of threads"

    def __init__(self, *cores: int, lost: Plan = _never, stopped: Plan = _never) -> None:
        self.cores, self.lost, self.stopped = list(cores), lost, stopped
        self.started: list[str] = []
        self.changes: dict[tuple[str, str], Callable[[Any], Any]] = {}
        self.machines: list[ThreadMachine] = []

    def change(self, name: str, method: str, change: Callable[[Any], Any]) -> None:
        """Change what the machine `name` returns from `method`."""
        self.changes[name, method] = change

    def places(self) -> Sequence[Place]:
        return [Place(f"p{i}", f"m{i}", cores) for i, cores in enumerate(self.cores) if cores]

    def start(self, place: Place, setup: Any, name: str) -> Remote:
        self.started.append(name)
        machine = ThreadMachine(self, setup, place, name)
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
            machine.pool.shutdown(wait=False)
