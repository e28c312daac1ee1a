"""The pool of workers: how many clients each gets at a time, and how a worker's end is named."""

from __future__ import annotations

import signal
import subprocess
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from fedveil.base.message import decode
from fedveil.engine.executors.pool import WorkerPool, _Worker


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
