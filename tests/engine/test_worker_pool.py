"""The pool of workers: how many clients each gets at a time, and how a worker's end is named."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from fedveil.base.message import decode
from fedveil.engine.assembly import ModelShape
from fedveil.engine.executors import local
from fedveil.engine.executors import pool as pool_module
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.pool import InSlot, WorkerPool, _program, _Worker
from fedveil.engine.executors.shared_block import SharedBlock
from fedveil.engine.executors.worker import _into_slot
from fedveil.errors import RunStopped
from fedveil.federated.job import Job
from fedveil.protections.base import RoundContext
from fedveil.rounds.outcomes import Answer, Effort, Report, Withheld


class Sent:
    """A worker of which only the messages to it are known."""

    def __init__(self) -> None:
        self.free, self.mine, self.sent = [0, 1], deque[Any](), list[Any]()
        self.send = self.sent.append


def pool(workers: int, *, capacity: int = 5, least: int = 1) -> Any:
    made: Any = WorkerPool.__new__(WorkerPool)
    made._workers = [Sent() for _ in range(workers)]
    made._capacity, made._least, made._owner = capacity, least, {}
    return made


@pytest.mark.parametrize(
    ("word", "clients", "capacity", "least", "sizes"),
    [
        ("ask", 60, 9, 1, [5, 4]),  # 60 and 55 of 12 parts
        ("ask", 60, 3, 1, [3, 3]),  # as many as a slot holds
        ("fold", 200, 3, 1, [8, 8]),  # reports that take no place in a slot
        ("fold", 200, 3, 11, [11, 11]),
        ("ask", 40, 20, 11, [11, 11]),  # as many as train together
        ("ask", 13, 20, 11, [11, 2]),
        ("ask", 5, 9, 1, [1, 1]),
    ],
)
def test_a_worker_gets_its_share_of_the_clients_that_wait(
    word: str, clients: int, capacity: int, least: int, sizes: list[int]
) -> None:
    made = pool(3, capacity=capacity, least=least)
    worker, anyone = made._workers[1], deque((client, b"m") for client in range(clients))
    made._dispatch(word, worker, anyone)
    assert [len(items) for _, _, items in worker.sent] == sizes
    assert [(sent[0], sent[1]) for sent in worker.sent] == [(word, 1), (word, 0)]
    assert [client for *_, items in worker.sent for client, _ in items] == list(range(sum(sizes)))
    assert set(made._owner) == set(range(sum(sizes)))
    assert len(anyone) == clients - sum(sizes)
    assert worker.free == []


def test_a_worker_takes_its_own_clients_before_those_that_wait() -> None:
    made = pool(2, capacity=4)
    worker, anyone = made._workers[0], deque([(7, None), (8, None)])
    worker.mine.extend((client, None) for client in (1, 4, 3))
    made._dispatch("ask", worker, anyone)
    assert [[c for c, _ in items] for *_, items in worker.sent] == [[1, 4, 3], [7]]


def test_a_message_that_is_everybodys_is_sent_once_to_each_worker() -> None:
    made, words = pool(2), {"round": 3}
    assert made._say_common(dict.fromkeys(range(4), words))
    for worker in made._workers:
        ((word, encoded),) = worker.sent
        assert (word, decode(encoded)) == ("say", words)
    for messages in ({}, {0: words, 1: {"round": 3}, 2: words}):
        made = pool(2)
        assert not made._say_common(messages)
        assert [worker.sent for worker in made._workers] == [[], []]


def _note(told: list[tuple[int, int]], ready: int, of: int) -> None:
    told.append((ready, of))


def test_workers_begin_with_the_job_and_train_as_many_together_as_the_trainer_needs(
    tmp_path: Path,
) -> None:
    for capacity, most in ((5, 7), (9, 9)):
        made, told = pool(3, capacity=capacity), list[tuple[int, int]]()
        made._data = made._exchange = SimpleNamespace(descriptor=4, spans={})
        for number, worker in enumerate(made._workers):
            worker.number, worker.receive = number, lambda: ("ready", 7)
        shape = ModelShape((6,), 3)
        made.start(Job(seed=9), shape, tmp_path, b"own", partial(_note, told))
        assert (made._least, made._capacity) == (7, most)
        assert told == [(1, 3), (2, 3), (3, 3)]
        setups = [setup for worker in made._workers for _, setup in worker.sent]
        assert [setup.number for setup in setups] == [0, 1, 2]
        assert {(s.job.seed, s.shape, s.own, s.run) for s in setups} == {
            (9, shape, b"own", tmp_path)
        }


def test_a_round_begins_with_its_weights_and_without_owners() -> None:
    made, weights = pool(2), np.zeros(3, np.float32)
    made._exchange = SimpleNamespace(array=lambda name: {"model": weights}[name])
    made._owner = {4: made._workers[1]}
    model = np.arange(3, dtype=np.float32)
    made.open(RoundContext([4, 5], 8, model[:2], whole=model))
    assert (weights.tolist(), made._owner) == ([0, 1, 2], {})
    for worker in made._workers:
        ((word, context),) = worker.sent
        assert (word, context.round, len(context.model), context.whole) == ("open", 8, 0, None)


def test_a_worker_is_a_program_of_one_thread_that_nobody_else_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: started.append((words, how)))
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    _program(3, [5, 7])
    ((words, how),) = started
    assert "-P" in words  # the working folder is no place for modules
    assert (words[-1], how["pass_fds"], how["process_group"]) == ("3", [3, 5, 7], 0)
    assert how["env"]["OMP_NUM_THREADS"] == "1"


def test_reports_that_fit_into_a_slot_are_told_by_their_place() -> None:
    slot = np.zeros(7, np.uint8)
    answers: list[Answer] = [
        Report(4, b"abc", effort=Effort(1.0)), Withheld(2, "no"), Report(9, b"too long"),
        Report(3, b"defg", effort=Effort(2.0)), Report(1, b"h"),
    ]  # fmt: skip
    assert _into_slot(list(answers), slot) == [
        InSlot(4, 0, 3, effort=Effort(1.0)), answers[1], answers[2],
        InSlot(3, 3, 7, effort=Effort(2.0)), answers[4],
    ]  # fmt: skip
    assert slot.tobytes() == b"abcdefg"


@pytest.mark.parametrize("failing", [1, 2])
def test_memory_that_cannot_be_shared_is_one_sentence_and_none_is_kept(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, allocate = list[int](), os.posix_fallocate

    def scarce(descriptor: int, offset: int, size: int) -> None:
        sizes.append(size)
        if len(sizes) == failing:
            raise OSError(28, "No space left on device")
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", scarce)
    data = ClientsData.of_one(0, np.ones((3, 2), np.float32), np.zeros(3, np.int64))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RunStopped, match=r"the worker processes cannot be started: .* No space"):
        WorkerPool(2, 5, data)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("memfd", [True, False])
def test_shared_memory_needs_no_memfd(memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not memfd:
        monkeypatch.delattr(os, "memfd_create")
    arrays = {"x": np.arange(5, dtype=np.int16), "y": np.array([[0.5, 2.0]])}
    block = SharedBlock.of(arrays)
    again = SharedBlock(block.descriptor, block.spans)  # what another process opens
    for name, array in arrays.items():
        np.testing.assert_array_equal(again.array(name), array)
    again._map.close()
    block.close()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (3, "worker 5 exited with status 3"),
        (0, "worker 5 exited with status 0"),
        (-signal.SIGSEGV, "worker 5 was killed by SIGSEGV"),
        (-signal.SIGKILL, "worker 5 was killed by SIGKILL, probably because the machine ran out of "
                          "memory"),
        (None, "worker 5 closed its pipe but does not exit"),
    ],
)  # fmt: skip
def test_the_end_of_a_worker_is_named(code: int | None, sentence: str) -> None:
    def wait(seconds: float) -> int:
        if code is None:
            raise subprocess.TimeoutExpired("worker", seconds)
        return code

    worker = _Worker.__new__(_Worker)
    worker.number, worker._process = 5, SimpleNamespace(wait=wait)  # type: ignore[assignment]
    assert str(worker.death()) == sentence


def test_an_error_of_a_worker_is_raised_here() -> None:
    def connection(answer: Any) -> Any:
        return SimpleNamespace(recv=lambda: answer)

    worker: Any = _Worker.__new__(_Worker)
    worker.connection = connection(("error", KeyError("own")))
    with pytest.raises(KeyError, match="own"):
        worker.receive()
    worker.connection = connection(("answers", 1, []))
    assert worker.receive() == ("answers", 1, [])


def test_an_answer_in_a_slot_keeps_its_bytes_and_its_effort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, reports = pool(1), np.arange(2 * 7, dtype=np.uint8).reshape(1, 2, 7)
    made._exchange = SimpleNamespace(array=lambda name: {"slots": reports}[name])
    monkeypatch.setattr(pool_module, "wait", lambda connections: connections)
    worker, effort = made._workers[0], Effort(1.5)
    answers = [InSlot(4, 2, 5, effort=effort), Withheld(9, "no", effort=Effort(0.25))]
    worker.number, worker.connection = 0, "a pipe"
    worker.receive = lambda: ("answers", 1, answers)
    report, withheld = made.ask("report", {4: {"round": 3}, 9: {"round": 4}})
    assert (report.client, bytes(report.data), report.effort) == (4, bytes([9, 10, 11]), effort)
    assert withheld is answers[1]


def test_workers_that_started_before_one_failed_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def start(number: int, *given: Any) -> Any:
        if number == 2:
            raise OSError(11, "Resource temporarily unavailable")
        return SimpleNamespace(close=lambda: ended.append(number))

    monkeypatch.setattr(pool_module, "_Worker", start)
    data = ClientsData.of_one(0, np.ones((3, 2), np.float32), np.zeros(3, np.int64))
    with pytest.raises(RunStopped, match=r"cannot be started: .* temporarily unavailable"):
        WorkerPool(4, 5, data)
    assert ended == [0, 1]


def started(workers: int | str, cores: int | None = None, clients: int = 4) -> Any:
    job = Job(clients={"number": clients, "fraction": 1.0}, simulation={"workers": workers})
    data = ClientsData.of_one(3, np.ones((3, 2), np.float32), np.zeros(3, np.int64))
    nothing: Any = lambda *_: None  # noqa: E731
    return local.start_locally(
        job, ModelShape((2,), 3), data, 9, Path(), pack=bytes, starting=nothing, event=nothing,
        cores=cores,
    )  # fmt: skip


def test_an_executor_on_this_machine_keeps_to_its_cores_and_a_failed_pool_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    class Broken:
        def __init__(self, workers: int, *given: Any) -> None:
            ended.append(f"{workers} workers")

        def start(self, *given: Any) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            ended.append("closed")

    monkeypatch.setattr(local, "make_client_sides", lambda *_: [])
    monkeypatch.setattr(local, "make_client_side", lambda *_: "a side")
    monkeypatch.setattr(local, "InProcess", lambda side, cores=None: (side, cores))
    monkeypatch.setattr(local, "WorkerPool", Broken)
    assert started(0, cores=3) == ("a side", 3)
    with pytest.raises(KeyboardInterrupt):
        started(2)
    assert ended == ["2 workers", "closed"]


def test_a_machine_of_a_cluster_has_as_many_workers_as_its_cores_and_no_forks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node may have more cores than the machine got."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 6, 7, 9})
    monkeypatch.setattr(local, "WorkerPool", lambda workers, *given: Counted(workers, given[-1]))
    monkeypatch.setattr(local, "Threads", lambda sides: ("threads", sides))
    for sides, kind in (([], Counted(3, None)), (["a side"], ("threads", ["a side"]))):
        monkeypatch.setattr(local, "make_client_sides", lambda *_, sides=sides: sides)
        assert started("auto", cores=3, clients=130) == kind
    assert started("auto", clients=130) == Counted(5, local.serve)


class Counted(NamedTuple):
    """A pool that only knows the number of its workers, and the function that forks call."""

    workers: int
    serve: Any

    def start(self, *given: Any) -> None: ...
