"""Figures on how well labels can be read: each of its own half, class, interval and chance."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.privacy.intervals import share
from fedveil.vertical import label_watch
from fedveil.vertical.label_reading import Window, label_halves, partition, true_of
from fedveil.vertical.label_watch import LabelWatch, _classes_read, _recall, _tokens_read
from fedveil.vertical.split import EmbeddingPrivacy
from vertical_parts import Bottoms


def test_groups_are_named_by_one_half_and_judged_by_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = Seeded(2).generator()
    labels = draw.choice(3, 61, p=[0.6, 0.3, 0.1])
    judged, naming = label_halves(labels)
    assert sorted([*judged, *naming]) == list(range(61))
    counts = [np.bincount(labels[half], minlength=3) for half in (judged, naming)]
    assert np.abs(counts[0] - counts[1]).max() <= 1
    seen: list[Any] = []
    true = label_watch.named

    def named(groups: Any, places: Any, known: Any, classes: int) -> Any:
        seen.append((places.tolist(), known.tolist()))
        return true(groups, places, known, classes)

    monkeypatch.setattr(label_watch, "named", named)
    rows = np.eye(3)[labels] + 2 * draw.normal(size=(61, 3))
    said = _classes_read("here", [rows], labels, 3)
    assert seen == [(naming.tolist(), labels[naming].tolist())]
    told = true(partition([Window.of(label_watch.directions([rows]))], 61, 3), *map(
        np.array, seen[0]), 3)  # fmt: skip
    right, common = (told == labels)[judged].mean(), (labels[judged] == 0).mean()
    assert f"{right:.1%} of {len(judged)} right (the most common class alone {common:.1%})" in said


def test_what_is_not_excluded_is_the_highest_end_of_all_intervals() -> None:
    draw = Seeded(5).generator()
    labels = (draw.random(400) < 0.5).astype(np.int64)
    said = _classes_read("here", [draw.normal(size=(400, 4))], labels, 2)
    ends = re.findall(r"AUC \S+ by \w+ \(\S+ to (\d\.\d\d)\)", said)
    assert len(set(ends)) == 2
    assert f"an AUC of up to {max(ends)} is not excluded" in said


def three_classes(seed: int, moved: float) -> str:
    """The sentence on noise in which class 1 is `moved`, with three examples to judge class 2."""
    labels = np.repeat([0, 1, 2], [240, 150, 6])
    rows = Seeded(seed).generator().normal(size=(396, 4))
    rows[labels == 1, 0] += moved
    return _classes_read("here", [rows], labels, 3)


def test_what_is_not_excluded_may_be_of_another_class_than_the_best() -> None:
    """Class 0 has the largest AUC, class 2 the widest interval: it is that of one in three."""
    said = three_classes(5, 0.0)
    best = re.search(r"AUC 0\.56 by nearness to class 0 \(\S+ to (\d\.\d\d)\)", said)
    assert best
    high = share("", 1, 3, confidence=1 - 0.05 / 8).high
    assert high > float(best[1]) + 0.2
    assert said.endswith(f"; an AUC of up to {high:.2f} is not excluded")


def test_labels_that_are_read_are_shown_with_the_area_that_proves_it() -> None:
    """Class 2 has a larger AUC, but its interval contains the chance level."""
    said = three_classes(2, 0.5)
    assert "here reveal them: " in said
    assert "1 of 3 of the rarest class found" in said
    shown = re.search(r"AUC \S+ by nearness to class 0 \((\d\.\d\d) to \S+\)$", said)
    assert shown, said
    assert float(shown[1]) > 0.5


def test_the_recall_of_a_class_is_judged_by_the_false_alarms_of_the_others() -> None:
    rare, found = np.arange(60) < 10, np.r_[:6, 20:29]
    named = np.isin(np.arange(60), found)
    measured = _recall(named, rare, 0.99)
    hits, alarms = share("", 6, 10, confidence=0.99), share("", 9, 50, confidence=0.99)
    assert (measured.value, measured.low, measured.high) == (hits.value, hits.low, hits.high)
    assert (measured.guess, measured.cases) == (alarms.high, 10)
    assert measured.name == "6 of 10 of the rarest class found"
    assert _recall(named, ~np.ones(60, bool), 0.99).cases == 0


def test_tokens_are_judged_by_those_that_are_not_known() -> None:
    tokens = np.array([4, 9, 9, 4, 9, 9, 4, 4, 6, 6, 6, 9, 9, 9, 4, 4] * 4)
    look = np.eye(10)[tokens]
    said = _tokens_read("here", [look], tokens)
    common = (tokens[1::2] == 9).mean()
    assert said == (
        f"here reveal them: 100.0% of 32 right, the most common token alone {common:.1%}"
    )


def test_tokens_that_are_read_a_little_above_chance_are_not_said_to_be_read() -> None:
    """Six of ten guesses are right, and the commonest token alone is right for five."""
    tokens = np.repeat([9, 9, 9, 9, 9, 1, 2, 3, 4, 5], 2)
    look = np.zeros((20, 10))
    look[::2] = np.eye(10)
    look[1::2] = np.eye(10)[[0, 1, 2, 3, 4, 5, 0, 0, 0, 0]]
    assert _tokens_read("here", [look], tokens) == (
        "here leave open whether they can be read: 60.0% of 10 right, the most common token alone "
        "50.0%"
    )


def test_the_rarest_class_is_one_that_some_examples_have() -> None:
    labels = np.repeat([0, 1, 3], [30, 20, 8])
    judged, _ = label_halves(labels)
    said = _classes_read("here", [np.eye(4)[labels]], labels, 4)
    many = int((labels[judged] == 3).sum())
    assert f"{many} of {many} of the rarest class found" in said


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_that_are_read_have_a_correlation_whatever_its_sign(sign: int) -> None:
    watch = LabelWatch.__new__(LabelWatch)
    watch._classes = None
    labels = np.linspace(-1, 2, 40)
    look = sign * labels[:, None] * np.array([[3.0, 1.0]])
    assert watch._read("here", [look], labels) == "here have a correlation of 1.00 with them"
    assert watch._read("here", [look], labels[:, None]).endswith("correlation of 1.00 with them")
    for looks in ([0 * look, look], [look, 0 * look]):  # several parts of a follower
        assert watch._read("here", looks, labels).endswith("a correlation of 1.00 with them")
    many = watch._read("here", [look], np.ones((40, 3)))
    assert many == "here: the labels are not classes, and no attack here reads them"


def test_several_classes_of_an_example_are_read_as_tokens() -> None:
    """The words of a text have one label each, and their gradients are in one row."""
    watch = LabelWatch.__new__(LabelWatch)
    watch._classes = 3
    labels = np.array([[0, 2], [1, 1], [2, 0], [1, 0], [0, 1]] * 12)
    look = np.eye(3)[labels].reshape(60, 6)
    said = watch._read("here", [look, 2 * look], labels)
    assert said.startswith("here reveal them: 100.0% of 60 right, the most common token alone ")
    one = watch._read("here", [look[:, :3]], labels[:, :1])
    assert "of the rarest class found" in one


@pytest.mark.parametrize(
    ("kind", "widths", "is_read"),
    [
        (np.int64, [6], True), (np.uint8, [3, 9], True), (np.float64, [6], False),
        (np.int64, [4], False), (np.int64, [6, 4], False), (np.int64, [4, 6], False),
    ],
)  # fmt: skip
def test_labels_are_read_as_tokens_if_each_has_gradients_of_its_own(
    kind: type, widths: list[int], is_read: bool
) -> None:
    watch = LabelWatch.__new__(LabelWatch)
    watch._classes = None
    labels = (np.arange(60).reshape(20, 3) % 7).astype(kind)
    said = watch._read("here", [np.ones((20, width)) for width in widths], labels)
    assert ("the most common token alone" in said) == is_read
    assert ("the labels are not classes, and no attack here reads them" in said) != is_read


def test_only_the_first_tokens_are_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_watch, "_TOKENS", 24)
    tokens = np.repeat([3, 3, 5, 6], 15)
    said = _tokens_read("here", [np.eye(7)[tokens]], tokens)
    assert "100.0% of 12 right, the most common token alone 100.0%" in said


def test_a_rare_class_that_is_found_is_read_although_nothing_ranks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All 50 guesses are right, but guessing the common class alone is right for 45 of them."""
    labels = np.repeat([0, 1], [90, 10])
    for named, is_read in ((labels, True), (np.zeros(100, np.int64), False)):
        monkeypatch.setattr(label_watch, "named", lambda *given, named=named: named)
        said = _classes_read("here", [np.ones((100, 3))], labels, 2)
        assert "5 of 5" in said or not is_read
        assert ("reveal them" in said) == is_read, said


