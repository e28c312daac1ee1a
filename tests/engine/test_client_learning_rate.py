"""The clients' learning rate by round."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedveil
import parts
from fedveil.engine.assembly import ModelShape, make_model
from fedveil.engine.client_learning_rate import ScheduledTrainer, client_rate, own_rate
from fedveil.errors import InvalidValue, JobError
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout


def falling(round: int, lr: float) -> float:
    """A schedule of one's own."""
    return lr / round


def warming(round: int, lr: float) -> float:
    """One that begins below the job's rate and ends below it."""
    return {1: lr / 4, 4: lr / 2}.get(round, lr)


def nothing() -> float:
    """One that no client can train with."""
    return 0.0


def boundless(round: int) -> float:
    """One that exceeds all numbers in the second round."""
    return 0.5 if round == 1 else math.inf


def job(**training: Any) -> Job:
    return Job(
        rounds=3,
        clients={"number": 4, "fraction": 1.0},
        data={"name": "parts:data"},
        model="parts:linear",
        training={"epochs": 1, "batch_size": 1000, "lr": 0.5, **training},
        simulation={"workers": 0},
    )


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [0.5, 0.5, 0.5]),
        ({"lr_schedule": "step", "lr_rounds": 2, "lr_factor": 0.5}, [0.5, 0.5, 0.25, 0.25, 0.125]),
        ({"lr_schedule": "cosine", "lr_rounds": 2, "lr_factor": 0.2}, [0.5, 0.3, 0.1, 0.1]),
        ({"lr_schedule": "test_client_learning_rate:falling"}, [0.5, 0.25, 0.5 / 3]),
    ],
)
def test_rates_of_rounds(settings: dict[str, Any], rates: list[float]) -> None:
    found = [client_rate(job(**settings), round) for round in range(1, len(rates) + 1)]
    assert found == pytest.approx(rates)


def test_fedcm_weighs_a_clients_own_gradients() -> None:
    step = {"lr_schedule": "step", "lr_rounds": 2, "lr_factor": 0.5, "own_direction": 0.3}
    assert own_rate(job(algorithm="fedcm", **step), 3) == pytest.approx(0.3 * 0.25)
    assert own_rate(job(**{**step, "own_direction": 0.1}), 3) == 0.25
    cosine = {"lr_schedule": "cosine", "lr_rounds": 4, "lr_factor": 0.2}
    assert client_rate(job(**cosine), 2) == pytest.approx(0.5 * (0.2 + 0.8 * (1 + 0.5**0.5) / 2))


def test_a_rate_that_nobody_can_train_with_is_refused() -> None:
    with pytest.raises(InvalidValue) as told:
        client_rate(job(lr_schedule="test_client_learning_rate:nothing"), 2)
    assert str(told.value) == (
        "training.lr_schedule = 'test_client_learning_rate:nothing' gives the rate 0.0 in round 2. "
        "It must be a number above 0"
    )
    assert client_rate(job(lr_schedule="test_client_learning_rate:boundless"), 1) == 0.5
    with pytest.raises(InvalidValue, match="gives the rate inf in round 2"):
        client_rate(job(lr_schedule="test_client_learning_rate:boundless"), 2)


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"lr_schedule": "step", "lr_rounds": 1, "lr_factor": 1e-200}, "0.0"),
        ({"lr_schedule": "step", "lr_rounds": 1, "lr_factor": 1e-20}, "5e-41"),
        ({"lr_schedule": "cosine", "lr_rounds": 2, "lr_factor": 1e-40}, "5e-41"),
        ({"lr": 1e-35}, "1e-35"),
    ],
)
def test_a_rate_that_vanishes_is_refused_before_the_first_round(
    settings: dict[str, Any], rate: str
) -> None:
    """In 32 bits the rate would be 0 or nearly, by which SCAFFOLD and FedCM divide."""
    with pytest.raises(JobError, match=rf"gives the rate {rate} in round 3, but at least 1e-30"):
        job(**settings)
    assert job(**{"lr_schedule": "step", **settings, "lr": 0.5, "lr_rounds": 3}).rounds == 3


def test_clients_train_with_the_rate_of_the_round(tmp_path: Path) -> None:
    run = fedveil.simulate(job(lr_schedule="step", lr_rounds=1, lr_factor=0.5), tmp_path / "run")
    data = parts.data()
    x, y = data["x_train"].astype(np.float64), data["y_train"]
    w = Layout(make_model(run.job, ModelShape((6,), 3))).vector().astype(np.float64)
    for rate in (0.5, 0.25, 0.125):  # one step of every client is one on all examples
        scores = x @ w[:18].reshape(3, 6).T + w[18:]
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        w -= rate * np.concatenate([(p.T @ x).ravel(), p.sum(0)]) / len(y)
    np.testing.assert_allclose(Layout(run.model).vector(), w, atol=1e-5)


def test_each_round_is_trained_with_a_trainer_of_its_rate() -> None:
    made, started = [], []

    def make(round: int) -> Any:
        made.append(round)

        def start(weights: object, at: int) -> None:
            started.append((round, weights, at))

        return SimpleNamespace(chunk=7, least=3, native=False, own_step=True, start=start)

    scheduled = job(lr=0.4, lr_schedule="test_client_learning_rate:warming")
    trainer = ScheduledTrainer(scheduled, make)
    assert (trainer.chunk, trainer.least, trainer.native, trainer.own_step) == (7, 3, False, True)
    for round in (1, 2, 3, 4):
        trainer.start(round * 10, round)  # type: ignore[arg-type]
    assert started == [(1, 10, 1), (2, 20, 2), (2, 30, 3), (4, 40, 4)]
    assert made == [1, 2, 4]
