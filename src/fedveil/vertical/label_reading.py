"""Attacks that infer labels from the gradients returned to a follower in split training.

The gradient of an example's loss at the logits is the vector of predicted probabilities, minus 1 at
the label. The leader's part passes it back. So gradients of one class are closer to each other than
to gradients of other classes. The attacker knows its own gradients, the sizes of the classes and,
for some attacks, a few labels.

Sources: O. Li et al., Label Leakage and Protection in Two-party Split Learning, 2022 (norm and
direction); J. Sun et al., Label Leakage and Protection from Forward Embedding in Vertical Federated
Learning, 2022 (the spectral attack, there on forward embeddings).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.entropy import Seeded
from fedveil.mechanisms.label_dp import LabelDP

#: The largest number of iterations of the clustering, and its number of starts without labels.
_ROUNDS, _STARTS = 30, 8


def directions(by_part: Sequence[Float64s]) -> Float64s:
    """Scale every gradient to length 1, and concatenate an example's gradients of all parts.

    `by_part` has one array for each of a follower's parts: the gradients, [examples, values]. A
    row of zeros stays zero. The result has one row for each example.
    """
    found = []
    for gradients in by_part:
        rows = np.asarray(gradients, np.float64).reshape(len(gradients), -1)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        found.append(np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0))
    return np.concatenate(found, axis=1)


def by_norm(by_part: Sequence[Float64s]) -> Float64s:
    """Return the scores of the norm attack. Examples of rarer classes usually have higher scores.

    `by_part` has one array for each of a follower's parts: the gradients, [examples, values]. The
    score of an example is its gradient norm divided by the mean norm of all examples, summed over
    the parts.
    """
    scores = np.zeros(len(by_part[0]))
    for gradients in by_part:
        norms = np.linalg.norm(gradients.reshape(len(gradients), -1), axis=1)
        scores += norms / (norms.mean() or 1.0)
    return scores


def by_sign(rows: Float64s) -> Float64s:
    """Return a score per row, usually above 0 in one of two classes and below 0 in the other.

    Each row has the gradients of one example, scaled to length 1 (see `directions`). A row's score
    is its projection on the first right singular vector of all rows. The sign of this vector is
    arbitrary, so either class can be the one above 0.
    """
    if rows.shape[1] > len(rows):  # both products give the same scores, so the smaller one is used
        values, vectors = np.linalg.eigh(rows @ rows.T)
        wide: Float64s = vectors[:, -1] * np.sqrt(max(values[-1], 0.0))
        return wide
    _, vectors = np.linalg.eigh(rows.T @ rows)
    scores: Float64s = rows @ vectors[:, -1]
    return scores


@dataclass(frozen=True)
class Window:
    """The gradients that a follower received in a few consecutive training steps.

    Row r of `rows` has the gradients that one example got in one step, scaled to length 1 (see
    `directions`). `places[r]` is the index of that example. An example has several rows if it was
    used in several steps.
    """

    places: Int64s
    rows: Float64s

    @classmethod
    def of(cls, rows: Float64s) -> Window:
        return cls(np.arange(len(rows)), rows)


def by_known(
    windows: Sequence[Window], examples: int, known: Int64s, labels: Int64s, classes: int
) -> Float64s:
    """Return each example's nearness to each class, [examples, classes], given some known labels.

    Each of the `windows` has the gradients that the attacker received in a few consecutive steps.
    `known` are the indices of the examples whose `labels` the attacker knows. A class's centre
    starts as the mean of the gradients of its known examples. Then it moves to the mean of all
    gradients that are nearer to it than to other centres. A class without a known example never
    scores above another class.
    """
    first = windows[0]
    label_of = np.full(examples, -1)
    label_of[known] = labels
    given = label_of[first.places]
    centres = _centres(first.rows[given >= 0], given[given >= 0], classes)
    there = np.flatnonzero(np.bincount(given[given >= 0], minlength=classes))
    scores = np.zeros((examples, classes))
    if len(there):
        near = followed(windows, examples, centres[there])
        scores[:] = near.min(axis=1, keepdims=True)
        scores[:, there] = near
    return scores


def partition(windows: Sequence[Window], examples: int, classes: int) -> Int64s:
    """Cluster the examples by the directions of their gradients. No label is used.

    Returns the group of each of the `examples` examples, from 0 to `classes` - 1. Each of the
    `windows` has the gradients of a few consecutive steps. The groups are found in the first window
    and updated in the others (see `followed`). Two groups start from the scores of `by_sign`. More
    groups start from rows that are drawn at random, with a fixed seed.
    """
    rows = windows[0].rows
    rows = rows[rows.any(axis=1)]
    if not len(rows):
        return np.zeros(examples, np.int64)
    if classes == 2:
        centres = _centres(rows, (by_sign(rows) > 0).astype(np.int64), 2)
    else:
        tried = [_settled(rows, _apart(rows, classes, start)) for start in range(_STARTS)]
        centres = max(tried, key=lambda found: float(found[1].max(axis=1).sum()))[0]
    groups: Int64s = followed(windows, examples, centres).argmax(axis=1).astype(np.int64)
    return groups


def followed(windows: Sequence[Window], examples: int, centres: Float64s) -> Float64s:
    """Return a score of each example for each cluster centre, [examples, centres].

    The score is the sum of the cosines between the example's gradients and the centre. Centres move
    from window to window, because gradients change during training. They start at `centres`. In
    each of the `windows` (the gradients of a few consecutive steps), every centre first moves to
    the mean direction of its nearest gradients. Then the cosines to the moved centres are added.
    """
    scores = np.zeros((examples, len(centres)))
    for window in windows:
        centres, near = _settled(window.rows, centres, scores[window.places])
        np.add.at(scores, window.places, near)
    return scores


def named(groups: Int64s, places: Int64s, labels: Int64s, classes: int) -> Int64s:
    """Assign a class to each group, and return the class of every example.

    `groups` has each example's group. `labels` are the known labels of the examples with the
    indices `places`. Different groups get different classes, so that as many of the known labels as
    possible are right.
    """
    classed: Int64s = _names(groups[places], labels, classes)[groups]
    return classed


def label_halves(labels: Int64s) -> tuple[Int64s, Int64s]:
    """Return the indices of two halves of the examples. Each has about half of every class."""
    counts = np.bincount(labels)[labels]
    order = np.lexsort((labels, counts))
    return np.sort(order[::2]), np.sort(order[1::2])


def decided(scores: Float64s, common: int) -> Int64s:
    """Return the best-scoring class of each example, or `common` if all its scores are equal."""
    found: Int64s = scores.argmax(axis=1).astype(np.int64)
    found[scores.max(axis=1) == scores.min(axis=1)] = common
    return found


def ceiling(eps: float | None, shares: Float64s) -> float:
    """Return the success rate of the best attacker who sees only LabelDP's randomised label.

    `shares` are the prior probabilities of the k classes. The best guess is the class c with the
    largest

        share(c) · e^eps   if c is the randomised label,   share(c)   for any other c.

    The success rate is the sum of this largest value over all k randomised labels, divided by e^eps
    + k - 1. With equal shares the rate is e^eps / (e^eps + k - 1). Without LabelDP, `eps` is None
    and the rate is 1. An attacker who also predicts the label from the features can exceed this
    rate without any leak.
    """
    likely = _likely(eps, len(shares))
    return float((likely * shares).max(axis=1).sum())


def true_of(told: Int64s, eps: float | None, shares: Float64s) -> Int64s:
    """Return the most likely true class for each randomised label in `told`.

    `eps` is LabelDP's epsilon, or None without LabelDP. `shares` are the class probabilities.
    """
    best: Int64s = (_likely(eps, len(shares)) * shares).argmax(axis=1).astype(np.int64)
    return best[told]


def _likely(eps: float | None, classes: int) -> Float64s:
    keep = 1.0 if eps is None else LabelDP(eps).keep_probability(classes)
    likely = np.full((classes, classes), (1 - keep) / (classes - 1))
    np.fill_diagonal(likely, keep)
    return likely


def _settled(
    rows: Float64s, centres: Float64s, before: Float64s | float = 0.0
) -> tuple[Float64s, Float64s]:
    """Move each centre to the mean direction of its nearest rows, repeatedly until nothing changes.

    Stops after `_ROUNDS` repetitions at the latest. The nearest centre of row r is the c with the
    largest cosine(r, c) + before[r, c]. `before` has the score of the row's example for each centre
    in earlier windows. Returns the moved centres, and the cosine of each row to each of them,
    [rows, centres].
    """
    near = rows @ centres.T
    groups = (near + before).argmax(axis=1)
    for _ in range(_ROUNDS):
        moved = _centres(rows, groups, len(centres))
        kept = ~moved.any(axis=1)
        moved[kept] = centres[kept]
        centres, near = moved, rows @ moved.T
        last, groups = groups, (near + before).argmax(axis=1)
        if np.array_equal(last, groups):
            break
    return centres, near


def _centres(rows: Float64s, groups: Int64s, count: int) -> Float64s:
    # A product of matrices, since np.add.at takes ten times as long.
    members = np.arange(count)[:, np.newaxis] == groups
    return directions([members.astype(np.float64) @ rows])


def _apart(rows: Float64s, count: int, start: int) -> Float64s:
    """Draw `count` rows that are far from each other, as in k-means++.

    The first row is drawn uniformly. Each further row is drawn with a probability proportional to
    its squared distance to the nearest row already drawn. `start` is the seed.
    """
    drawn = Seeded(0, "partition", start).generator()
    chosen = [int(drawn.integers(len(rows)))]
    far = np.full(len(rows), np.inf)
    for _ in range(count - 1):
        distances = ((rows - rows[chosen[-1]]) ** 2).sum(axis=1)
        far = np.minimum(far, distances)
        total = far.sum()
        odds = far / total if total > 0 else np.full(len(rows), 1 / len(rows))
        chosen.append(int(drawn.choice(len(rows), p=odds)))
    return rows[chosen]


def _names(groups: Int64s, labels: Int64s, classes: int) -> Int64s:
    """Return a class for each group, so that as many known labels as possible are right.

    No two groups get the same class. `groups` and `labels` have the group and the label of each
    example whose label is known. `classes` is the number of groups and of classes.
    """
    from scipy.optimize import linear_sum_assignment

    agree = np.eye(classes) / (2 * classes)  # decides ties, and outweighs no known label
    np.add.at(agree, (groups, labels), 1)
    names: Int64s = linear_sum_assignment(-agree)[1].astype(np.int64)
    return names
