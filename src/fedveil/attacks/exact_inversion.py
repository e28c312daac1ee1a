"""Exact recovery of a batch from one gradient of a dense layer followed by a ReLU.

SPEAR (Dimitrov et al., NeurIPS 2024). The layer's weight gradient is D X. X [b, features] is the
batch, and D [neurons, b] are the loss's derivatives before the ReLU. A factorisation L R gives D
and X up to an unknown b x b matrix Q: D = L Q and X = Q^-1 R. A column of D is zero at each neuron
that its example leaves silent. So the attack searches for columns of Q: vectors q for which L q has
many zeros. It finds them by iteratively reweighted least squares. It then chooses the b vectors
that best predict which neurons are silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.pictures import grid
from fedveil.attacks.target import Target
from fedveil.base.array_types import Array, Float64s
from fedveil.data.partition import Partition
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.intervals import share_of_groups
from fedveil.protections.reading import Reading

#: Larger batches are not tried.
LARGEST_BATCH = 32
#: The mean squared error below which an example counts as recovered, values in about [-1, 1].
EXACT = 1e-4
#: Largest singular value beyond the rank over the least one within it: about 1e-5 in float32, some
#: hundredths if products were rounded to 16 bits. Above `_NOISY`, zeros cannot be recognised.
_NOISY = 0.1
#: The search ends once each example explains this share of the activations. If only their mean
#: does, it continues until it has made `_LONGER` times as many starts.
_EXPLAINED, _LONGER = 0.98, 8
#: If the examples explain a larger share than this, `_chosen` exchanges directions.
_PROMISING = 0.8
_AT_ONCE = 64
#: Responses below a limit count as small, relative to a neuron's row. The limit falls from `_WIDE`
#: (or up to `_WIDEST` times more) to `_NARROW` in `_STEPS` steps, and to `zero` in `_LAST` more.
_WIDE, _WIDEST, _NARROW, _STEPS, _LAST = 0.02, 10, 1e-3, 40, 6
#: In this many first steps, rows of different lengths have different weights.
_UNEVEN = 16
#: A start is zero on neurons from the share r² with the shortest rows. r is random, at least this.
_SHORTEST = 0.4
#: Directions with at least this share of the best one's zeros may be columns of D.
_LIKELY = 0.75
#: At most this many directions are compared with each other.
_COMPARED = 800
#: Number of directions kept for each example.
_KEPT = 6
#: Of two directions whose cosine is above this, only one is kept.
_ALIKE = 0.9999


@dataclass(frozen=True)
class DenseGradient:
    """A dense layer's parameters, and their gradients `of_...` up to a common factor."""

    weights: Float64s
    biases: Float64s
    of_weights: Float64s
    of_biases: Float64s


@dataclass(frozen=True)
class _Factors:
    """A weight gradient as a product `left` @ `right`. The columns of `left` are orthonormal.

    A direction is a vector q. It is zero on neuron i if entry i of |`left` @ q| is below `zero`.
    """

    left: Float64s
    right: Float64s
    zero: float


@dataclass(frozen=True)
class _Found:
    """Directions (see `_Factors`), as columns, that a search found, and a score for each."""

    directions: Float64s
    scores: Float64s


@dataclass(frozen=True)
class _Explanation:
    """Candidate `examples` [examples, features], each computed from a direction of its own.

    `_Factors` explains directions. A correct candidate activates exactly the neurons on which its
    direction is not zero. `shares[i]` is the share of all neurons for which candidate i does so.
    """

    examples: Float64s
    shares: Float64s

    @property
    def share(self) -> float:
        return float(self.shares.mean())


def invert(
    gradient: DenseGradient, starts: int, rng: np.random.Generator, batch: int | None = None
) -> Float64s | None:
    """Return the batch [examples, features] whose mean loss has this gradient, or None on failure.

    `batch` is the number of examples, by default the rank of the weight gradient. The search draws
    at most `starts` random starts with `rng`. Most or all of the returned examples are right.
    """
    factors = _factors(gradient, batch)
    if factors is None:
        return None
    rank = factors.left.shape[1]
    found = _Found(np.empty((rank, 0)), np.empty(0))
    best, enough = _Explanation(np.empty((0, 0)), np.zeros(1)), starts
    for start in range(0, starts, _AT_ONCE):
        likely = found.scores >= _LIKELY * found.scores.max(initial=0)
        known = found.directions[:, likely][:, :rank]
        sparse = _sparse(factors, min(_AT_ONCE, starts - start), rng, known)
        found = _distinct(_refined(factors, _distinct(_zeros(factors, sparse)).directions), found)
        explanation = _chosen(gradient, factors, found.directions)
        if best.share < _EXPLAINED <= explanation.share:
            enough = min(enough, _LONGER * (start + _AT_ONCE))
        if explanation.share > best.share:
            best = explanation
        if best.shares.min() >= _EXPLAINED or start >= enough:
            break
    return best.examples if best.share >= _EXPLAINED else None


