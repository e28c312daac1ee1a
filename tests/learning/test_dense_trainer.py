"""Clients that train together without weights of their own do what torch's own optimiser does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedveil.learning import dense_trainer
from fedveil.learning.dense_trainer import PANEL_ENTRIES, DenseCohortTrainer
from fedveil.learning.models import lenet, logistic, purchase_dnn
from fedveil.learning.trainer import ClientData, LoopTrainer, TrainingPlan
from fedveil.learning.weight_layout import Layout
from training_parts import Doubled, by_torch, clients, plan, tied, train

MODELS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.Sequential(
        nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 5)
    ),
    "tanh and sigmoid": lambda: nn.Sequential(
        nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 64), nn.Sigmoid(), nn.Linear(64, 5)
    ),
    "without biases": lambda: nn.Sequential(
        nn.Linear(48, 96, bias=False), nn.ReLU(inplace=True), nn.Linear(96, 64),
        nn.Tanh(), nn.Linear(64, 5, bias=False),
    ),
    "nested": lambda: nn.Sequential(
        nn.Flatten(), nn.Sequential(nn.Linear(48, 200), nn.Identity(), nn.ReLU()),
        nn.Linear(200, 5),
    ),
    "one layer": lambda: nn.Sequential(nn.Linear(48, 40)),
}  # fmt: skip


def trainer_for(model: nn.Module, plan: TrainingPlan) -> DenseCohortTrainer:
    trainer = DenseCohortTrainer.of(copy.deepcopy(model), plan)
    assert trainer is not None
    return trainer


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "settings", [{"epochs": 1}, {"epochs": 2, "batch_size": 3}, {"epochs": 1, "batch_size": 100}]
)
def test_updates_are_torchs(name: str, settings: dict[str, Any]) -> None:
    """Of clients with few and many batches, with one example, and with too many to be worth it."""
    model, task = made(name), plan(**settings)
    cohort = clients((48,), 5, (7, 1, 9, 4, 8, 2, 9, 3, 140, 5))
    trainer = trainer_for(model, task)
    for client, update in zip(cohort, train(trainer, model, cohort), strict=True):
        np.testing.assert_allclose(update, by_torch(model, task, client), atol=2e-6)


def groups_of(trainer: DenseCohortTrainer, cohort: list[ClientData]) -> list[list[int]]:
    """How many examples each has of those that go together; those that go alone in the loop too."""
    groups = []
    alone, together = trainer._loop.train, trainer._together

    def spy(clients: list[ClientData]) -> Any:
        groups.append([len(client) for client in clients])
        return together(clients)

    def spy_alone(clients: list[ClientData]) -> Any:
        groups.append([-len(client) for client in clients])
        return alone(clients)

    trainer._together, trainer._loop.train = spy, spy_alone  # type: ignore[method-assign]
    trainer.start(np.zeros(trainer._row.shape[1], np.float32))
    assert len([*trainer.train(cohort)]) == len(cohort)
    return groups


def test_who_goes_together() -> None:
    """Rows count once an epoch: 128 of them go together in a small net, more do not."""
    trainer = trainer_for(made("relu"), plan(epochs=2))
    cohort = clients((48,), 5, (3, 64, 65, 66, 1, 2, 64))
    assert groups_of(trainer, cohort) == [[3, 64], [-65], [-66], [1, 2, 64]]


def test_a_large_group_is_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = made("relu"), plan(epochs=1)
    cohort = clients((48,), 5, (10, 10, 10, 5, 5, 100, 3))
    expected = train(trainer_for(model, task), model, cohort)
    assert groups_of(trainer_for(model, task), cohort) == [[10, 10, 10, 5, 5, 100, 3]]
    # A row has its 48 inputs, and what comes out of and back into layers of 96, 64 and 5.
    monkeypatch.setattr(dense_trainer, "GROUP_ENTRIES", 20 * (48 + 2 * (96 + 64 + 5)))
    assert groups_of(trainer_for(model, task), cohort) == [[10, 10], [10, 5, 5], [100], [3]]
    np.testing.assert_array_equal(train(trainer_for(model, task), model, cohort), expected)


def test_few_rows_are_fewer_in_a_wide_net_of_few_outputs() -> None:
    """There X< is dearer than W itself, which is read in no time."""
    trainer = trainer_for(logistic((3, 64, 64), 10), plan(epochs=1))
    assert groups_of(trainer, clients((3, 64, 64), 10, (7, 9, 5))) == [[7], [-9], [5]]


def test_nothing_is_cut_for_clients_that_train_alone() -> None:
    trainer = trainer_for(made("relu"), plan(epochs=1))
    assert groups_of(trainer, clients((48,), 5, (200,))) == [[-200]]
    assert not trainer._starts


@pytest.mark.parametrize("where", ["a buffer of the chain", "a parameter of a layer"])
def test_what_no_layer_uses_does_not_change(where: str) -> None:
    """Also where the memory of the update was somebody else's before."""
    model = made("relu")
    if where == "a buffer of the chain":
        model.register_buffer("mean", torch.ones(3))
        unused = slice(-3, None)
    else:
        model[0].register_parameter("temperature", nn.Parameter(torch.ones(1)))
        unused = slice(48 * 96 + 96, 48 * 96 + 97)
    dirt = [torch.full((1, Layout(model).dimension), 7.0) for _ in range(20)]
    del dirt
    (update,) = train(trainer_for(model, plan()), model, clients((48,), 5, (9,)))
    assert not update[unused].any()
    assert update.any()


