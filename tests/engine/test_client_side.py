"""A simulated client's side: its examples, and what its report draws from."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_simulation import job

import parts
from fedveil.base import reused_memory
from fedveil.engine.assembly import ModelShape, make_client_side, make_protection
from fedveil.engine.executors.client_side import (
    ClientsData,
    ClientSide,
    LocalTraining,
    Made,
    Trained,
)
from fedveil.engine.executors.in_process import InProcess
from fedveil.engine.executors.threads import Threads
from fedveil.entropy import Secure, Seeded
from fedveil.errors import ClientWithheld
from fedveil.learning.trainer import ClientData
from fedveil.protections.base import ClientContext, JobContext, RoundContext
from fedveil.rounds.outcomes import Effort, Failed, Withheld
from round_parts import ROUND, server_half

CLIENTS = range(2)


def test_no_two_reports_have_the_same_noise() -> None:
    """The clients have the same examples and learn almost nothing, so only their noise differs."""
    settings = job(
        model="parts:linear",
        protection={"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 0.1}},
        training={"lr": 1e-9, "batch_size": 1000},
        clients={"number": len(CLIENTS), "fraction": 1.0},
    )
    mine = parts.one_clients_data()
    x, y = mine["x_train"], mine["y_train"]
    own = np.arange(len(x))
    data = ClientsData(x, y, np.tile(own, 2), np.array([0, len(x), 2 * len(x)]))
    dimension = parts.FEATURES * parts.CLASSES + parts.CLASSES
    weights = np.zeros(dimension, np.float32)
    shape = ModelShape((parts.FEATURES,), parts.CLASSES)
    side = make_client_side(settings, shape, data, weights)
    made = make_protection(settings, dimension)
    reports = []
    for number in (1, 2):
        side.open(number)
        opening = server_half(made, CLIENTS, weights, number=number).opening()
        for answer in side.answers(dict.fromkeys(CLIENTS, opening)):
            assert isinstance(answer, Made)
            half = server_half(made, [answer.client], weights, number=number)
            half.receive(answer.client, answer.message)
            reports.append(half.aggregate().update)
    failed = side.answer(0, opening, Failed(0, "ValueError: no", effort=Effort(2.5)))
    assert isinstance(failed, Made)  # it reports an update of zero
    assert (failed.effort.training_s, failed.effort.unusable) == (2.5, "ValueError: no")
    assert failed.effort.raised
    endless = side.answer(1, opening, Trained(1, np.full(dimension, np.nan, np.float32)))
    assert isinstance(endless, Made)
    assert endless.effort.unusable is not None
    assert not endless.effort.raised  # it was trained, so the round is not hopeless
    deviation = np.std(reports)
    for one, other in combinations(reports, 2):
        assert np.std(one - other) > 0.5 * deviation


def test_a_client_whose_training_failed_sends_an_update_of_zero_from_its_own_half() -> None:
    """A half that forgot its first phase would have another secret, and would be rejected."""
    made: Any = parts.TwoPhases(
        parts.TwoPhasesSettings(factor=2.0), JobContext("equal", 5, clients_per_round=2, rounds=3)
    )
    made.always_reports = True
    training: Any = SimpleNamespace(examples=lambda client: 4, keeps=False, open=lambda *_: None)
    weights = np.zeros(5, np.float32)
    side, server = ClientSide(made, training, weights, Secure()), server_half(made, [3, 8], weights)
    side.open(ROUND)
    greeting = side.answer(3, server.opening(), None)
    assert isinstance(greeting, Made)
    server.receive(3, greeting.message)
    told = server.advance()[3]
    sent = side.answer(3, told, Failed(3, "ValueError: no", effort=Effort(1.25)))
    assert isinstance(sent, Made)
    assert sent.message["update"].tolist() == [0] * 5  # type: ignore[union-attr]
    assert sent.effort.unusable == "ValueError: no"
    server.receive(3, sent.message)


def test_examples_that_nobody_changes_are_read_where_they_lie_together() -> None:
    x, y = np.zeros((10, 2), np.float32), np.arange(10)
    rows = np.array([2, 3, 4, 0, 5, 1, 6, 8, 7, 9])
    data = ClientsData(x, y, rows, np.array([0, 3, 6, 6, 10]))
    together, apart, nobody, mixed = (data.of(c, Seeded(0), unchanged=True) for c in range(4))
    assert mixed.y.tolist() == [6, 8, 7, 9]  # as far apart as a run of four
    assert np.shares_memory(together.x.numpy(), x)
    assert not np.shares_memory(data.of(0, Seeded(0)).x.numpy(), x)
    assert not np.shares_memory(apart.x.numpy(), x)
    small = ClientsData(x.astype(np.uint8), y, data.indices, data.offsets)
    assert small.of(0, Seeded(0), unchanged=True).x.dtype == torch.float32
    assert [part.y.tolist() for part in (together, apart, nobody)] == [[2, 3, 4], [0, 5, 1], []]


def test_the_data_of_one_client_are_its_own_and_know_what_is_usable() -> None:
    x, usable = np.arange(12.0, dtype=np.float32).reshape(6, 2), np.array([0, 1, 1, 0, 1, 1], bool)
    data = ClientsData(
        x, np.arange(6), np.array([2, 5, 3, 0, 4, 1]), np.array([0, 2, 5, 6]), usable
    )
    own = data.only(1)
    assert [own.examples(client) for client in range(2)] == [0, 3]
    for held in (data, own):
        found = held.of(1, Seeded(0))
        assert (found.y.tolist(), found.x[:, 0].tolist()) == ([3, 0, 4], [6, 0, 8])
        assert found.usable is not None
        assert found.usable.tolist() == [False, False, True]
    assert set(data.arrays()) == {"x", "y", "indices", "offsets", "usable"}


class Warning2:
    """A trainer of two clients at once, which warns. It fails for a client with one example."""

    chunk, least, native = 2, 1, False

    def train(self, clients: Sequence[ClientData]) -> Iterator[Any]:
        warnings.warn(f"of {len(clients)}", RuntimeWarning, stacklevel=1)
        failures = [ValueError("few") if len(client) == 1 else None for client in clients]
        yield np.full((len(clients), 3), 8, np.float32), failures


def test_each_update_has_its_own_scale_and_the_warnings_of_its_group() -> None:
    x, y = np.zeros((9, 2), np.float32), np.zeros(9, np.int64)
    data = ClientsData(x, y, np.arange(9), np.array([0, 4, 5, 7, 9]))
    trainer: Any = Warning2()
    training = LocalTraining(trainer, data, Seeded(0), lambda examples: 1 / examples)
    found = [
        (answer.client, answer.update.tolist() if isinstance(answer, Trained) else answer.reason,
         answer.effort.warnings)
        for answer in training.updates([2, 1, 0])
        if isinstance(answer, Trained | Failed)
    ]  # fmt: skip
    assert found == [
        (2, [4, 4, 4], ["RuntimeWarning: of 2"]),
        (1, "ValueError: few", []),
        (0, [2, 2, 2], ["RuntimeWarning: of 1"]),
    ]


class Counting:
    """A client's side of a protection without training. It withholds its third answer."""

    def __init__(self, context: Any) -> None:
        self.context, self.asked = context, 0

    def wants_update(self, message: object) -> bool:
        return False

    def respond(self, message: object, update: object) -> dict[str, int]:
        self.asked += 1
        if self.asked == 3:
            raise ClientWithheld("not a third time")
        return {"round": self.context.round, "asked": self.asked}


