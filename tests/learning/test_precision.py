"""Mixed precision: passes in 16 bits, everything that is kept between them in 32."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import fedveil
from fedveil.learning.learning_task import Classification
from fedveil.learning.precision import computing
from fedveil.learning.task_trainer import TaskTrainer, on_device
from fedveil.learning.trainer import LoopTrainer, Trainer, TrainingPlan
from fedveil.learning.vmap_trainer import VmapTrainer
from fedveil.learning.weight_layout import Layout
from training_parts import by_torch, clients, plan, train

Engine = Callable[[nn.Module, TrainingPlan, str], Trainer]


def by_task(model: nn.Module, plan: TrainingPlan, device: str) -> Trainer:
    return TaskTrainer(model, plan, Classification(), device)


ENGINES = pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer, by_task])
DEVICES = pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no such device here"
    ))],
)  # fmt: skip
PLANS = [
    plan(precision="bfloat16"),
    plan(precision="bfloat16", momentum=0.9, weight_decay=0.01),
    plan(precision="bfloat16", optimizer="adamw", lr=0.01, gradient_norm=0.3),
]


class Seen(nn.Module):
    """Notes the type of what comes along."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kinds.append(x.dtype)
        return x


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()),
        *(nn.Linear(64, 8), Seen(), nn.Tanh(), nn.Linear(8, 3)),
    )


@ENGINES
@DEVICES
@pytest.mark.parametrize("plan", PLANS)
def test_every_engine_trains_as_torch_does_under_autocast(
    engine: Engine, device: str, plan: TrainingPlan
) -> None:
    cohort = clients((1, 6, 6), 3, (10, 4, 1))
    updates = train(engine(net(), plan, device), net(), cohort)
    assert updates.dtype == np.float32
    # Adam makes whole steps of gradients that are nothing but rounding.
    near = 0.03 if plan.optimizer == "sgd" else 0.1
    for client, update in zip(cohort, updates, strict=True):
        other = by_torch(net(), plan, client)
        assert np.linalg.norm(update - other) < near * np.linalg.norm(other)


@ENGINES
@DEVICES
def test_passes_are_of_16_bits_and_losses_of_32(engine: Engine, device: str) -> None:
    model = net()
    trainer = engine(model, plan(precision="bfloat16"), device)
    exact = train(engine(net(), plan(), device), net(), clients((1, 6, 6), 3, (8,)))
    mixed = train(trainer, net(), clients((1, 6, 6), 3, (8,)))
    assert set(model[5].kinds) == {torch.bfloat16}
    assert 0 < np.linalg.norm(mixed - exact) < 0.05 * np.linalg.norm(exact)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    outputs = computing(model, "bfloat16", torch.device(device))(
        torch.zeros(2, 1, 6, 6, device=device)
    )
    assert outputs.dtype == torch.float32


@ENGINES
def test_steps_smaller_than_16_bits_are_not_lost(engine: Engine) -> None:
    """Weights of 1 have neighbours 1/128 away in bfloat16; hundreds of steps are a tenth of it."""
    model = nn.Linear(6, 3)
    nn.init.ones_(model.weight)
    tiny = plan(precision="bfloat16", lr=1e-5, epochs=20)
    (update,) = train(engine(copy.deepcopy(model), tiny, "cpu"), model, clients((6,), 3, (10,)))
    other = by_torch(model, tiny, clients((6,), 3, (10,))[0])
    assert 0 < np.abs(update).max() < 1e-3
    np.testing.assert_allclose(update, other, atol=0.05 * np.abs(other).max())


def test_what_a_model_gives_is_float32_in_whatever_it_lies() -> None:
    half = torch.zeros(2, dtype=torch.bfloat16)
    given = {"a": half, "b": [half, torch.zeros(2, dtype=torch.int64)], "c": "word"}
    told = computing(lambda: given, "bfloat16", torch.device("cpu"))()
    assert told["a"].dtype == told["b"][0].dtype == torch.float32
    assert told["b"][1].dtype == torch.int64
    assert told["c"] == "word"


class Outputs(NamedTuple):
    scores: torch.Tensor
    states: list[torch.Tensor]


def test_a_named_tuple_keeps_its_names_and_goes_to_the_device() -> None:
    """It may be a model's outputs, or the inputs or targets of a user's own batch."""
    half = torch.zeros(2, dtype=torch.bfloat16)
    told = computing(lambda: Outputs(half, [half]), "bfloat16", torch.device("cpu"))()
    assert told.scores.dtype == told.states[0].dtype == torch.float32
    moved = on_device(Outputs(half, [half, half]), "meta")
    assert isinstance(moved, Outputs)
    assert isinstance(moved.states, list)
    assert moved.scores.is_meta
    assert moved.states[1].is_meta


def test_a_job_says_it_and_the_record_who_trained() -> None:
    small = {
        "rounds": 2, "clients": {"number": 4, "fraction": 1.0}, "model": "mlp",
        "data": {"name": "digits"}, "simulation": {"workers": 0},
    }  # fmt: skip
    exact, mixed = (
        fedveil.simulate(fedveil.Job(**small, training={"epochs": 1, "precision": precision}))
        for precision in ("float32", "bfloat16")
    )
    assert (exact.metrics[-1]["trainer"], mixed.metrics[-1]["trainer"]) == ("compiled", "loop")
    assert mixed.metrics[-1]["loss"] != exact.metrics[-1]["loss"]
    assert mixed.metrics[-1]["loss"] == pytest.approx(exact.metrics[-1]["loss"], rel=0.02)
    assert Layout(mixed.model).vector().dtype == np.float32
