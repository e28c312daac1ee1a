"""Native training with a task's own loss gives what the task's loop in torch gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedveil.compiled.own_loss import OwnLossTrainer
from fedveil.entropy import Seeded
from fedveil.learning.learning_task import Task, own_steps
from fedveil.learning.losses import OWN
from fedveil.learning.task_trainer import TaskTrainer
from fedveil.learning.token_layers import Positions
from fedveil.learning.trainer import ClientData, TrainingPlan
from fedveil.learning.weight_layout import Layout


class Huber(Task):
    targets = "numbers"

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return functional.huber_loss(outputs, targets, delta=0.3)


class Noised(Task):
    """A loss that changes its outputs in place and draws from torch's generator."""

    targets = "class"

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        outputs += 0.5 * torch.randn_like(outputs)
        return functional.multi_margin_loss(outputs, targets)


class Smoothed(Task):
    targets = "tokens"

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return functional.cross_entropy(outputs.transpose(1, 2), targets, label_smoothing=0.2)


class Angry(Huber):
    """Raises an error in a batch that holds a target above 90."""

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        if targets.max() > 90:
            raise ArithmeticError("above 90")
        return super().loss(outputs, targets)


class Counted(Huber):
    calls = 0

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        self.calls += 1
        raise ArithmeticError(f"call {self.calls}")


class Stopped(Huber):
    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        raise KeyboardInterrupt


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4)
    )


def tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 8), Positions(7, 8), nn.Linear(8, 16))


def client(model: str, seed: int, count: int = 13) -> ClientData:
    draw = np.random.default_rng(seed)
    if model == "tokens":
        lines = draw.integers(0, 11, (count, 8))
        x, y = np.ascontiguousarray(lines[:, :-1]), np.ascontiguousarray(lines[:, 1:])
    elif model == "images":
        x = draw.normal(size=(count, 2, 7, 9)).astype(np.float32)
        y = draw.integers(0, 4, count)
    else:
        x = draw.normal(size=(count, 5)).astype(np.float32)
        y = draw.normal(size=(count, 3)).astype(np.float32)
    return ClientData.of(x, y, Seeded(seed, "own loss"))


MODELS = {"dense": (dense, Huber), "images": (images, Noised), "tokens": (tokens, Smoothed)}


def plan(**change: Any) -> TrainingPlan:
    usual = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    return TrainingPlan(epochs=2, batch_size=5, loss=OWN, **(usual | change))


def updates(trainer: Any, model: nn.Module, clients: list[ClientData]) -> np.ndarray:
    trainer.start(Layout(model).vector())
    rows = []
    for each in clients:
        ((row, failures),) = trainer.train([each])
        assert failures == [None]
        rows.append(row[0].copy())
    return np.array(rows)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.3},
        {"lr": 0.3, "weight_decay": 0.05},
        {"lr": 0.1, "momentum": 0.7, "weight_decay": 0.02},
        {"lr": 0.02, "optimizer": "adam"},
        {"lr": 0.2, "proximal": 0.4, "gradient_norm": 0.5},
    ],
    ids=["sgd", "decay", "momentum", "adam", "proximal"],
)
def test_it_is_the_tasks_own_loop(model: str, change: dict[str, Any]) -> None:
    make, task = MODELS[model]
    torch.manual_seed(3)
    net = make()
    settings = plan(**change)
    clients = [client(model, seed, count) for seed, count in ((1, 13), (2, 4), (3, 13))]
    native = OwnLossTrainer.of(net, settings, clients[0].x.shape[1:], task())
    assert native is not None
    loop = updates(TaskTrainer(make(), settings, task()), net, clients)
    found = updates(native, net, clients)
    assert abs(loop).max() > 1e-2
    np.testing.assert_allclose(found, loop, atol=2e-5 if "optimizer" in change else 3e-6)


def test_an_error_of_the_loss_is_that_clients_alone() -> None:
    net = dense()
    good, bad = client("dense", 1), client("dense", 2)
    bad.y[7, 1] = 91
    trainer = OwnLossTrainer.of(net, plan(), (5,), Angry())
    assert trainer is not None
    before = updates(trainer, net, [good])
    ((_, (failure,)),) = trainer.train([bad])
    assert isinstance(failure, ArithmeticError)
    assert str(failure) == "above 90"
    np.testing.assert_array_equal(updates(trainer, net, [good]), before)


def test_a_loss_that_has_failed_is_not_called_again() -> None:
    """The first error is the client's, whatever a later batch would raise."""
    net, task = dense(), Counted()
    trainer = OwnLossTrainer.of(net, plan(), (5,), task)
    assert trainer is not None
    trainer.start(Layout(net).vector())
    ((_, (failure,)),) = trainer.train([client("dense", 1)])
    assert (str(failure), task.calls) == ("call 1", 1)


def test_it_is_compiled_ahead_without_a_call_of_the_loss() -> None:
    net, task = dense(), Counted()
    trainer, other = (OwnLossTrainer.of(net, plan(), (5,), each) for each in (task, Huber()))
    assert trainer is not None
    assert other is not None
    assert trainer.compile((5,))
    assert not trainer.compile((7,))
    assert task.calls == 0
    expected = updates(other, net, [client("dense", 1)])
    assert other.compile((5,))
    np.testing.assert_array_equal(updates(other, net, [client("dense", 1)]), expected)


def test_it_is_not_run_by_two_threads() -> None:
    trainer = OwnLossTrainer.of(dense(), plan(), (5,), Huber())
    assert trainer is not None
    with pytest.raises(NotImplementedError):
        trainer.for_another_thread()


def test_ctrl_c_in_a_loss_ends_the_training() -> None:
    net = dense()
    trainer = OwnLossTrainer.of(net, plan(), (5,), Stopped())
    assert trainer is not None
    trainer.start(Layout(net).vector())
    with pytest.raises(KeyboardInterrupt):
        list(trainer.train([client("dense", 1)]))


@pytest.mark.parametrize("part", ["collate", "forward", "optimizer", "train"])
def test_a_task_with_another_part_of_its_own_keeps_its_loop(part: str) -> None:
    other = type("Other", (Huber,), {part: lambda self, *arguments: None})
    assert own_steps(Huber()) == []
    assert own_steps(other()) == [part]


def test_a_client_that_native_code_cannot_read_is_the_tasks_own_loops() -> None:
    torch.manual_seed(3)
    net, odd = dense(), client("dense", 2, 9)
    odd.x[4, 1] = 1e20
    trainers = (
        OwnLossTrainer.of(dense(), plan(), (5,), Huber()),
        TaskTrainer(dense(), plan(), Huber()),
    )
    cohort = [odd, client("dense", 1, 7)]
    found, wanted = (updates(trainer, net, cohort) for trainer in trainers)
    np.testing.assert_array_equal(found[0], wanted[0])
    assert abs(found[0]).max() > 1e-2
    np.testing.assert_allclose(found[1], wanted[1], atol=3e-6)