def test_a_client_keeps_its_side_within_a_round_and_has_a_new_one_in_the_next() -> None:
    protection: Any = SimpleNamespace(dimension=3, client_round=Counting)
    training: Any = SimpleNamespace(
        open=lambda round, model: None, examples=lambda client: 5, updates=lambda clients: iter(())
    )
    side = ClientSide(protection, training, np.zeros(3, np.float32), Seeded(2))
    for round in (4, 5):
        side.open(round)
        for asked in (1, 2):
            (answer,) = side.answers({7: {}})
            assert isinstance(answer, Made)
            assert answer.message == {"round": round, "asked": asked}
        (withheld,) = side.answers({7: {}})
        assert isinstance(withheld, Withheld)
        assert (withheld.client, withheld.reason) == (7, "not a third time")


def test_the_clients_of_a_round_share_one_view_of_the_model_that_ends_at_the_weights() -> None:
    """By it a secure sum knows that it has the digest already."""
    models: dict[int, list[Any]] = {4: [], 5: []}

    def client_round(context: ClientContext) -> Any:
        models[context.round].append(context.model)
        return Counting(context)

    protection: Any = SimpleNamespace(dimension=3, client_round=client_round)
    training: Any = SimpleNamespace(
        open=lambda round, model: None, examples=lambda client: 5, updates=lambda clients: iter(())
    )
    side = ClientSide(protection, training, np.arange(5, dtype=np.float32), Seeded(2))
    for round in models:
        side.model = np.arange(5, dtype=np.float32) + round
        side.open(round)
        assert len(list(side.answers({7: {}, 8: {}, 9: {}}))) == 3
        assert len({id(model) for model in models[round]}) == 1
        assert models[round][0].tolist() == [round, round + 1, round + 2]


