"""One step of a linear model on all examples is torch's own, and comes in two products."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from torch import nn

from fedveil.learning.models import logistic
from fedveil.learning.one_step_trainer import OneStepTrainer
from fedveil.learning.trainer import ClientData
from fedveil.learning.weight_layout import Layout
from training_parts import by_torch, clients, plan, train

FULL = {"epochs": 1, "batch_size": 50}
MODELS = {
    "layer": lambda: nn.Linear(48, 5),
    "without bias": lambda: nn.Linear(48, 5, bias=False),
    "flattening": lambda: nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(48, 5)),
}


def trainer_for(model: nn.Module) -> OneStepTrainer:
    trainer = OneStepTrainer.of(copy.deepcopy(model), plan(**FULL))
    assert trainer is not None
    return trainer


@pytest.mark.parametrize("name", MODELS)
def test_updates_are_torchs(name: str) -> None:
    """Of one example, of a full batch, and of one too many, which takes two steps."""
    model = MODELS[name]()
    shape = (3, 16) if name == "flattening" else (48,)
    cohort = clients(shape, 5, (7, 1, 50, 51, 3, 20, 9, 8, 6, 10))
    for client, update in zip(cohort, train(trainer_for(model), model, cohort), strict=True):
        np.testing.assert_allclose(update, by_torch(model, plan(**FULL), client), atol=2e-6)


def test_company_changes_no_bit_and_no_randomness_is_drawn() -> None:
    model = logistic((48,), 5)
    cohort = [
        ClientData(client.x, client.y, None)  # type: ignore[arg-type]
        for client in clients((48,), 5, (7, 1, 50, 3))
    ]
    together = train(trainer_for(model), model, cohort)
    for client, update in zip(cohort, together, strict=True):
        assert train(trainer_for(model), model, [client]).tobytes() == update.tobytes()


def test_a_round_begins_where_it_is_told_to() -> None:
    model, other = nn.Linear(48, 5), nn.Linear(48, 5)
    cohort = clients((48,), 5, (7,))
    trainer = trainer_for(model)
    train(trainer, model, cohort)
    update = train(trainer, other, cohort)
    np.testing.assert_allclose(update[0], by_torch(other, plan(**FULL), cohort[0]), atol=2e-6)


def test_a_client_whose_training_raises_leaves_the_others_alone() -> None:
    model = nn.Linear(48, 5)
    good, other, wrong = clients((48,), 5, (7, 9, 4))
    mislabelled = ClientData(other.x, other.y + 5, other.entropy)
    narrow = ClientData(wrong.x[:, :5], wrong.y, wrong.entropy)
    trainer = trainer_for(model)
    trainer.start(Layout(model).vector())
    answers = [
        (rows.copy(), failures) for rows, failures in trainer.train([mislabelled, narrow, good])
    ]
    assert [failures[0] is None for _, failures in answers] == [False, False, True]
    expected = by_torch(model, plan(**FULL), good)
    np.testing.assert_allclose(answers[2][0][0], expected, atol=2e-6)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (nn.Sequential(nn.Linear(48, 5), nn.Tanh()), FULL),
        (nn.Sequential(nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, 5)), FULL),
        (nn.Linear(48, 5), {**FULL, "epochs": 2}),
        (nn.Linear(48, 5), {**FULL, "momentum": 0.5}),
        (nn.Linear(48, 5), {**FULL, "weight_decay": 0.1}),
        (nn.Linear(48, 5), {**FULL, "optimizer": "adam"}),
    ],
)
def test_other_models_and_plans_are_left_to_others(
    model: nn.Module, changes: dict[str, object]
) -> None:
    assert OneStepTrainer.of(model, plan(**changes)) is None