def _zeros(factors: _Factors, directions: Float64s) -> _Found:
    zeros = np.sum(np.abs(factors.left @ directions) < factors.zero, axis=0)
    return _Found(directions, zeros.astype(np.float64))


def _factors(gradient: DenseGradient, batch: int | None) -> _Factors | None:
    left, values, right = np.linalg.svd(gradient.of_weights, full_matrices=False)
    most = min(LARGEST_BATCH, len(values) - 1)
    if not values[0] > 0:
        return None
    padded = np.maximum(values, 1e-14 * values[0])
    ranks = np.arange(1, most + 1)
    rank = batch if batch is not None else int(ranks[np.argmax(padded[ranks - 1] / padded[ranks])])
    if not 1 <= rank <= most:
        return None
    error = float(padded[rank] / padded[rank - 1])
    zero = min(100 * error, max(error, 1e-2)) / np.sqrt(len(left))
    if error > _NOISY:
        return None
    return _Factors(left[:, :rank], values[:rank, None] * right[:rank], max(zero, 1e-10))


def _sparse(factors: _Factors, number: int, rng: np.random.Generator, known: Float64s) -> Float64s:
    """Search for new directions that are zero on many neurons, from `number` random starts.

    `_Factors` defines directions. The columns of `known` are those found before. Returns columns.
    """
    rank = len(known)
    lengths = np.linalg.norm(factors.left, axis=1)
    live = lengths > factors.zero
    lengths, rows = lengths[live], factors.left[live] / lengths[live, None]
    if rank == 1 or len(rows) <= rank:
        return np.eye(rank)
    directions = _starts(rows, lengths, number, rng, known)
    products = np.einsum("ni,nj->nij", rows, rows).reshape(len(rows), -1)
    uneven = (lengths / lengths.max()) ** (-2 * rng.random((number, 1)))
    uneven /= uneven.mean(axis=1, keepdims=True)
    wide = _WIDE * _WIDEST ** rng.random((number, 1))
    falling = np.geomspace(wide, _NARROW, _STEPS)
    last = np.geomspace(_NARROW, min(factors.zero, _NARROW), _LAST)
    for step, little in enumerate([*falling, *last]):
        weights = 1 / ((directions @ rows.T) ** 2 + little**2)
        if step < _UNEVEN:
            weights *= uneven
        moments = (weights @ products).reshape(number, rank, rank)
        directions = np.linalg.eigh(moments)[1][:, :, 0]
    return np.asarray(directions.T, np.float64)


def _starts(
    rows: Float64s, lengths: Float64s, number: int, rng: np.random.Generator, known: Float64s
) -> Float64s:
    """Draw `number` random unit vectors, as rows, from which to search for further directions.

    `rows` are rows of `_Factors.left` scaled to norm 1, `lengths` their norms before that, and the
    columns of `known` the directions found before. From normal noise, the components along some
    random known directions are removed, then those along some random rows, mostly of small norm.
    """
    rank = rows.shape[1]
    moved = lengths / lengths.max()
    moved += rng.integers(2) * np.sum(np.abs(rows @ known) >= _NARROW, axis=1)
    kept = known[:, rng.random(known.shape[1]) < rng.choice([0.5, 1.0])][:, : rank - 1]
    order = np.argsort(moved)
    most = min(rank - 1, len(rows))
    reach = np.maximum(most, rng.uniform(_SHORTEST, 1, (number, 1)) ** 2 * len(rows))
    drawn = rng.random((number, len(rows))) + (np.arange(len(rows)) >= reach)
    chosen = rows[order[np.argpartition(drawn, most - 1, axis=1)[:, :most]]]
    chosen *= (np.arange(most) < rng.integers(1, rank, (number, 1)))[:, :, None]
    basis = np.linalg.qr(kept)[0]
    starts = rng.standard_normal((number, rank))
    starts -= starts @ basis @ basis.T
    starts -= np.einsum("sij,sj->si", np.linalg.pinv(chosen) @ chosen, starts)
    starts /= np.linalg.norm(starts, axis=1, keepdims=True)
    return starts


