"""Labels read from the gradients that come back to a follower in split training.

The gradient of an example's loss is (p - e_label), the probabilities less a 1 at the label, seen
through the leader's part. Where that is linear and there are two classes, every gradient is a
multiple of one vector, and its sign is the label. Elsewhere the gradients of a class lie closer
together than to those of others. The attacker knows its own gradients and how large the classes
are, and for some attacks the labels of a few examples; nothing of the leader's part.

Sources: O. Li et al., Label Leakage and Protection in Two-party Split Learning, 2022 (norm and
direction); J. Sun et al., Label Leakage and Protection from Forward Embedding in Vertical
Federated Learning, 2022 (the spectral attack, there on what goes forward).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.base.arrays import Float64s, Int64s
from fedveil.entropy import Seeded
from fedveil.mechanisms.label_dp import LabelDP

#: How often the centres of the classes are moved, at most; and begun anew where nothing is known.
_ROUNDS, _STARTS = 30, 8


def directions(looks: Sequence[Float64s]) -> Float64s:
    """Each example's gradients, [examples, values] a look, at length 1 and side by side.

    Looks are the parts that a follower has a gradient of: inner products of what is returned are
    sums of the looks' cosines. A row of zeros stays one.
    """
    found = []
    for gradients in looks:
        rows = np.asarray(gradients, np.float64).reshape(len(gradients), -1)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        found.append(np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0))
    return np.concatenate(found, axis=1)


def by_norm(looks: Sequence[Float64s]) -> Float64s:
    """The norm attack: a score of each example, the greater, the rarer its class is likely to be.

    A network that has learnt how frequent the classes are is surprised by the rarer one. What is
    summed are an example's norms, each look's by its mean.
    """
    scores = np.zeros(len(looks[0]))
    for gradients in looks:
        norms = np.linalg.norm(gradients.reshape(len(gradients), -1), axis=1)
        scores += norms / (norms.mean() or 1.0)
    return scores


def by_sign(rows: Float64s) -> Float64s:
    """Of two classes, a score of each example whose sign tells them apart, not which is which.

    `rows` are `directions`. The score is the projection on their first right singular vector.
    """
    if rows.shape[1] > len(rows):  # the same from the smaller of both products
        values, vectors = np.linalg.eigh(rows @ rows.T)
        wide: Float64s = vectors[:, -1] * np.sqrt(max(values[-1], 0.0))
        return wide
    _, vectors = np.linalg.eigh(rows.T @ rows)
    scores: Float64s = rows @ vectors[:, -1]
    return scores


@dataclass(frozen=True)
class Window:
    """Some steps in a row: whose gradients came back, as places among all examples, and where to.

    `rows` are `directions`, one for each time that one of `places` came up.
    """

    places: Int64s
    rows: Float64s

    @classmethod
    def of(cls, rows: Float64s) -> Window:
        """A window that every example came up in once, in order."""
        return cls(np.arange(len(rows)), rows)


def by_known(
    windows: Sequence[Window], examples: int, known: Int64s, labels: Int64s, classes: int
) -> Float64s:
    """The direction attack: [examples, classes], how near to each class the gradients point.

    The labels of the examples `known` are known. A class begins as the mean of their rows in the
    first window and becomes the mean of all that are nearest to it, as often as that changes
    anything, from window to window. A class without any is never the best.
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


def partition(windows: Sequence[Window], examples: int, classes: int, seed: int = 0) -> Int64s:
    """Which of so many groups each example is in, without a label: two by sign, more by nearness.

    More groups begin at examples of the first window that point apart, drawn from the seed; of
    several beginnings that one is taken whose examples lie closest to the middle of their group.
    """
    rows = windows[0].rows
    rows = rows[rows.any(axis=1)]
    if not len(rows):
        return np.zeros(examples, np.int64)
    if classes == 2:
        centres = _centres(rows, (by_sign(rows) > 0).astype(np.int64), 2)
    else:
        tried = [_settled(rows, _apart(rows, classes, seed, start)) for start in range(_STARTS)]
        centres = max(tried, key=lambda found: float(found[1].max(axis=1).sum()))[0]
    groups: Int64s = followed(windows, examples, centres).argmax(axis=1).astype(np.int64)
    return groups


def followed(windows: Sequence[Window], examples: int, centres: Float64s) -> Float64s:
    """[examples, groups]: cosines to the middle of each group, added up over the windows.

    The middles move with the weights of the leader's part: each window begins at those before, and
    keeps the examples that came up before together.
    """
    scores = np.zeros((examples, len(centres)))
    for window in windows:
        centres, near = _settled(window.rows, centres, scores[window.places])
        np.add.at(scores, window.places, near)
    return scores


def named(groups: Int64s, places: Int64s, labels: Int64s, classes: int) -> Int64s:
    """The groups as classes: named so that most of the labels at `places` are right."""
    classed: Int64s = _names(groups[places], labels, classes)[groups]
    return classed


def decided(scores: Float64s, common: int) -> Int64s:
    """The class of the best score; the most common one where no class has a better one."""
    found: Int64s = scores.argmax(axis=1).astype(np.int64)
    found[scores.max(axis=1) == scores.min(axis=1)] = common
    return found


def ceiling(eps: float | None, shares: Float64s) -> float:
    """How often the best attacker is right under LabelDP who sees the label that is told.

    `shares` are the classes' odds before it. From even odds that is the label told, right with
    probability e^eps / (e^eps + k - 1); from others the most likely class of

        share(c) · e^eps   where c is told,   share(c)   of any other c,

    over e^eps + k - 1. An attacker to whom the features tell the label is right more often, as
    anybody is who has the features and a model: that is no leak of the label. None is no LabelDP.
    """
    likely = _likely(eps, len(shares))
    return float((likely * shares).max(axis=1).sum())


def true_of(told: Int64s, eps: float | None, shares: Float64s) -> Int64s:
    """The likeliest true class of each told one under LabelDP, where classes have these odds."""
    best: Int64s = (_likely(eps, len(shares)) * shares).argmax(axis=1).astype(np.int64)
    return best[told]


def _likely(eps: float | None, classes: int) -> Float64s:
    """The probability of each told class (a row) under each true one."""
    keep = 1.0 if eps is None else LabelDP(eps).keep_probability(classes)
    likely = np.full((classes, classes), (1 - keep) / (classes - 1))
    np.fill_diagonal(likely, keep)
    return likely


def _settled(
    rows: Float64s, centres: Float64s, before: Float64s | float = 0.0
) -> tuple[Float64s, Float64s]:
    """The centres, moved until they are the means of the rows that are nearest; the cosines.

    What was found of the rows' examples `before` counts for which centre is nearest.
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
    """The direction of each group's mean; zeros where it has none."""
    sums = np.zeros((count, rows.shape[1]))
    np.add.at(sums, groups, rows)
    return directions([sums])


def _apart(rows: Float64s, count: int, seed: int, start: int) -> Float64s:
    """So many of the rows, the next likelier the farther it is from those before."""
    drawn = Seeded(seed, "partition", start).generator()
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
    """A class for each group, none twice, so that most labels are right; in doubt its number."""
    from scipy.optimize import linear_sum_assignment

    agree = np.eye(classes) / 2
    np.add.at(agree, (groups, labels), 1)
    names: Int64s = linear_sum_assignment(-agree)[1].astype(np.int64)
    return names
