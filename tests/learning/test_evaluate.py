"""The figures of quality against scikit-learn's."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from torch import nn

from fedveil.base.example_arrays import ragged
from fedveil.entropy import Seeded
from fedveil.errors import TaskInvalid
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import Classification, Task
from fedveil.learning.task_metrics import macro_auc


def test_against_scikit_learn() -> None:
    draw = Seeded(0).generator()
    x = draw.random((2500, 6), dtype=np.float32)
    y = draw.integers(0, 4, 2500)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    quality = score(model, Classification(), x, y).figures()
    probabilities = torch.softmax(model[0](torch.from_numpy(x)).double(), 1).detach().numpy()
    assert quality["loss"] == pytest.approx(log_loss(y, probabilities))
    assert quality["accuracy"] == accuracy_score(y, probabilities.argmax(1))
    assert quality["auc"] == pytest.approx(roc_auc_score(y, probabilities, multi_class="ovr"))
    assert model.training
    assert score(model.eval(), Classification(), x, y).figures() == quality
    assert not model.training


def test_ties_count_half_and_silent_classes_are_left_out() -> None:
    scores = np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.2, 0.8, 0]])
    y = np.array([0, 1, 1])
    assert macro_auc(scores, y) == pytest.approx(((0.5 + 1) / 2 + (0.5 + 1) / 2) / 2)
    assert macro_auc(scores[:, [0, 2, 1]], 2 * y) == macro_auc(scores, y), "class 1 is the silent"


def test_nothing_to_say_is_nan() -> None:
    assert np.isnan(macro_auc(np.zeros((3, 2)), np.zeros(3, np.int64)))
    assert np.isnan(macro_auc(np.full((2, 2), np.nan), np.array([0, 1])))


def test_a_model_trains_on_after_an_evaluation_that_fails() -> None:
    """Its dropout still drops, as after one that does not fail."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        score(model, Classification(), np.zeros((5, 4), np.float32), np.zeros(5, np.int64))
    assert model.training
    assert model[1].training


class _Squares(Task):
    """A task of a user's own, whose loss is the mean over a batch."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - targets).square().mean()


def test_an_own_loss_is_the_mean_over_all_examples_when_the_last_batch_is_short() -> None:
    draw = Seeded(1).generator()
    x, y = draw.random((1300, 3), dtype=np.float32), draw.random(1300, dtype=np.float32)
    model = nn.Linear(3, 1)
    with torch.no_grad():
        outputs = model(torch.from_numpy(x))[:, 0].double().numpy()
    expected = np.square(outputs - y).mean()
    assert score(model, _Squares(), x, y).figures()["loss"] == pytest.approx(expected, rel=1e-5)


class _Samples(nn.Module):
    """Samples its output, as a variational autoencoder does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


def test_an_evaluation_that_samples_depends_on_no_earlier_draw_and_changes_no_later_one() -> None:
    draw = Seeded(3).generator()
    x, y = draw.random((530, 3), dtype=np.float32), draw.random(530, dtype=np.float32)
    torch.manual_seed(1)
    first = score(_Samples(), _Squares(), x, y).loss
    after = torch.rand(5)
    torch.manual_seed(1)
    torch.testing.assert_close(torch.rand(5), after, rtol=0, atol=0)
    assert score(_Samples(), _Squares(), x, y).loss == first
    assert score(_Samples(), _Squares(), x[:, ::-1], y).loss != first


@pytest.mark.parametrize("draw", [np.random.random, random.random])
def test_an_evaluation_seeds_and_restores_the_generators_of_own_code(
    draw: Callable[[], float],
) -> None:
    class Drawing(_Squares):
        def collate(self, x: object, y: object) -> tuple[torch.Tensor, torch.Tensor]:
            inputs, targets = super().collate(x, y)
            return inputs + draw(), targets

    x, y = np.ones((530, 3), np.float32), np.arange(530, dtype=np.float32)
    found, next_draws = [], []
    for before in (8, 9):
        np.random.seed(before)
        random.seed(before)
        found.append(score(nn.Identity(), Drawing(), x, y).loss)
        next_draws.append(draw())
        np.random.seed(before)
        random.seed(before)
        assert next_draws[-1] == draw()
    assert found[0] == found[1]
    assert next_draws[0] != next_draws[1]