def test_the_least_likely_ranks_of_all_scores_count() -> None:
    """Only the lengths of gradients tell the two examples of the rare class."""
    labels = np.zeros(400, np.int64)
    labels[[7, 20]] = 1
    rows = Seeded(8).generator().normal(size=(400, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert "leave open" in _classes_read("here", [rows], labels, 2)
    rows[labels == 1] *= 9
    assert "reveal them" in _classes_read("here", [rows], labels, 2)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 31])
def test_labels_of_one_class_have_nothing_to_be_read(label: int, count: int) -> None:
    look = Seeded(4).generator().normal(size=(count, 3))
    said = _classes_read("here", [look], np.full(count, label), 2)
    assert "here leave open" in said
    assert f"of {-(-count // 2)} right (the most common class alone 100.0%)" in said


def test_a_follower_without_a_gradient_is_named_at_once() -> None:
    split = Bottoms().split_model()
    split = split.replace("left", privacy=EmbeddingPrivacy(1.0, gradient="none"))
    said: list[str] = []
    for tells_loss in (False, True):
        LabelWatch(
            split, 3, lambda crossing, gradient, labels, occasion: gradient, said.append,
            tells_loss=tells_loss,
        )  # fmt: skip
    assert said == [
        "labels: no gradient is returned to bank",
        "labels: no gradient is returned to bank, but it receives the loss of every step, which "
        "reveals labels: `record.followers_see_loss: false` hides it",
    ]


def test_the_true_label_is_judged_by_the_prior_too() -> None:
    shares = np.array([0.9, 0.1])
    assert true_of(np.array([0, 1]), float(np.log(3)), shares).tolist() == [0, 0]
    assert true_of(np.array([0, 1]), float(np.log(30)), shares).tolist() == [0, 1]