def test_a_net_of_more_than_one_panel() -> None:
    torch.manual_seed(0)
    model, task = purchase_dnn((600,), 100), plan(epochs=1, batch_size=20)
    assert model[1].weight.numel() > 2 * PANEL_ENTRIES
    cohort = clients((600,), 100, (60, 50))
    together = train(trainer_for(model, task), model, cohort)
    alone = train(LoopTrainer(copy.deepcopy(model), task), model, cohort)
    np.testing.assert_allclose(together, alone, atol=1e-6)
    for client, update in zip(cohort, together, strict=True):
        np.testing.assert_allclose(update, by_torch(model, task, client), atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(company=st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True))
def test_an_update_does_not_depend_on_the_company(company: list[int]) -> None:
    model, task = made("relu"), plan(epochs=1, batch_size=5)
    everybody = clients((48,), 5, (20, 20, 20, 20, 7, 1, 13, 20, 20, 19))
    trainer = trainer_for(model, task)
    alone = [train(trainer, model, [everybody[i]])[0] for i in company]
    together = train(trainer, model, [everybody[i] for i in company])
    np.testing.assert_array_equal(together, alone)


def test_panels_do_not_depend_on_the_company_either() -> None:
    torch.manual_seed(0)
    model, task = purchase_dnn((600,), 100), plan(epochs=1, batch_size=20)
    cohort = clients((600,), 100, (60, 45, 60, 20))
    trainer = trainer_for(model, task)
    together = train(trainer, model, cohort)
    for client, update in zip(cohort, together, strict=True):
        np.testing.assert_array_equal(train(trainer, model, [client])[0], update)


def test_a_client_whose_training_raises_leaves_the_others_alone() -> None:
    model = made("relu")
    cohort = clients((48,), 5, (4, 4, 4, 4))
    narrow = ClientData(cohort[1].x[:, :5], cohort[1].y, cohort[1].entropy)
    mislabelled = ClientData(cohort[2].x, cohort[2].y + 5, cohort[2].entropy)
    trainer = trainer_for(model, plan())
    trainer.start(Layout(model).vector())
    failures: list[Exception | None] = []
    updates = []
    for rows, failed in trainer.train([cohort[0], narrow, mislabelled, cohort[3]]):
        failures += failed
        updates.append(rows[0].copy())
    assert [f is None for f in failures] == [True, False, False, True]
    assert "shapes cannot be multiplied" in str(failures[1])
    assert "out of bounds" in str(failures[2])
    expected = train(trainer, model, [cohort[0], cohort[3]])
    np.testing.assert_array_equal([updates[0], updates[3]], expected)


def test_a_client_without_examples_changes_nothing() -> None:
    model = made("relu")
    cohort = clients((48,), 5, (0, 4))
    updates = train(trainer_for(model, plan()), model, cohort)
    assert not updates[0].any()
    assert updates[1].any()


def test_a_round_begins_where_it_is_told_to() -> None:
    model = made("relu")
    trainer = trainer_for(model, plan())
    cohort = clients((48,), 5, (4,))
    first = train(trainer, model, cohort)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    second = train(trainer, model, cohort)
    np.testing.assert_allclose(second[0], by_torch(model, plan(), cohort[0]), atol=2e-6)
    assert np.abs(first - second).max() > 1e-4


def test_what_diverges_is_not_finite() -> None:
    model = made("relu")
    cohort = clients((48,), 5, (9,))
    (update,) = train(trainer_for(model, plan(lr=1e30)), model, cohort)
    assert not np.isfinite(update).all()


class Made(TorchDispatchMode):
    """Notes how many entries every tensor has that an operator makes or fills."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.entries.append(out.numel())
        return out


def test_no_layer_is_ever_written_out() -> None:
    """Once W is cut, nothing as large as a layer is made: 128 rows of the update at most."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 200), nn.ReLU())
    model.append(nn.Linear(200, 250))
    trainer = trainer_for(model, plan(epochs=1, batch_size=20))
    cohort = clients((400,), 250, (60, 60))
    train(trainer, model, cohort)
    with Made() as made:
        assert len([*trainer.train(cohort)]) == 2
    smallest = min(layer.weight.numel() for layer in model if isinstance(layer, nn.Linear))
    assert smallest == 250 * 200
    assert max(made.entries) < 128 * 400 + 1
    assert sum(n >= smallest for n in made.entries) == 4  # of 300 x 400, two a client


@pytest.mark.parametrize(
    "settings", [{"momentum": 0.9}, {"weight_decay": 0.01}, {"optimizer": "adam"}]
)
def test_other_plans_are_not_served(settings: dict[str, Any]) -> None:
    assert DenseCohortTrainer.of(made("relu"), plan(**settings)) is None


def hooked() -> nn.Module:
    model = made("relu")
    model[0].register_forward_hook(lambda module, args, out: 2 * out)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: lenet((1, 28, 28), 10),
        lambda: nn.Sequential(nn.Linear(48, 96), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(48, 96), nn.Linear(96, 5)),
        lambda: nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 5)),
        lambda: nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Tanh(), nn.Linear(96, 5)),
        lambda: nn.Sequential(nn.Linear(48, 96), nn.Flatten(), nn.Linear(96, 5)),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(48, 5)),
        lambda: nn.Sequential(Doubled(48, 96), nn.ReLU(), nn.Linear(96, 5)),
        lambda: nn.Sequential(nn.Linear(48, 96).requires_grad_(False), nn.ReLU()),
        lambda: nn.Sequential(nn.ReLU()),
        lambda: nn.Sequential(),
        hooked,
        tied,
    ],
)
def test_other_models_are_not_served(make: Callable[[], nn.Module]) -> None:
    assert DenseCohortTrainer.of(make(), plan()) is None
