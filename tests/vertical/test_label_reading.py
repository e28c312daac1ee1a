"""Label attacks read all labels from a linear part, and none better than chance from noise."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.attacks.roc import area
from fedveil.base.array_types import Bools, Float64s, Int64s
from fedveil.entropy import Seeded
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.privacy.intervals import share
from fedveil.vertical.label_reading import (
    Window,
    _apart,
    _settled,
    by_known,
    by_norm,
    by_sign,
    ceiling,
    decided,
    directions,
    followed,
    named,
    partition,
)

ROWS, VALUES = 400, 12


def drawn(classes: int, odds: Float64s | None = None) -> tuple[Int64s, np.random.Generator]:
    source = Seeded(3, "labels", classes).generator()
    return source.choice(classes, ROWS, p=odds).astype(np.int64), source


def returned(labels: Int64s, classes: int, source: np.random.Generator) -> Float64s:
    """Return gradients from a linear part: the probabilities minus 1 at the label, through it."""
    weights = source.standard_normal((classes, VALUES))
    scores = source.standard_normal((len(labels), classes)) / 2
    odds = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    gradients: Float64s = (odds - np.eye(classes)[labels]) @ weights / len(labels)
    return gradients


def auc(scores: Float64s, positive: Bools) -> float:
    return area("x", scores[positive], scores[~positive]).value


def everywhere(labels: Int64s, guesses: Int64s) -> bool:
    return bool((labels == guesses).all())


def test_of_two_classes_the_sign_is_the_label() -> None:
    labels, source = drawn(2)
    rows = directions([returned(labels, 2, source)])
    groups = partition([Window.of(rows)], ROWS, 2)
    assert everywhere(labels, groups) or everywhere(labels, 1 - groups)
    places = np.array([int(np.flatnonzero(labels == 0)[0])])
    for found in (groups, 1 - groups):  # one known label names both groups
        assert everywhere(labels, named(found, places, labels[places], 2))
    assert auc(by_sign(rows), labels == labels[0]) in (0, 1)


def test_first_centres_are_far_from_all_earlier_ones() -> None:
    rows = np.eye(4)[[0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 0]]
    for start in range(20):
        assert np.unique(_apart(rows, 4, start), axis=0).shape == (4, 4), start


def test_every_known_label_outweighs_the_numbers_of_the_groups() -> None:
    groups, places = np.array([4, 5, 6, 7, 0, 1, 2, 3]), np.array([0, 1, 2, 3])
    assert named(groups, places, places, 8)[places].tolist() == [0, 1, 2, 3]
    assert named(groups, places[:0], places[:0], 8).tolist() == groups.tolist()


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_ten_known_labels_name_all_of_them(classes: int) -> None:
    labels, source = drawn(classes)
    rows = directions([returned(labels, classes, source)])
    places = np.concatenate([np.flatnonzero(labels == c)[: 10 // classes] for c in range(classes)])
    assert everywhere(
        labels, by_known([Window.of(rows)], ROWS, places, labels[places], classes).argmax(axis=1)
    )


def test_three_classes_part_without_a_known_label() -> None:
    labels, source = drawn(3)
    groups = partition([Window.of(directions([returned(labels, 3, source)]))], ROWS, 3)
    assert everywhere(labels, named(groups, np.arange(ROWS), labels, 3))


def test_the_best_of_several_starts_is_taken() -> None:
    """Most starts place two middles in the common class, and none in one of the rare ones."""
    labels = np.repeat(np.arange(5), [100, 8, 8, 8, 8])
    noise = Seeded(0, "starts").generator().standard_normal((len(labels), 5))
    rows = directions([np.eye(5)[labels] + 0.13 * noise])
    groups = partition([Window.of(rows)], len(labels), 5)
    assert everywhere(labels, named(groups, np.arange(len(labels)), labels, 5))


def test_rows_that_are_all_alike_are_as_good_a_start_as_any() -> None:
    assert _apart(np.ones((5, 2)), 3, 0).tolist() == [[1, 1]] * 3


def test_a_middle_without_a_row_stays() -> None:
    rows = directions([np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.2]])])
    centres = np.array([[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])
    moved, near = _settled(rows, centres)
    assert moved[1].tolist() == [0, -1]
    assert near.argmax(axis=1).tolist() == [0, 0, 2]


def test_a_row_moves_the_middle_that_its_earlier_rows_are_nearest_to() -> None:
    rows = np.array([[1.0, 0.0], [0.96, 0.28], [0.0, 1.0]])
    before = np.array([[0.0, 0.0], [-2.0, 2.0], [0.0, 0.0]])
    moved, near = _settled(rows, np.eye(2), before)
    np.testing.assert_allclose(moved, directions([np.array([[1.0, 0.0], [0.96, 1.28]])]))
    np.testing.assert_allclose(near, rows @ moved.T)


def test_a_class_of_which_none_is_known_is_not_guessed() -> None:
    labels, source = drawn(3)
    rows = directions([returned(labels, 3, source)])
    places = np.flatnonzero(labels != 1)[:8]
    scores = by_known([Window.of(rows)], ROWS, places, labels[places], 3)
    assert not (scores.argmax(axis=1)[labels != 1] == 1).any()


def test_what_windows_tell_adds_up() -> None:
    """One window of these gradients leaves errors, thirty leave none."""
    labels, source = drawn(2)
    side = 2.0 * labels[:, np.newaxis] - 1
    noise = 4 * source.standard_normal((30, ROWS, VALUES))
    windows = [Window.of(directions([side + each])) for each in noise]
    right = []
    for given in (windows[:1], windows):
        groups = partition(given, ROWS, 2)
        right.append(float((named(groups, np.arange(ROWS), labels, 2) == labels).mean()))
    assert right[0] < 0.95
    assert right[1] > 0.99


def test_an_example_that_is_used_twice_in_a_window_counts_twice() -> None:
    """Its two gradients disagree, and only their sum tells its group."""
    cosines = np.array([[0.6, 0.8], [1.0, 0.0], [-0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    window = Window(np.array([4, 1, 0, 4, 4]), cosines)
    scores = followed([window], 6, np.eye(2))
    _, near = _settled(cosines, np.eye(2))
    assert scores[4] == pytest.approx(near[[0, 3, 4]].sum(axis=0))
    assert scores[[1, 0]] == pytest.approx(near[[1, 2]])
    assert not scores[[2, 3, 5]].any()


def test_gradients_of_zero_take_no_group_from_the_others() -> None:
    """A loss may ignore most examples."""
    rows = np.zeros((200, 4))
    labels = np.repeat([0, 1, 2, 3], [5, 3, 2, 4])
    rows[7:21] = directions([np.eye(4)[labels] + 0.5])
    groups = partition([Window.of(rows)], 200, 4)
    assert everywhere(labels, named(groups[7:21], np.arange(14), labels, 4))


def test_the_middles_move_with_the_leaders_weights() -> None:
    """Windows of different examples, each rotated a little more, until the classes swap places."""
    labels, source = drawn(2)
    windows = []
    for places, turn in zip(np.split(np.arange(ROWS), 20), np.linspace(0, np.pi, 20), strict=True):
        side = np.array([np.cos(turn), np.sin(turn)])
        rows = (2.0 * labels[places, np.newaxis] - 1) * side
        rows += 0.2 * source.standard_normal((20, 2))
        windows.append(Window(places, directions([rows])))
    known = np.arange(10)
    scores = by_known(windows, ROWS, known, labels[known], 2)
    assert everywhere(labels, scores.argmax(axis=1))
    groups = partition(windows, ROWS, 2)
    assert everywhere(labels, named(groups, known, labels[known], 2))


def test_an_example_keeps_its_group_although_the_weights_jump() -> None:
    """Directions turn by 100 degrees at once: alone, each row is nearer to the other group."""
    labels, _ = drawn(2)
    sides = 2.0 * labels[:, np.newaxis] - 1
    turned = np.array([np.cos(np.radians(100)), np.sin(np.radians(100))])
    windows = [Window(np.arange(ROWS), sides * side) for side in (np.array([1.0, 0.0]), turned)]
    scores = followed(windows, ROWS, np.array([[-1.0, 0.0], [1.0, 0.0]]))
    np.testing.assert_allclose(scores, 2 * np.hstack([-sides, sides]), atol=1e-12)


def test_the_rarer_class_has_the_larger_norm() -> None:
    """The network has learnt that a tenth of the examples are of class 1."""
    labels, _ = drawn(2, np.array([0.9, 0.1]))
    gradients = np.where(labels == 1, 0.9, -0.1)[:, np.newaxis] * np.ones((1, VALUES))
    assert auc(by_norm([gradients]), labels == 1) == 1


def test_the_scores_of_long_gradients_are_those_along_their_main_direction() -> None:
    rows = Seeded(6).generator().standard_normal((5, 23))
    left, sizes, _ = np.linalg.svd(rows)
    assert np.abs(by_sign(rows)) == pytest.approx(np.abs(left[:, 0] * sizes[0]))


def test_a_look_at_long_gradients_counts_no_more_than_one_at_short_ones() -> None:
    """The first look tells nothing, and its gradients are 10,000 times as long."""
    labels, source = drawn(2, np.array([0.9, 0.1]))
    long = source.uniform(100, 110, (ROWS, 1)) * np.ones((1, VALUES))
    short = np.where(labels == 1, 0.02, 0.01)[:, np.newaxis] * np.ones((1, VALUES))
    assert auc(by_norm([long, short]), labels == 1) == 1


@pytest.mark.parametrize("eps", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_label_dp_leaves_what_the_formula_says(classes: int, eps: float) -> None:
    labels, source = drawn(classes)
    told = LabelDP(eps).perturb_classes(labels, classes, Seeded(5))
    groups = partition([Window.of(directions([returned(told, classes, source)]))], ROWS, classes)
    read = named(groups, np.arange(ROWS), told, classes)
    assert everywhere(told, read), "what was told is read exactly"
    reached = share("right", int((read == labels).sum()), ROWS, confidence=0.999)
    assert reached.low <= ceiling(eps, np.full(classes, 1 / classes)) <= reached.high


def test_the_ceiling_is_bayes_rule() -> None:
    even = np.array([0.5, 0.5])
    assert ceiling(np.log(3), even) == pytest.approx(0.75, abs=1e-12)
    assert ceiling(None, even) == 1
    assert ceiling(0.0, np.full(4, 0.25)) == pytest.approx(0.25, abs=1e-12)
    # If the rarer class is reported: 0.1 * 3/4 against 0.9 * 1/4, so the commoner class is the
    # guess.
    assert ceiling(np.log(3), np.array([0.9, 0.1])) == pytest.approx(0.9, abs=1e-12)
    # 0.6 * 3/4 if 0 is reported, 0.4 * 3/4 if 1 is.
    assert ceiling(np.log(3), np.array([0.6, 0.4])) == pytest.approx(0.75, abs=1e-12)


def test_nothing_returned_is_guessing() -> None:
    labels, _ = drawn(2, np.array([0.7, 0.3]))
    rows = directions([np.zeros((ROWS, VALUES))])
    places = np.array([int(np.flatnonzero(labels == c)[0]) for c in range(2)])
    guesses = decided(by_known([Window.of(rows)], ROWS, places, labels[places], 2), common=0)
    assert not guesses.any()
    assert auc(by_norm([np.zeros((ROWS, VALUES))]), labels == 1) == 0.5
    assert not partition([Window.of(rows)], ROWS, 3).any()


def test_without_a_known_label_no_class_has_a_score() -> None:
    labels, source = drawn(3)
    none = np.empty(0, np.int64)
    scores = by_known([Window.of(directions([returned(labels, 3, source)]))], ROWS, none, none, 3)
    assert (decided(scores, common=2) == 2).all()


def test_an_example_is_of_the_common_class_only_if_all_its_scores_are_equal() -> None:
    scores = np.array([[-1.0, 0.0, -2.0], [3.0, 3.0, 3.0], [-0.5, -0.5, -0.5], [0.0, -1.0, 0.0]])
    assert decided(scores, common=2).tolist() == [1, 2, 2, 0]
