"""LabelDP: the law over k classes, what is kept, what is remembered, and what is refused."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chisquare

from fedveil.base import message
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms import LabelDP
from fedveil.mechanisms.label_dp import LABEL_BYTES
from fedveil.mechanisms.report_memory import ReportMemory
from fedveil.privacy import Ledger, audit
from scripted_entropy import Scripted
from statistical_checks import ERROR_RATE

TRIALS = 200_000


def law(eps: float, classes: int, label: int) -> np.ndarray:
    """The stated law, written out."""
    other = 1 / (math.exp(eps) + classes - 1)
    out = np.full(classes, other)
    out[label] = math.exp(eps) * other
    return out


# The law


@pytest.mark.parametrize("eps", [0, 0.1, 1, 3])
@pytest.mark.parametrize(("classes", "label"), [(2, 0), (2, 1), (3, 2), (10, 0), (10, 9)])
def test_the_law_is_the_stated_one(eps: float, classes: int, label: int) -> None:
    told = LabelDP(eps).perturb_classes(
        np.full(TRIALS, label), classes, Seeded(1, "law", str(eps), classes, label)
    )
    counts = np.bincount(told, minlength=classes)
    expected = TRIALS * law(eps, classes, label)
    assert chisquare(counts, expected).pvalue > ERROR_RATE
    stays = LabelDP(eps).keep_probability(classes)
    assert stays == pytest.approx(law(eps, classes, label)[label], rel=1e-14)


def test_labels_are_perturbed_independently() -> None:
    told = LabelDP(1.0).perturb_classes(np.zeros(TRIALS, np.int64), 3, Seeded(2))
    pairs = np.bincount(told[::2] * 3 + told[1::2], minlength=9)
    one = law(1.0, 3, 0)
    assert chisquare(pairs, TRIALS / 2 * np.outer(one, one).reshape(-1)).pvalue > ERROR_RATE


@pytest.mark.parametrize("classes", [2, 10])
def test_a_draw_that_64_bits_do_not_decide_reads_on(classes: int) -> None:
    """At eps = 100 a lie has probability 4e-44 (k - 1): 64 bits alone would make it 2^-64."""
    with localcontext() as context:
        context.prec = 300
        lie = (classes - 1) / (Decimal(100).exp() + classes - 1)
        floor = int(lie * Decimal(2) ** 192)
    for offset, lies in ((-1, True), (1, False)):
        words = [(floor + offset) >> (64 * i) & (2**64 - 1) for i in reversed(range(3))]
        told = LabelDP(100).perturb_classes(np.array([1]), classes, Scripted(*words, *[5] * lies))
        assert (int(told[0]) != 1) is lies


# Kinds of labels


@pytest.mark.parametrize("dtype", ["i8", "u1", "f4", "?"])
@pytest.mark.parametrize("shape", [(TRIALS,), (TRIALS, 1)])
def test_binary_labels_keep_shape_and_dtype(dtype: str, shape: tuple[int, ...]) -> None:
    labels = np.arange(TRIALS).reshape(shape) % 3 == 0
    told = LabelDP(1.0)(labels.astype(dtype), Seeded(3, dtype))
    assert (told.shape, told.dtype) == (shape, np.dtype(dtype))
    kept = int((told == labels).sum())
    assert binomtest(kept, TRIALS, law(1.0, 2, 0)[0]).pvalue > ERROR_RATE


def test_one_hot_rows_stay_one_hot_and_have_the_law() -> None:
    rows = np.eye(4, dtype=np.float32)[np.full(TRIALS, 2)]
    told = LabelDP(1.0)(rows, Seeded(4))
    assert (told.shape, told.dtype) == (rows.shape, rows.dtype)
    assert (told.sum(axis=1) == 1).all()
    assert chisquare(told.sum(axis=0), TRIALS * law(1.0, 4, 2)).pvalue > ERROR_RATE


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bfloat16, torch.bool])
def test_torch_labels_stay_torch_labels(dtype: torch.dtype) -> None:
    for labels in (torch.tensor([0, 1, 1]).to(dtype), torch.eye(3).to(dtype)):
        told = LabelDP(10_000)(labels)
        assert type(told) is torch.Tensor
        assert torch.equal(told, labels)
        assert told.dtype == dtype


def test_no_labels_are_no_labels() -> None:
    assert LabelDP(1.0)(np.empty(0)).shape == (0,)
    assert LabelDP(1.0)(np.empty((0, 3))).shape == (0, 3)
    assert LabelDP(0).perturb_classes(np.empty((2, 0), int), 5).shape == (2, 0)


# Cost


def test_a_label_is_drawn_once_whatever_the_epochs() -> None:
    """Five epochs in other orders see the first epoch's labels, and the ledger counts one."""
    mechanism, labels = LabelDP(0.5), np.arange(1000) % 10
    memory = ReportMemory(LABEL_BYTES)
    ledger = Ledger()
    epochs = []
    for epoch in range(5):
        order = Seeded(5, epoch).permutation(1000)
        new = 1000 - len(memory)
        told = mechanism.remembered(order, labels[order], 10, Seeded(6, epoch), memory)
        epochs.append(told[np.argsort(order)])
        if new:
            ledger.record_many([(mechanism.loss, 1)], round=epoch, clients=range(new))
    assert all(np.array_equal(a, b) for a, b in pairwise(epochs))
    assert not np.array_equal(epochs[0], labels)
    order, fresh = Seeded(5, 0).permutation(1000), ReportMemory(LABEL_BYTES)
    again = mechanism.remembered(order, labels[order], 10, Seeded(6, 0), fresh)
    np.testing.assert_array_equal(again, epochs[0][order])
    assert ledger.epsilon("run") == 0.5
    stored = ReportMemory.from_state(message.decode(message.encode(memory.to_state())))
    np.testing.assert_array_equal(
        mechanism.remembered(range(1000), labels, 10, Seeded(7), stored), epochs[0]
    )


