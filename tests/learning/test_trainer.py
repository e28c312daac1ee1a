"""Both engines do what torch's own optimisers do, client by client."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.base.example_arrays import ragged
from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.learning_task import Classification, as_tensors
from fedveil.learning.models import lenet, tanh_cnn
from fedveil.learning.task_trainer import TaskTrainer
from fedveil.learning.trainer import ClientData, LoopTrainer, Trainer, TrainingPlan
from fedveil.learning.vmap_trainer import VmapTrainer
from fedveil.learning.weight_layout import Layout
from training_parts import by_torch, clients, plan, train

PLANS = [
    plan(),
    plan(weight_decay=0.01),
    plan(momentum=0.9),
    plan(momentum=0.9, weight_decay=0.01),
    plan(optimizer="adam", lr=0.01),
    plan(optimizer="adam", lr=0.01, weight_decay=0.01),
    plan(epochs=1, batch_size=100),
    plan(optimizer="adamw", lr=0.01, weight_decay=0.1),
    plan(optimizer="adagrad", lr=0.05, weight_decay=0.01),
    plan(momentum=0.9, nesterov=True, weight_decay=0.01),
    plan(gradient_norm=0.3),
    plan(gradient_norm=50.0),
    plan(proximal=5.0),
    plan(loss="weighted_cross_entropy", class_weights=(0.5, 1.0, 4.0)),
    plan(proximal=5.0, gradient_norm=0.3, momentum=0.9),
]


@pytest.mark.parametrize(
    ("changes", "plain", "bare"),
    [
        ({}, True, True),
        ({"weight_decay": 0.01}, True, False),
        ({"corrected": True}, False, False),
        ({"gradient_norm": 0.3}, False, False),
        ({"proximal": 0.7}, False, False),
        ({"momentum": 0.9}, False, False),
        ({"optimizer": "adamw"}, False, False),
    ],
)
def test_a_step_is_plain_only_if_nothing_changes_the_gradient(
    changes: dict[str, object], plain: bool, bare: bool
) -> None:
    """A trainer leaves the optimiser, the correction and the clipping out of a plain step."""
    assert (plan(**changes).plain_sgd, plan(**changes).bare_sgd) == (plain, bare)


def test_a_client_knows_which_of_its_examples_count() -> None:
    x, y, usable = np.ones((3, 2), np.float32), np.arange(3), np.array([True, False, True])
    assert ClientData.of(x, y, Seeded(4), usable).usable is usable


def test_training_does_not_write_into_an_array_that_is_read_only() -> None:
    column = np.arange(6, dtype=np.float32).reshape(3, 2)
    column.setflags(write=False)
    tensor = as_tensors(column)
    tensor += 1
    assert column.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert tensor.tolist() == [[1, 2], [3, 4], [5, 6]]


def dense(seed: int = 0, width: int = 8) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, width), nn.Tanh()).append(
        nn.Linear(width, 3)
    )


@pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer])
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_is_torchs_own(
    engine: Callable[[nn.Module, TrainingPlan], Trainer], plan: TrainingPlan
) -> None:
    model = dense()
    cohort = clients((6,), 3, (10, 4, 1, 7))
    updates = train(engine(copy.deepcopy(model), plan), model, cohort)
    for client, update in zip(cohort, updates, strict=True):
        np.testing.assert_allclose(update, by_torch(model, plan, client), atol=2e-6)


class Scaled(nn.Linear):
    """A layer whose parameters have every number of dimensions, and one has no entries."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * super().forward(x) + self.nothing.sum()


@pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer])
@pytest.mark.parametrize("norm", [0.2, 0.9, None])
def test_a_parameter_may_be_a_single_number_or_empty(
    engine: Callable[[nn.Module, TrainingPlan], Trainer], norm: float | None
) -> None:
    torch.manual_seed(1)
    model, settings = Scaled(), plan(gradient_norm=norm, proximal=0.5, momentum=0.8)
    cohort = clients((6,), 3, (10, 1, 7))
    updates = train(engine(copy.deepcopy(model), settings), model, cohort)
    for client, update in zip(cohort, updates, strict=True):
        np.testing.assert_allclose(update, by_torch(model, settings, client), atol=2e-6)


def native(model: nn.Module, plan: TrainingPlan) -> Trainer:
    made = CompiledTrainer.of(model, plan)
    assert made is not None
    return made


@pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer, native])
def test_a_model_may_have_more_scores_than_classes_with_weights(
    engine: Callable[[nn.Module, TrainingPlan], Trainer],
) -> None:
    torch.manual_seed(2)
    model, given = nn.Linear(6, 5), plan(loss="weighted_cross_entropy", class_weights=(0.5, 3.0, 2))
    cohort = clients((6,), 3, (9, 4))
    updates = train(engine(copy.deepcopy(model), given), model, cohort)
    for client, update in zip(cohort, updates, strict=True):
        np.testing.assert_allclose(update, by_torch(model, given, client), atol=2e-6)


@pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer])
@pytest.mark.parametrize("made", [lenet, tanh_cnn])
def test_convolutional_nets(
    made: Callable[..., nn.Module], engine: Callable[[nn.Module, TrainingPlan], Trainer]
) -> None:
    torch.manual_seed(1)  # other weights may make two values of a pool as good as equal
    model = made((1, 28, 28), 10)
    cohort = clients((1, 28, 28), 10, (9, 6))
    updates = train(engine(copy.deepcopy(model), plan()), model, cohort)
    for client, update in zip(cohort, updates, strict=True):
        np.testing.assert_allclose(update, by_torch(model, plan(), client), atol=2e-6)


@pytest.mark.parametrize(
    "made",
    [
        lambda: nn.Sequential(nn.GroupNorm(1, 3), nn.Conv2d(3, 4, 3)),
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3).requires_grad_(False), nn.GroupNorm(2, 4)),
    ],
)
def test_a_norm_of_what_wants_no_gradient_does_not_end_the_process(
    made: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(made(), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 5 * 6, 3))
    cohort = clients((3, 7, 8), 3, (9, 6))
    updates = train(LoopTrainer(copy.deepcopy(model), plan()), model, cohort)
    for client, update in zip(cohort, updates, strict=True):
        np.testing.assert_allclose(update, by_torch(model, plan(), client), atol=2e-6)


def test_clients_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    cohort = clients((6,), 3, (8, 8, 8))
    trainer = LoopTrainer(copy.deepcopy(model), plan(momentum=0.9))
    together = train(trainer, model, cohort)
    alone = train(LoopTrainer(copy.deepcopy(model), plan(momentum=0.9)), model, cohort[2:])
    np.testing.assert_array_equal(together[2], alone[0])
    again = train(trainer, model, cohort)
    np.testing.assert_array_equal(together, again)


@pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer])
def test_a_client_whose_training_raises_is_reported_and_leaves_no_trace(
    engine: Callable[[nn.Module, TrainingPlan], Trainer],
) -> None:
    model = dense()
    cohort = clients((6,), 3, (4, 4, 4))
    bad = ClientData(cohort[1].x[:, :5], cohort[1].y, cohort[1].entropy)
    trainer = engine(copy.deepcopy(model), plan())
    trainer.start(Layout(model).vector())
    failures: list[Exception | None] = []
    for rows, failed in trainer.train([cohort[0], bad, cohort[2]]):
        failures += failed
        last = rows[-1].copy()
    assert [type(f) for f in failures] == [type(None), RuntimeError, type(None)]
    np.testing.assert_array_equal(last, train(trainer, model, [cohort[2]])[0])


def by_task(model: nn.Module, plan: TrainingPlan) -> Trainer:
    return TaskTrainer(model, plan, Classification())


def by_example(model: nn.Module, plan: TrainingPlan) -> Trainer:
    return ClippedExamplesTrainer(model, plan, rate=1.0)


@pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer, by_task, by_example])
def test_dropout_works_in_a_model_made_for_evaluation_and_repeats_to_the_byte(
    engine: Callable[[nn.Module, TrainingPlan], Trainer],
) -> None:
    """A user's function may return a model in evaluation mode. All examples are the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 3)).eval()
    (client,) = clients((6,), 3, (7,))
    client.x[:], client.y[:] = client.x[0].clone(), 2
    cohort, chosen = [client, replace(client, entropy=Seeded(5))], plan(epochs=1, batch_size=7)
    trainer = engine(copy.deepcopy(model), chosen)
    first, again = train(trainer, model, cohort), train(trainer, model, cohort)
    assert first.tobytes() == again.tobytes()
    assert np.abs(first[0] - first[1]).max() > 1e-3


def test_frozen_and_unused_parameters_are_left_alone() -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(6, 3)
            self.unused = nn.Linear(6, 3)
            self.frozen = nn.Linear(3, 3).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.used(x))

    torch.manual_seed(0)
    model = Partial()
    cohort = clients((6,), 3, (0, 8))
    used = model.used.weight.numel() + 3
    for chosen in (
        plan(),
        plan(weight_decay=0.1),
        plan(optimizer="adamw", lr=0.01, weight_decay=0.1),
    ):
        for engine in (LoopTrainer, VmapTrainer):
            empty, update = train(engine(copy.deepcopy(model), chosen), model, cohort)
            np.testing.assert_allclose(
                update[:used], by_torch(model, chosen, cohort[1])[:used], atol=2e-6
            )
            assert update[:used].any()
            assert not update[used:].any()
            assert not empty.any()


def test_vmap_refuses_batch_statistics() -> None:
    with pytest.raises(ModelInvalid, match=r"cannot train the buffers 1\.running_mean"):
        VmapTrainer(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), plan())


def test_batches_are_every_example_once_an_epoch_in_a_new_order() -> None:
    (client,) = clients((6,), 3, (10,))
    batches = list(client.batches(plan(epochs=2, batch_size=4)))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    first, second = np.concatenate(batches[:3]), np.concatenate(batches[3:])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first.tolist() != second.tolist()
    (lone,) = clients((6,), 3, (1,))
    assert [batch.tolist() for batch in lone.batches(plan(epochs=3, batch_size=4))] == [[0]] * 3


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer])
def test_tiny_numbers_are_zero_in_training_alone(
    engine: Callable[[nn.Module, TrainingPlan], Trainer], failing: bool
) -> None:
    """Noise is drawn and added by the same thread, and needs every number."""
    seen = []

    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(float(np.float32(1e-39) * np.float32(0.5)))
            if failing:
                raise RuntimeError
            return self.linear(x)

    model = Watched()
    trainer = engine(model, plan())
    trainer.start(np.zeros(Layout(model).dimension, np.float32))
    for _, failures in trainer.train(clients((6,), 3, (4, 2))):
        assert np.float32(1e-39) * np.float32(0.5) != 0
        assert all((failure is not None) == failing for failure in failures)
    assert seen
    assert not any(seen)
    assert np.float32(1e-39) * np.float32(0.5) != 0


def test_a_client_may_have_plain_examples_with_targets_of_different_lengths() -> None:
    x, y = np.ones((2, 5), np.float32), ragged([np.array([1, 2, 3]), np.array([4])])
    client = ClientData.of(x, y, Seeded(0))
    assert len(client) == 2
    assert client.rows[0] is x
    assert client.rows[1] is y


@pytest.mark.parametrize("by_task", [False, True])
def test_a_correction_is_added_to_each_gradient_before_it_is_clipped(by_task: bool) -> None:
    """Tensors that are not trained, such as BatchNorm's statistics, have no gradient."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    layout = Layout(model)
    correction = torch.linspace(-1, 1, layout.dimension)
    (client,) = clients((6,), 3, (7,))
    chosen = plan(epochs=1, batch_size=7, corrected=True, gradient_norm=0.5)
    made = copy.deepcopy(model)
    trainer = TaskTrainer(made, chosen, Classification()) if by_task else LoopTrainer(made, chosen)
    (update,) = train(trainer, model, [replace(client, correction=correction)])
    nn.functional.cross_entropy(model.train()(client.x), client.y).backward()
    gradients = [
        term + entry.tensor.grad
        for entry, term in zip(layout.entries, layout.views(correction), strict=True)
        if entry.fate == "parameter"
    ]
    whole = torch.cat([gradient.flatten() for gradient in gradients])
    assert whole.norm() > 0.5
    expected = -0.1 * 0.5 * whole / whole.norm()
    np.testing.assert_allclose(update[: len(whole)], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("by_task", [False, True])
def test_a_correction_ends_with_its_client_even_if_training_fails(by_task: bool) -> None:
    model, chosen = dense(), plan(corrected=True)
    failing, other = clients((6,), 3, (7, 5))
    correction = torch.linspace(-1, 1, Layout(model).dimension)
    failing = replace(failing, y=torch.full_like(failing.y, 3), correction=correction)
    other = replace(other, correction=correction.flip(0))

    def made() -> Trainer:
        own = copy.deepcopy(model)
        return TaskTrainer(own, chosen, Classification()) if by_task else LoopTrainer(own, chosen)

    trainer = made()
    trainer.start(Layout(model).vector())
    (_, (failure,)), (rows, (none,)) = (
        (rows.copy(), failures) for rows, failures in trainer.train([failing, other])
    )
    assert isinstance(failure, IndexError)  # there are three classes, 0 to 2
    assert none is None
    np.testing.assert_array_equal(rows, train(made(), model, [other]))
