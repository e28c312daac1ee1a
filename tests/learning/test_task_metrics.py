"""Metrics of a model, against scikit-learn's and by hand."""

from __future__ import annotations

import math
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as known
from torch import nn

from fedveil.entropy import Seeded
from fedveil.learning import task_metrics as ours
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import NextToken, Regression, as_tensors, find, plan_loss
from fedveil.learning.losses import LOSSES, mean_loss

DRAW = Seeded(5).generator()
SCORES, LABELS = DRAW.normal(size=(300, 4)), DRAW.integers(0, 4, 300)
TOLD, TRUE = DRAW.normal(size=(200, 2)), DRAW.normal(size=(200, 2))
BITS = DRAW.integers(0, 2, (200, 2)).astype(float)


def test_classes_against_scikit_learn() -> None:
    guess = SCORES.argmax(1)
    assert ours.confusion(SCORES, LABELS) == known.confusion_matrix(LABELS, guess).tolist()
    each = known.f1_score(LABELS, guess, average=None)
    assert ours.f1_per_class(SCORES, LABELS) == pytest.approx(each)
    assert ours.f1(SCORES, LABELS) == pytest.approx(each.mean())
    expected = known.balanced_accuracy_score(LABELS, guess)
    assert ours.balanced_accuracy(SCORES, LABELS) == pytest.approx(expected)


def test_a_class_that_never_occurs_is_left_out() -> None:
    scores, y = np.eye(3)[[0, 0, 1, 1]], np.array([0, 1, 1, 1])
    assert math.isnan(ours.f1_per_class(scores, y)[2])
    assert ours.f1(scores, y) == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert ours.balanced_accuracy(scores, y) == pytest.approx((1 + 2 / 3) / 2)


def test_numbers_against_scikit_learn() -> None:
    assert ours.rmse(TOLD, TRUE) == pytest.approx(known.mean_squared_error(TRUE, TOLD) ** 0.5)
    assert ours.mae(TOLD, TRUE) == pytest.approx(known.mean_absolute_error(TRUE, TOLD))
    assert ours.r2(TOLD, TRUE) == pytest.approx(known.r2_score(TRUE, TOLD))
    assert math.isnan(ours.r2(TOLD, np.ones_like(TRUE)))
    flat = np.stack([np.ones(200), TRUE[:, 1]], axis=1)  # a column that does not vary
    assert ours.r2(TOLD, flat) == pytest.approx(known.r2_score(TRUE[:, 1], TOLD[:, 1]))


def test_truth_values_against_scikit_learn() -> None:
    guess = (TOLD > 0).astype(float)
    assert ours.bit_f1(TOLD, BITS) == pytest.approx(known.f1_score(BITS, guess, average="macro"))
    assert ours.bit_auc(TOLD, BITS) == pytest.approx(known.roc_auc_score(BITS, TOLD))
    assert ours.exact_match(TOLD, BITS) == pytest.approx(known.accuracy_score(BITS, guess))
    assert ours.bit_accuracy(TOLD, BITS) == pytest.approx((guess == BITS).mean())
    nothing = np.zeros_like(BITS)  # a head that starts from zeros: a score of 0 means no
    assert ours.bit_accuracy(nothing, BITS) == (BITS == 0).mean()
    assert ours.exact_match(nothing, BITS) == (BITS == 0).all(1).mean()
    assert ours.bit_f1(nothing, BITS) == 0


def test_perplexity_counts_the_tokens_that_are_there() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [5.0, 5.0]]])
    y = torch.tensor([[0, 0], [1, -100]])
    task = NextToken()
    figures = task.metrics(*task.scored(logits, y))
    losses = [math.log(1 + math.exp(-2)), math.log(1 + math.e), math.log(2)]
    assert figures["perplexity"] == pytest.approx(math.exp(sum(losses) / 3))
    assert figures["accuracy"] == pytest.approx(1 / 3)
    assert float(task.loss(logits, y)) == pytest.approx((sum(losses[:2]) / 2 + losses[2]) / 2)
    assert figures["loss"] == pytest.approx(float(task.loss(logits, y)))