def _refined(factors: _Factors, directions: Float64s) -> _Found:
    """Fit new directions to the neurons on which each old one is zero. Returns them with scores.

    `directions` has the old ones as columns. A new one is the unit vector with the least sum of
    squares over these neurons. If several are zero on all of them, each is returned. A score is the
    number of neurons on which a new one is zero, halved if several are zero on all or all but one.
    """
    found, scores = [np.empty((len(directions), 0))], [np.empty(0)]
    for silent in (np.abs(factors.left @ directions) < factors.zero).T:
        zeros = factors.left[silent]
        values, vectors = np.linalg.eigh(zeros.T @ zeros)
        free = max(1, int(np.sum(values < len(zeros) * factors.zero**2)))
        basis = vectors[:, :free]
        leverage = np.sum((zeros @ vectors[:, free:]) ** 2 / values[free:], axis=1)
        alone = np.any(leverage > 1 - 1e-6)
        silences = np.sum(np.abs(factors.left @ basis) < factors.zero, axis=0)
        found.append(basis)
        scores.append(silences / (2 if alone or free > 1 else 1))
    return _Found(np.hstack(found), np.concatenate(scores))


def _distinct(*parts: _Found) -> _Found:
    """Return the directions of all `parts` with the best scores, best first, without duplicates."""
    directions = np.hstack([part.directions for part in parts])
    largest = np.argmax(np.abs(directions), axis=0)
    signs = np.sign(directions[largest, np.arange(directions.shape[1])])
    directions = directions / (signs * np.linalg.norm(directions, axis=0))
    scores = np.concatenate([part.scores for part in parts])
    first = np.unique(np.round(directions, 4), axis=1, return_index=True)[1]
    best = first[np.argsort(-scores[first], kind="stable")[:_COMPARED]]
    directions, scores = directions[:, best], scores[best]
    alike = np.tril(np.abs(directions.T @ directions) > _ALIKE, -1)
    kept = np.flatnonzero(~np.any(alike, axis=1))[: _KEPT * len(directions)]
    return _Found(directions[:, kept], scores[kept])


def _chosen(gradient: DenseGradient, factors: _Factors, directions: Float64s) -> _Explanation:
    """Choose a column of `directions` for each example of the batch, and compute the examples.

    The columns are linearly independent, and exchanged if this increases `_Explanation.share`. The
    result has no examples if too few columns are independent.
    """
    rank = len(directions)
    chosen: list[int] = []
    for i in range(directions.shape[1]):
        if len(chosen) < rank and np.linalg.svd(directions[:, [*chosen, i]])[1][-1] > 1e-4:
            chosen.append(i)
    if len(chosen) < rank:
        return _Explanation(np.empty((0, 0)), np.zeros(1))
    best = _explained(gradient, factors, directions[:, chosen])
    for candidate in range(directions.shape[1]):
        if candidate in chosen or not _PROMISING < best.share < 1:
            continue
        for place in np.argsort(best.shares, kind="stable")[:2]:
            tried = [*chosen[:place], candidate, *chosen[place + 1 :]]
            other = _explained(gradient, factors, directions[:, tried])
            if other.share > best.share:
                best, chosen = other, tried
                break
    return best


def _explained(gradient: DenseGradient, factors: _Factors, directions: Float64s) -> _Explanation:
    columns = factors.left @ directions
    scales = np.linalg.lstsq(columns, gradient.of_biases, rcond=None)[0]
    try:
        examples = np.linalg.solve(directions * scales, factors.right)
    except np.linalg.LinAlgError:
        return _Explanation(np.empty((0, 0)), np.zeros(1))
    heard = gradient.weights @ examples.T + gradient.biases[:, None] > 0
    explained = np.mean(heard == (np.abs(columns) > factors.zero), axis=0)
    return _Explanation(np.asarray(examples, np.float64), np.asarray(explained, np.float64))


def first_layer(model: nn.Module) -> nn.Linear:
    """Return the dense layer that begins the model and precedes a ReLU.

    Raises `AttackImpossible` if there is none, or if it has no bias.
    """
    layers = [m for m in model.modules() if not list(m.children())]
    layers = layers[1:] if layers and isinstance(layers[0], nn.Flatten) else layers
    match layers:
        case [nn.Linear() as first, nn.ReLU(), *_] if first.bias is not None:
            return first
    raise AttackImpossible(
        "the model does not begin with a dense layer, its bias and a ReLU, whose gradient this "
        "attack inverts: model = mlp does"
    )