def test_new_keys_beside_remembered_ones_have_their_own_labels() -> None:
    mechanism, labels, memory = LabelDP(40.0), np.arange(9), ReportMemory(LABEL_BYTES)
    for keys in (np.array([4, 2]), np.array([2, 7, 4, 0, 8])):
        told = mechanism.remembered(keys, labels[keys], 9, Seeded(3), memory)
        assert told.tolist() == keys.tolist()


def test_the_loss_is_eps_per_example_and_the_audit_stays_below_it() -> None:
    for classes in (2, 5):
        mechanism = LabelDP(1.0)
        assert (mechanism.loss.epsilon, mechanism.loss.delta) == (1.0, 0.0)
        assert mechanism.loss.per == "example"

        def release(label: int, source: object, classes: int = classes) -> int:
            return int(LabelDP(1.0).perturb_classes(np.array([label]), classes, source)[0])  # type: ignore[arg-type]

        found = audit.run(
            release, 0, 1, claim=mechanism.loss, trials=5_000, entropy=Seeded(8, classes)
        )
        assert not found.refuted
        assert found.bound > 0.6


def test_the_audit_refutes_half_the_eps() -> None:
    one_hot = np.eye(3)
    found = audit.run(
        LabelDP(1.0), one_hot[:1], one_hot[1:2], claim=0.5, trials=6_000, entropy=Seeded(9)
    )
    assert found.refuted


# Invalid arguments


@pytest.mark.parametrize("eps", [-1, math.nan, math.inf, "1", None, False, 10_001])
def test_a_wrong_eps_is_refused(eps: object) -> None:
    with pytest.raises(InvalidValue, match=r"^eps = .* is (outside|not)"):
        LabelDP(eps)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (np.array([0, 2]), "labels holds other values than 0 and 1: class numbers"),
        (np.array([0, np.nan]), "labels holds other values than 0 and 1"),
        (np.array([[0, 1], [1, 1]]), "row 1 of labels is not one-hot"),
        (np.array([[0, 0, 0]]), "row 0 of labels is not one-hot"),
        (np.array([[0.5, 0.5]]), "row 0 of labels is not one-hot"),
        (np.array([[np.nan, 1.0]]), "row 0 of labels is not one-hot"),
        (np.array(1), r"labels has shape \(\): binary"),
        (np.zeros((1, 2, 2)), r"labels has shape \(1, 2, 2\): binary"),
        ([0, 1], "labels is a list"),
        (np.array(["a"]), "labels has dtype <U1"),
    ],
)
def test_what_is_no_label_is_refused(labels: object, sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        LabelDP(1.0)(labels)


@pytest.mark.parametrize(
    ("labels", "classes", "sentence"),
    [
        (np.array([0, 3]), 3, r"labels holds 0 to 3, which is outside \[0, 2\]"),
        (np.array([-1]), 3, r"labels holds -1 to -1"),
        (np.array([1.0]), 3, "labels has dtype float64, whole numbers"),
        (np.array([0]), 1, r"classes = 1 is outside \[2, "),
        (np.array([0]), 2.0, r"classes = 2\.0 is not a whole number"),
    ],
)
def test_wrong_class_numbers_are_refused(labels: np.ndarray, classes: int, sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        LabelDP(1.0).perturb_classes(labels, classes)


def test_as_many_keys_as_labels_are_needed() -> None:
    with pytest.raises(InvalidValue, match=r"labels has shape \(2,\), \(3,\) is needed"):
        LabelDP(1.0).remembered(range(3), np.array([0, 1]), 2, None, ReportMemory(LABEL_BYTES))
    with pytest.raises(InvalidValue, match="keys holds True"):
        LabelDP(1.0).remembered([True], np.array([0]), 2, None, ReportMemory(LABEL_BYTES))