class Doubling(Warning2):
    """A trainer that changes the examples which it gets."""

    def train(self, clients: Sequence[ClientData]) -> Iterator[Any]:
        for client in clients:
            client.x.mul_(2)
        yield np.zeros((len(clients), 3), np.float32), [None] * len(clients)


@pytest.mark.parametrize("native", [False, True])
def test_only_a_native_trainer_reads_examples_without_a_copy(native: bool) -> None:
    """It promises to leave them unchanged."""
    x = np.ones((5, 2), np.float32)
    data = ClientsData(x, np.zeros(5, np.int64), np.arange(5), np.array([0, 2, 5]))
    trainer: Any = Doubling()
    trainer.native = native
    assert len(list(LocalTraining(trainer, data, Seeded(0)).updates([1]))) == 1
    assert x[:, 0].tolist() == [1, 1, *([2, 2, 2] if native else [1, 1, 1])]


@pytest.mark.parametrize("phase", [1, 2])
def test_threads_ask_no_more_clients_once_nobody_takes_the_answers(phase: int) -> None:
    """In the second phase, each thread has clients that only it can serve."""
    asked, slow = list[Any](), threading.Event()

    class Slowly(Counting):
        def respond(self, message: object, update: object) -> dict[str, int]:
            asked.append(message)
            if slow.is_set():
                time.sleep(0.3)  # the answers are then delivered one by one
            return {"n": 1}

    protection: Any = SimpleNamespace(dimension=3, client_round=Slowly)
    training: Any = SimpleNamespace(
        open=lambda round, model: None, examples=lambda client: 5, updates=lambda clients: iter(())
    )
    side = ClientSide(protection, training, np.zeros(3, np.float32), Seeded(2))
    threads = Threads([side])
    try:
        threads.open(RoundContext([], 1, np.zeros(3, np.float32)))
        for _ in range(1, phase):
            assert len(list(threads.ask("keys", {client: {} for client in range(24)}))) == 24
        asked.clear()
        slow.set()
        answers = threads.ask("tell", {client: {} for client in range(24)})
        next(answers)
        answers.close()  # type: ignore[attr-defined]
        assert len(asked) < 12
    finally:
        threads.close()


def test_an_executor_that_is_closed_leaves_the_process_as_it_was() -> None:
    """Its arrays are freed, and garbage collections look through all objects again."""
    protection: Any = SimpleNamespace(dimension=3, plain_reports=False)
    training: Any = SimpleNamespace(keeps=False)
    side = ClientSide(protection, training, np.zeros(3, np.float32), Seeded(2))
    users = reused_memory._users
    alone = InProcess(side, cores=1)
    assert reused_memory._users == users + 1
    alone.close()
    assert reused_memory._users == users
    threads = Threads([side])
    assert gc.get_freeze_count() > 0
    threads.close()
    unfrozen = gc.get_freeze_count() == 0
    gc.freeze()  # as it is in all tests
    assert unfrozen