def of_report(target: Target, reading: Reading) -> DenseGradient:
    layer = first_layer(target.model)
    size, rows = layer.weight.numel(), layer.out_features
    estimate = -reading.estimate.astype(np.float64)
    return DenseGradient(
        layer.weight.detach().numpy().astype(np.float64),
        layer.bias.detach().numpy().astype(np.float64),
        estimate[:size].reshape(rows, -1),
        estimate[size : size + rows],
    )


def one_step(target: Target, batch: int) -> Target:
    """Copy the target so that clients train on `batch` examples in one local step of plain SGD."""
    data = target.job.model_dump()
    plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    data["training"] |= {"epochs": 1, "batch_size": batch, **plain}
    cohort = target.job.clients_per_round
    held = [target.rows(client) for client in range(cohort)]
    if min(map(len, held)) < batch:
        # clients have too few examples: distribute all examples again
        pool = target.partition.indices
        if len(pool) < cohort * batch:
            raise AttackImpossible(
                f"{cohort} clients of {batch} examples need {cohort * batch}: there are {len(pool)}"
            )
        held = list(pool[: cohort * batch].reshape(cohort, batch))
    rows = np.concatenate([mine[:batch] for mine in held])
    split = Partition(rows, np.arange(cohort + 1) * batch)
    return replace(target, job=type(target.job)(**data), partition=split)


def recovered(originals: Array, examples: Float64s | None) -> int:
    """Return the number of `originals` with an example at a mean squared error below `EXACT`."""
    if examples is None:
        return 0
    flat = originals.reshape(len(originals), -1).astype(np.float64)
    errors = np.mean((flat[:, None] - examples[None]) ** 2, axis=2)
    return int(np.sum(errors.min(axis=1) < EXACT))


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Invert the reports of clients that took one step on a batch of 5, 10 or 20 examples.

    Effort "quick" leaves out batches of 20. `watch` reports the progress and saves pictures. The
    attacker knows the model, the batch's size and the report. If single reports reveal nothing, the
    attacker inverts the cohort's sum as one batch.
    """
    target.needs_classes("exact")
    first_layer(target.model)
    starts = by_effort(effort, 1 << 12, 1 << 14, 1 << 17)
    cases, sizes = (10, (5, 10)) if effort == "quick" else (20, (5, 10, 20))
    figures, pictures = [], []
    for size in sizes:
        figure, picture = recovered_of_batches(one_step(target, size), size, cases, starts, watch)
        figures.append(figure)
        if picture is not None:
            name = f"exact-{target.job.protection.name}-{size}.png"
            pictures.append(watch.picture(name, picture))
    saw = f"a report of one local step over {', '.join(map(str, sizes))} examples"
    if target.job.training.precision == "bfloat16":
        saw += (
            ", made by products of 16 bits: larger batches hide in the rounding, from this attack "
            "alone"
        )
    return target.finding("exact", effort, figures, saw=saw, pictures=pictures)


def recovered_of_batches(
    target: Target, size: int, cases: int, starts: int, watch: Watch
) -> tuple[Measured, bytes | None]:
    """Attack up to `cases` batches of `size` examples, with `starts` random starts each.

    Returns the share of examples recovered, and a PNG of a recovered batch of images or None.
    """
    seen = target.server_view(target.updates(range(target.partition.clients)))
    readings: Sequence[Reading] = seen.readings[:cases]
    parts = [target.rows(i) for i in range(len(readings))]
    if all(reading.empty for reading in readings):
        readings, parts = [seen.mean], [target.rows_of(seen.asked)]
    hits, picture = list[int](), None  # per batch: its examples are mostly found together
    for i, (reading, rows) in enumerate(zip(readings, parts, strict=True)):
        watch.step(i, len(readings), f"batches of {size}")
        rng = Seeded(target.job.seed, "attack", "exact", size, i).generator()
        examples = invert(of_report(target, reading), starts, rng, len(rows))
        originals = target.dataset.train.x[rows]
        hits.append(recovered(originals, examples))
        if picture is None and examples is not None and len(target.dataset.example_shape) == 3:
            picture = _picture(originals, examples)
    name = f"recovered of batches of {size}"
    return share_of_groups(name, hits, [*map(len, parts)], guess=0.0), picture


def _picture(originals: Array, examples: Float64s) -> bytes:
    flat = originals.reshape(len(originals), -1).astype(np.float64)
    nearest = np.argmin(np.mean((flat[:, None] - examples[None]) ** 2, axis=2), axis=1)
    low, high = float(flat.min()), float(flat.max())
    rows = [flat, examples[nearest]]
    unit = [[(row.reshape(originals.shape[1:]) - low) / (high - low) for row in r] for r in rows]
    return grid(unit)