@pytest.mark.parametrize("name", ["classification", "regression", "multilabel"])
def test_the_loss_of_a_record_is_the_loss_that_is_trained(name: str) -> None:
    y = {"classification": LABELS[:200], "regression": TRUE, "multilabel": BITS}[name]
    y = y if name == "classification" else y.astype(np.float32)
    x = SCORES[:200].astype(np.float32)
    model = nn.Linear(4, 4 if name == "classification" else 2)
    task = find(name)
    figures = score(model, task, x, y).figures()
    trained = task.loss(model(torch.from_numpy(x)), torch.from_numpy(y))
    assert figures["loss"] == pytest.approx(trained.item(), rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_a_batchs_loss_is_the_mean_of_its_examples(name: str) -> None:
    outputs = torch.from_numpy(DRAW.normal(size=(6, 5, 3) if name == "next_token" else (6, 3)))
    y = torch.from_numpy(DRAW.integers(0, 2, outputs.shape)).double()
    if name in ("cross_entropy", "next_token"):
        y = y[..., 0].long()
    each = LOSSES[name](outputs, y)
    assert each.shape == (6,)
    alone = [float(mean_loss(name)(outputs[i : i + 1], y[i : i + 1])) for i in range(6)]
    assert each.tolist() == pytest.approx(alone)
    assert float(mean_loss(name)(outputs, y)) == pytest.approx(float(each.mean()))


def test_a_subclass_keeps_its_own_loss() -> None:
    class Halved(Regression):
        def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
            return super().loss(outputs, targets) / 2

    assert plan_loss(Regression()) == "mean_square"
    assert plan_loss(Halved()) == "own"


def test_lines_of_different_lengths_are_filled_up() -> None:
    batch = as_tensors([np.array([1, 2, 3]), np.array([4])], padding=-100)
    assert batch.tolist() == [[1, 2, 3], [4, -100, -100]]  # type: ignore[union-attr]
    steps = [np.array([[0.5, 1.5]], np.float32), np.full((3, 2), 2.5, np.float32)]
    padded = as_tensors(steps, padding=7)
    assert padded.shape == (2, 3, 2)  # type: ignore[union-attr]
    assert padded[0].tolist() == [[0.5, 1.5], [7, 7], [7, 7]]  # type: ignore[index]
    rows = [np.array([1, 2]), np.array([5])]
    x, y = NextToken().collate(rows, [row + 1 for row in rows])
    assert (x.tolist(), y.tolist()) == (  # type: ignore[union-attr]
        [[1, 2], [5, 0]], [[2, 3], [6, -100]],
    )  # fmt: skip


def test_ks_compares_whole_groups_of_equal_scores() -> None:
    """The order of examples with one score must not count."""
    first = np.array([1, 1, 0, 0, 2, 2, 1, 1, 1])
    y = np.array([1, 1, 0, 0, 0, 1, 0, 0, 1])
    scores = np.stack([-first, first], axis=1).astype(float)
    distance = abs(known_ks(first, y == 1))
    assert distance == pytest.approx(0.4)
    assert math.isnan(ours.ks(scores, np.ones_like(y)))
    for order in (np.arange(9), np.arange(9)[::-1], DRAW.permutation(9)):
        assert ours.ks(scores[order], y[order]) == pytest.approx(distance)


def known_ks(values: np.ndarray, inside: np.ndarray) -> float:
    """Return the distance by the definition: both distribution functions at every value."""
    at = np.unique(values)
    parts = [(values[part][:, None] <= at).mean(axis=0) for part in (inside, ~inside)]
    return float(np.abs(parts[0] - parts[1]).max())


@pytest.mark.parametrize("name", ["loss", "rmse", "mae", "perplexity"])
def test_an_error_is_better_when_it_is_lower(name: str) -> None:
    assert ours.better(name) == "lower"


@pytest.mark.parametrize("name", ["accuracy", "auc", "f1", "r2", "ks", "exact_match"])
def test_a_success_is_better_when_it_is_higher(name: str) -> None:
    assert ours.better(name) == "higher"


def test_a_score_that_is_no_number_leaves_no_figure_of_ranks() -> None:
    scores, told = SCORES.copy(), TOLD.copy()
    scores[7, 2] = told[3, 0] = math.nan
    assert math.isnan(ours.macro_auc(scores, LABELS))
    assert math.isnan(ours.ks(scores, LABELS))
    assert math.isnan(ours.bit_auc(told, BITS))


def test_a_label_that_nobody_has_or_predicts_is_left_out() -> None:
    scores, y = np.array([[1.0, -1], [1, -1], [-1, -1]]), np.array([[1.0, 0], [0, 0], [1, 0]])
    assert ours.bit_f1(scores, y) == pytest.approx(0.5)


def test_outputs_in_a_row_are_compared_with_targets_in_a_column() -> None:
    """A model with one output may give [examples], and the targets are [examples, 1]."""
    x, y = SCORES[:200].astype(np.float32), TRUE[:, :1].astype(np.float32)
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    outputs = model(torch.from_numpy(x)).detach().numpy()
    figures = score(model, Regression(), x, y).figures()
    assert figures["rmse"] == pytest.approx(known.mean_squared_error(y, outputs) ** 0.5, rel=1e-5)
    assert figures["r2"] == pytest.approx(known.r2_score(y, outputs), rel=1e-4)


def test_a_text_without_a_target_has_no_loss_and_a_huge_loss_a_finite_perplexity() -> None:
    task, y = NextToken(), torch.tensor([[-100, -100], [0, -100]])
    logits = torch.tensor([[[0.0, 1.0], [2.0, 0.0]], [[0.0, 2000.0], [0.0, 0.0]]])
    assert LOSSES["next_token"](logits, y).tolist() == [0, 2000]
    assert float(task.loss(logits, y)) == 1000
    scored = task.scored(logits, y)
    figures = task.metrics(*scored)
    assert figures["loss"] == 2000
    assert 1e300 < figures["perplexity"] < math.inf
    nothing = task.metrics(*(part[:1] for part in scored))
    assert list(nothing) == ["loss", "perplexity", "accuracy"]
    assert all(map(math.isnan, nothing.values()))


def test_each_input_is_filled_up_and_goes_in_by_its_name_or_place() -> None:
    class Both(nn.Module):
        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return first - 10 * second

    lines = [np.array([1, 2]), np.array([5])]
    batch = as_tensors({"second": lines, "first": np.array([[3, 4], [5, 6]])}, padding=-7)
    assert isinstance(batch, dict)
    assert batch["second"].tolist() == [[1, 2], [5, -7]]
    for inputs in (batch, UserDict(batch), [batch["first"], batch["second"]]):
        assert Regression().forward(Both(), inputs).tolist() == [[-7, -16], [-45, 76]]


def test_a_metric_with_a_value_for_each_class_is_no_measure() -> None:
    named = ["confusion", "ks", "f1_per_class", "accuracy"]
    task = find("classification", named)
    assert task.measures == {"ks": "higher", "accuracy": "higher"}
    found = task.metrics(np.log([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]]), np.array([0, 1, 1]))
    assert list(found) == ["loss", *named]
