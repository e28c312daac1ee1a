"""Local training that can be differentiated takes the steps of the real trainer."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.attacks.gradient.unrolled_training import UnrolledTraining
from fedveil.base.array_types import Int64s
from fedveil.learning.trained_part import TrainedPart, only_head
from fedveil.learning.trainer import ClientData, LoopTrainer, TrainingPlan
from fedveil.learning.weight_layout import Layout
from support.training_parts import clients, plan, train

CLASSES = 3


class InOrder(ClientData):
    """A client that takes its examples as they lie, every epoch."""

    def batches(self, plan: TrainingPlan) -> Iterator[Int64s]:
        for _ in range(plan.epochs):
            for start in range(0, len(self), plan.batch_size):
                yield np.arange(start, min(start + plan.batch_size, len(self)))


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(18, CLASSES)
    )


def unrolled(model: nn.Module, plan: TrainingPlan, client: ClientData) -> np.ndarray:
    training = UnrolledTraining(model, plan, Layout(model).vector())
    targets = nn.functional.one_hot(client.y, CLASSES).float()
    return training.update(client.x, targets).detach().numpy()


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 1, "batch_size": 7},
        {"epochs": 3, "batch_size": 3},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.01},
    ],
)
def test_the_update_is_the_trainers_on_the_same_order(changes: dict[str, object]) -> None:
    model, steps = small(), plan(**changes)
    (client,) = clients((1, 8, 8), CLASSES, (7,))
    ordered = InOrder(client.x, client.y, client.entropy)
    (real,) = train(LoopTrainer(copy.deepcopy(model), steps), model, [ordered])
    assert np.abs(real).max() > 0.01
    assert np.allclose(unrolled(model, steps, client), real, rtol=1e-3, atol=2e-6)


def test_it_starts_from_the_weights_that_it_is_given() -> None:
    """Its own copy of the model has them, and the model itself keeps others."""
    model, other, steps = small(), small(1), plan(epochs=2, batch_size=3)
    (client,) = clients((1, 8, 8), CLASSES, (7,))
    before = Layout(model).vector()
    training = UnrolledTraining(model, steps, Layout(other).vector())
    targets = nn.functional.one_hot(client.y, CLASSES).float()
    found = training.update(client.x, targets).detach().numpy()
    assert np.array_equal(found, unrolled(other, steps, client))
    assert not np.allclose(found, unrolled(model, steps, client), atol=1e-4)
    assert np.array_equal(Layout(model).vector(), before)


def test_no_order_matters_where_a_batch_holds_everything() -> None:
    model, steps = small(), plan(epochs=4, batch_size=7)
    (client,) = clients((1, 8, 8), CLASSES, (7,))
    (real,) = train(LoopTrainer(copy.deepcopy(model), steps), model, [client])
    assert np.allclose(unrolled(model, steps, client), real, rtol=1e-3, atol=2e-6)


def test_several_clients_give_the_mean_of_their_updates() -> None:
    model, steps = small(), plan(epochs=2, batch_size=2)
    one, two = clients((1, 8, 8), CLASSES, (4, 4))
    training = UnrolledTraining(model, steps, Layout(model).vector())
    x, y = torch.cat([one.x, two.x]), torch.cat([one.y, two.y])
    both = training.update(x, nn.functional.one_hot(y, CLASSES).float(), clients=2)
    mean = (unrolled(model, steps, one) + unrolled(model, steps, two)) / 2
    assert np.allclose(both.detach().numpy(), mean, rtol=1e-5, atol=1e-8)


def test_the_first_step_loses_no_digits_to_the_weights() -> None:
    """The difference of two large weights would be rounded at theirs."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.fill_(1000.0)
        model.bias.fill_(1000.0)
    training = UnrolledTraining(model, plan(epochs=1, lr=1e-6), Layout(model).vector())
    update = training.update(torch.tensor([[1.0]]), torch.tensor([[1.0, 0.0]]))
    assert torch.allclose(update, 1e-6 * torch.tensor([0.5, -0.5, 0.5, -0.5]), rtol=1e-5)


def test_it_can_be_differentiated_through_every_step() -> None:
    model, steps = small(), plan(epochs=2, batch_size=2)
    (client,) = clients((1, 8, 8), CLASSES, (3,))
    shift = 1e-2
    x = client.x.clone().requires_grad_()
    training = UnrolledTraining(model, steps, Layout(model).vector())
    one_hot = nn.functional.one_hot(client.y, CLASSES).float()
    (slope,) = torch.autograd.grad(training.update(x, one_hot).square().sum(), x)
    place = tuple(np.unravel_index(int(slope.abs().argmax()), slope.shape))
    ends = []
    for sign in (1, -1):
        moved = client.x.clone()
        moved[place] += sign * shift
        ends.append(training.update(moved, one_hot).square().sum().item())
    assert slope[place].item() == pytest.approx((ends[0] - ends[1]) / (2 * shift), rel=0.02)


def test_buffers_and_frozen_weights_stay() -> None:
    model = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, CLASSES)
    )
    model[0].bias.requires_grad_(False)
    (client,) = clients((4,), CLASSES, (6,))
    once, again = (unrolled(model, plan(), client) for _ in range(2))
    layout = Layout(model)
    assert np.array_equal(once, again)
    assert not once[~layout.trainable].any()
    assert once[layout.trainable].any()
    training = UnrolledTraining(model, plan(), layout.vector())
    before = [buffer.clone() for buffer in training.model.buffers()]
    training.update(client.x, nn.functional.one_hot(client.y, CLASSES).float())
    after = training.model.buffers()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_of_a_head_it_is_the_step_on_features_that_are_fixed() -> None:
    """Return the layers in test mode: BatchNorm does not look at the batch."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten()]
    model = only_head(nn.Sequential(*layers, nn.Linear(18, CLASSES)))
    part, steps = TrainedPart.of(model), plan(epochs=1, batch_size=7)
    (client,) = clients((1, 8, 8), CLASSES, (7,))
    seen = torch.from_numpy(part.inputs(client.x.numpy()))
    features = ClientData(seen, client.y, client.entropy)
    (real,) = train(LoopTrainer(copy.deepcopy(part.module), steps), part.module, [features])
    assert np.allclose(unrolled(model, steps, client), real, rtol=1e-3, atol=2e-6)