@pytest.mark.parametrize("draw", [np.random.random, random.random, lambda: float(torch.rand(()))])
def test_an_evaluation_that_fails_restores_the_generators_too(draw: Callable[[], float]) -> None:
    """Its error may end no program: a notebook or a simulation draws on."""

    class Failing(_Squares):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            draw()
            raise ZeroDivisionError

    def seed() -> None:
        np.random.seed(8)
        random.seed(8)
        torch.manual_seed(8)

    seed()
    expected = [draw(), draw()]
    seed()
    found = [draw()]
    with pytest.raises(ZeroDivisionError):
        score(nn.Identity(), Failing(), np.ones((5, 3), np.float32), np.ones(5, np.float32))
    assert [*found, draw()] == expected


class _Anything(Task):
    """A task without metrics: whatever the model returns is used for the loss only."""

    def loss(self, outputs: object, targets: object) -> torch.Tensor:
        return torch.tensor(2.0)


class _Measured(_Anything):
    def metrics(self, *scored: np.ndarray) -> dict[str, int]:
        return {"arrays": len(scored)}


def test_only_metrics_need_arrays_and_these_need_one_shape() -> None:
    """Examples of one length in the first batch and of another in the second."""
    x = ragged([np.ones((1 + i // 250, 2), np.float32) for i in range(500)])
    model = nn.Identity()
    assert score(model, _Anything(), x, x).figures() == {"loss": 2.0}
    assert score(model, _Measured(), x[:250], x[:250]).figures() == {"loss": 2.0, "arrays": 2}
    with pytest.raises(TaskInvalid, match=r"shape \(1, 2\) in one batch and \(2, 2\) in another"):
        score(model, _Measured(), x, x)


def test_outputs_that_are_no_tensors_are_named() -> None:
    x = np.ones((3, 2), np.float32)
    model = nn.Identity()
    model.forward = lambda x: (x, {"one": x, "two": None})
    assert score(model, _Anything(), x, x).figures() == {"loss": 2.0}
    with pytest.raises(TypeError, match="need arrays, but there is a NoneType"):
        score(model, _Measured(), x, x)


@pytest.mark.parametrize(
    ("limit", "sizes"), [(None, [250] * 5 + [50]), (450, [250] * 5 + [50]), (180, [180] * 7 + [40])]
)
def test_no_more_examples_are_scored_at_once_than_the_model_allows(
    limit: int | None, sizes: list[int]
) -> None:
    seen: list[int] = []
    model = nn.Linear(3, 2)
    if limit is not None:
        model.scored_at_once = limit
    model.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    draw = Seeded(2).generator()
    x, y = draw.random((1300, 3), dtype=np.float32), draw.integers(0, 2, 1300)
    scores = score(model, Classification(), x, y)
    assert seen == sizes
    chosen = np.array([1299, 3, 1000])
    expected = accuracy_score(y[chosen], model(torch.from_numpy(x[chosen])).argmax(1))
    assert scores.of(chosen)["accuracy"] == pytest.approx(expected)


def test_a_model_that_needs_much_memory_is_scored_in_smaller_batches() -> None:
    sizes: list[int] = []
    model = nn.Linear(3, 2)
    model.register_forward_pre_hook(lambda module, given: sizes.append(len(given[0])))
    x, y = np.ones((7, 3), np.float32), np.arange(7) % 2
    for most, expected in ((None, [7]), (3, [3, 3, 1]), (10**6, [7])):
        if most is not None:
            model.scored_at_once = most  # type: ignore[assignment]
        score(model, Classification(), x, y)
        assert sizes == expected
        sizes.clear()
