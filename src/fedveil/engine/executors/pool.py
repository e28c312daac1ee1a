"""A pool of worker processes that train a round's clients.

A worker is a separate program (the default), or a fork of the calling process, with all code
already imported and compiled. A worker ends when the calling process ends or is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.message import Message, encode
from fedveil.engine.assembly import ModelShape
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.reports import merge_sums
from fedveil.engine.executors.shared_block import SharedBlock, Span
from fedveil.errors import RunStopped, WorkerDied
from fedveil.federated.job import Job
from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import MergeableHalf
from fedveil.rounds.outcomes import Answer, ClientId, Report

#: Serves as a worker, through the pipe with this descriptor.
Serve = Callable[[int], None]

#: Bytes for reports in one slot. A larger report is sent through the pipe.
_SLOT_BYTES = 4 << 20
#: One thread per worker. Memory freed by a training step is reused by the next step, instead of
#: being returned to the system and faulted in again page by page.
_WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
#: Bytes per model entry for a worker's running sums. Larger sums are sent through the pipe.
_SUM_BYTES = 8
_NO_MODEL = np.empty(0, np.float32)
#: A worker writes reports into one slot while the calling process reads the other.
_SLOTS = 2
#: A worker gets at most 1 / (_GUIDE * workers) of the remaining clients, so that all finish
#: together.
_GUIDE = 4
_MAX_CHUNK = 8


@dataclass
class InSlot(Answer):
    """A report that a worker wrote into its shared memory, at the bytes `begin` to `end`."""

    begin: int
    end: int


@dataclass
class WorkerSetup:
    """The first message to a worker.

    `data` and `exchange` are two blocks of shared memory, each given as its descriptor and the
    positions of its arrays. `data` holds the clients' examples, and `exchange` the global weights
    and the space for reports. `own` holds the user's own functions and classes, pickled. `run` is
    the run's folder, `number` the worker's number.
    """

    job: Job
    data: tuple[int, dict[str, Span]]
    exchange: tuple[int, dict[str, Span]]
    import_path: list[str]
    shape: ModelShape
    own: bytes
    run: Path
    number: int = 0


class _Fork:
    """A worker that is a fork of the calling process. It calls `serve` with its pipe `descriptor`.

    `others` are the calling process's ends of the pipes. The worker first closes its copies of
    them.
    """

    def __init__(self, serve: Serve, descriptor: int, others: Sequence[Connection]) -> None:
        def run() -> None:
            for connection in others:
                connection.close()
            serve(descriptor)

        self._process = get_context("fork").Process(target=run, daemon=True)
        self._process.start()
        self.kill = self._process.kill

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0)
        return self._process.exitcode


def _program(descriptor: int, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fedveil.engine.executors.worker", str(descriptor)],
        pass_fds=[descriptor, *descriptors],
        env={**os.environ, **_WORKER_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        process_group=0,  # the calling process handles Ctrl-C
    )


class _Worker:
    def __init__(
        self,
        number: int,
        descriptors: Sequence[int],
        serve: Serve | None,
        earlier: Sequence[_Worker],
    ) -> None:
        self.number = number
        self.connection, theirs = Pipe()
        self._process: subprocess.Popen[bytes] | _Fork
        if serve is None:
            self._process = _program(theirs.fileno(), descriptors)
        else:
            ours = [self.connection, *(worker.connection for worker in earlier)]
            self._process = _Fork(serve, theirs.fileno(), ours)
        theirs.close()
        self.free = list(range(_SLOTS))
        self.mine: deque[tuple[ClientId, bytes | None]] = deque()

    def send(self, what: tuple[Any, ...]) -> None:
        try:
            self.connection.send(what)
        except OSError:
            raise self.death() from None

    def receive(self) -> tuple[Any, ...]:
        try:
            message: tuple[Any, ...] = self.connection.recv()
        except (EOFError, OSError):
            raise self.death() from None
        if message[0] == "error":
            raise message[1]
        return message

    def death(self) -> WorkerDied:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return WorkerDied(f"worker {self.number} closed its pipe but does not exit")
        if code >= 0:
            how = f"exited with status {code}"
        else:
            how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += ", probably because the machine ran out of memory"
        return WorkerDied(f"worker {self.number} {how}")

    def close(self) -> None:
        self.connection.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class WorkerPool(Executor):
    """Trains clients in worker processes.

    `workers` is the number of processes, and `data` the examples of all clients. `dimension` is the
    length of the vector that the server sends to each client: the weights and any further entries.
    If `serve` is given, workers are forks of this process that call `serve`. Otherwise they are
    separate programs.
    """

    def __init__(
        self, workers: int, dimension: int, data: ClientsData, serve: Serve | None = None
    ) -> None:
        report = 4 * dimension + 256
        self._capacity = max(1, min(_MAX_CHUNK, _SLOT_BYTES // report))
        slots = (workers, _SLOTS, self._capacity * report)
        self._workers: list[_Worker] = []
        made = list[SharedBlock]()
        try:
            self._data = SharedBlock.of(data.arrays())
            made.append(self._data)
            self._exchange = SharedBlock.allocate(
                {
                    "model": (np.float32, (dimension,)),
                    "slots": (np.uint8, slots),
                    "sums": (np.uint8, (workers, _SUM_BYTES * dimension)),
                }
            )
            made.append(self._exchange)
            blocks = (self._data.descriptor, self._exchange.descriptor)
            for number in range(workers):
                self._workers.append(_Worker(number, blocks, serve, self._workers))
        except OSError as error:
            for worker in self._workers:
                worker.close()
            for block in made:
                block.close()
            raise RunStopped(f"the worker processes cannot be started: {error}") from error
        self._owner: dict[ClientId, _Worker] = {}
        self._least = 1

    def start(
        self,
        job: Job,
        shape: ModelShape,
        run: Path,
        own: bytes = b"",
        ready: Callable[[int, int], None] = lambda workers, of: None,
    ) -> None:
        """Send each worker its setup, and wait until all workers are ready.

        `run` is the run's folder, and `own` holds the user's own functions and classes, pickled.
        `ready` is called with the number of ready workers and of all workers.
        """
        setup = WorkerSetup(
            job=job,
            data=(self._data.descriptor, self._data.spans),
            exchange=(self._exchange.descriptor, self._exchange.spans),
            import_path=sys.path,
            shape=shape,
            own=own,
            run=run,
        )
        for worker in self._workers:
            worker.send(("setup", replace(setup, number=worker.number)))
        for number, worker in enumerate(self._workers, 1):
            self._least = worker.receive()[1]
            ready(number, len(self._workers))
        self._capacity = max(self._capacity, self._least)

    def open(self, context: RoundContext) -> None:
        self._exchange.array("model")[:] = context.sent
        self._owner.clear()
        for worker in self._workers:
            worker.send(("open", replace(context, model=_NO_MODEL, whole=None)))

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """Send the messages of `phase` to the clients. Yields the answers as they arrive.

        A client is served by one worker for a whole round.
        """
        return self._answers("ask", messages)

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        """Send the messages of `phase` to the clients, and add their reports to a sum.

        `server` has the sum. Yields `Folded` for each report, or `Refused` if the report is
        invalid. Yields all other answers unchanged.
        """
        yield from self._answers("fold", messages)
        for worker in self._workers:
            worker.send(("sums",))
        for worker in self._workers:
            _, pickled, places = worker.receive()
            merge_sums(server, pickled, places, self._exchange.array("sums")[worker.number])

    def _answers(self, word: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        shared = self._say_common(messages)
        anyone: deque[tuple[ClientId, bytes | None]] = deque()
        for client, message in messages.items():
            item = (client, None if shared else encode(message))
            owner = self._owner.get(client)
            (anyone if owner is None else owner.mine).append(item)
        waiting = len(messages)
        by_connection: dict[Any, _Worker] = {w.connection: w for w in self._workers}
        while waiting:
            for worker in self._workers:
                self._dispatch(word, worker, anyone)
            for connection in wait(list(by_connection)):
                worker = by_connection[connection]
                _, slot, answers = worker.receive()
                reports = self._exchange.array("slots")[worker.number, slot]
                for answer in answers:
                    if isinstance(answer, InSlot):
                        view = reports[answer.begin : answer.end]
                        yield Report(answer.client, view.data, effort=answer.effort)
                    else:
                        yield answer
                worker.free.append(slot)
                waiting -= len(answers)

    def _say_common(self, messages: Mapping[ClientId, Message]) -> bool:
        """Send a message once to each worker, if all clients get the same one. Returns True then.

        If the clients' messages differ, sends nothing and returns False.
        """
        first = next(iter(messages.values()), None)
        if first is None or any(message is not first for message in messages.values()):
            return False
        encoded = encode(first)
        for worker in self._workers:
            worker.send(("say", encoded))
        return True

    def _dispatch(
        self, word: str, worker: _Worker, anyone: deque[tuple[ClientId, bytes | None]]
    ) -> None:
        while worker.free and (worker.mine or anyone):
            queue = worker.mine or anyone
            guided = len(queue) // (1 if queue is worker.mine else _GUIDE * len(self._workers))
            # Reports that the worker folds take no space in a slot.
            room = max(_MAX_CHUNK, self._least) if word == "fold" else self._capacity
            size = min(max(guided, self._least), room, len(queue))
            items = [queue.popleft() for _ in range(size)]
            for client, _ in items:
                self._owner[client] = worker
            worker.send((word, worker.free.pop(), items))

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._data.close()
        self._exchange.close()
