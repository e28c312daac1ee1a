"""A batch of examples, exactly, from one gradient of a dense layer with a ReLU behind it.

SPEAR (Dimitrov et al., NeurIPS 2024). The weight gradient of the layer is D X, with X [b, features]
the batch and D [neurons, b] the loss's derivatives before the ReLU: its rank is at most b. Any
factors L R of that rank are D and X up to an unknown b x b matrix, D = L Q and X = Q^-1 R. A column
of D is zero wherever its example leaves a neuron silent, about every second time, which no other
direction in the span of L is. So b - 1 neurons that happen to be silent for an example determine
its column: the one direction that is zero on all of them. Directions are sampled, those with many
zeros kept, and b of them chosen whose examples explain which neurons are silent. The bias gradient
gives the scales.

How many samples that takes grows as 2^(b - 1) where neurons are drawn alike and one direction is
tried for each draw. Three things make it fewer. Neurons differ: one that is silent for most of the
batch has a short row in L, and neurons are drawn among those with the shortest rows, now more, now
fewer of them. Each draw of b neurons is worth many directions: those that are zero on all but one
of them, and, of any two, the one that is zero on a further neuron as well. Where the neurons on
which a direction is zero leave more than one free, because some examples move none of them, the
same is done within the few that are left. And once some directions are known, so is which neurons
their examples move: in every second turn neurons are drawn among those that few of them move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from fedveil._arrays import Array, Float64s
from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.pictures import grid
from fedveil.attacks.target import Target
from fedveil.data.partition import Partition
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.intervals import share
from fedveil.protections.reading import Reading

#: Larger batches are not tried.
LARGEST_BATCH = 24
#: The mean squared error below which a recovered example is the example, values in [-1, 1] or so.
EXACT = 1e-4
#: The share of the layer's activations that the examples found must explain to be believed.
_EXPLAINED = 0.98
#: The share from which on single directions are exchanged.
_PROMISING = 0.8
_DRAWS_AT_ONCE = 256
#: Of each draw so many further neurons are looked at, and a direction zero on so many is kept.
_CHECKED, _ENOUGH = 16, 5
#: The root of the share of neurons, those with the shortest rows, that draws are at least from.
_SHORTEST = 0.4
#: Draws within what a direction's neurons leave free.
_WITHIN = 16
#: Directions are compared with each other, so many at most.
_COMPARED = 800
#: How many directions are kept for each example.
_KEPT = 20
#: The cosine above which two directions are not kept both.
_ALIKE = 0.9999


@dataclass(frozen=True)
class DenseGradient:
    """A dense layer's weights and biases, and their gradients, up to one factor common to both."""

    weights: Float64s
    biases: Float64s
    of_weights: Float64s
    of_biases: Float64s


@dataclass(frozen=True)
class _Factors:
    """gradient = left @ right with orthonormal columns in `left`, and what counts as zero there."""

    left: Float64s
    right: Float64s
    zero: float


@dataclass(frozen=True)
class _Found:
    """Directions [rank, ...], and on how many neurons each is zero."""

    directions: Float64s
    scores: Float64s


def invert(
    gradient: DenseGradient, draws: int, rng: np.random.Generator, batch: int | None = None
) -> Float64s | None:
    """The batch [examples, features] whose mean loss has this gradient; None if none is found.

    The attacker knows the layer and the gradient, and how large the batch is if `batch` is given,
    else it takes the gradient's rank. Neurons are drawn at most so many times. What is returned
    explains nearly all of which neurons each example leaves silent: most or all of it is right.
    """
    factors = _factors(gradient, batch)
    if factors is None:
        return None
    rank = factors.left.shape[1]
    found, tried = _Found(np.empty((rank, 0)), np.empty(0)), 0
    for start in range(0, draws, _DRAWS_AT_ONCE):
        known = found.directions[:, :rank] if start // _DRAWS_AT_ONCE % 2 else None
        sampled = _sampled(factors, min(_DRAWS_AT_ONCE, draws - start), rng, known)
        found = _distinct(_refined(factors, _sparsest(factors, sampled), rng), found)
        if start < 2 * tried and start + _DRAWS_AT_ONCE < draws:
            continue
        tried = start
        examples = _chosen(gradient, factors, found.directions)
        if examples is not None:
            return examples
    return None


def _factors(gradient: DenseGradient, batch: int | None) -> _Factors | None:
    """The factors of the gradient's rank; None where the rank is not that of a small batch."""
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
    zero = min(100 * error, 1e-2) / np.sqrt(len(left))
    if error > 1e-3:
        return None
    return _Factors(left[:, :rank], values[:rank, None] * right[:rank], max(zero, 1e-10))


def _sampled(
    factors: _Factors, draws: int, rng: np.random.Generator, known: Float64s | None = None
) -> Float64s:
    """Directions [rank, ...] that are zero on many neurons, from so many draws of neurons.

    They are drawn among those with the shortest rows, or on which most `known` directions are zero.
    """
    rank = factors.left.shape[1]
    lengths = np.linalg.norm(factors.left, axis=1)
    heard = lengths / lengths.max(initial=factors.zero)
    if known is not None:
        heard += np.sum(np.abs(factors.left @ known) >= factors.zero, axis=1)
    live = lengths > factors.zero
    rows = factors.left[live][np.argsort(heard[live])]
    drawn = min(rank + _CHECKED, len(rows))
    if rank == 1 or drawn < rank + 2:
        return np.eye(rank)
    reach = np.maximum(drawn, rng.uniform(_SHORTEST, 1, (draws, 1)) ** 2 * len(rows))
    order = rng.random((draws, len(rows))) + (np.arange(len(rows)) >= reach)
    chosen = rows[np.argpartition(order, drawn - 1, axis=1)[:, :drawn]]
    fixed, checked = chosen[:, :rank], chosen[:, rank:]
    jitter = 1e-12 * rng.standard_normal(fixed.shape)  # two neurons may say the same
    directions = np.linalg.inv(fixed + jitter)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    alone = _alone(directions, checked, factors.zero)
    return np.concatenate([alone, _paired(directions, checked, factors.zero)]).T


def _alone(directions: Float64s, checked: Float64s, zero: float) -> Float64s:
    """Those of the directions [draws, rank, :] that are zero on many of the checked neurons."""
    often = np.sum(np.abs(checked @ directions) < zero, axis=1) >= _ENOUGH
    draw, which = np.nonzero(often)
    return directions[draw, :, which]


def _paired(directions: Float64s, checked: Float64s, zero: float) -> Float64s:
    """The same of what any two directions of a draw make that is zero on its first neuron."""
    first, second = np.triu_indices(directions.shape[2], 1)
    values = checked @ directions
    a, b = values[:, 0, second], -values[:, 0, first]
    angles = (np.swapaxes(directions, 1, 2) @ directions)[:, first, second]
    length = np.sqrt(np.maximum(a * a + b * b + 2 * a * b * angles, 1e-300))
    a, b = a / length, b / length
    rest = values[:, 1:, first] * a[:, None]
    rest += values[:, 1:, second] * b[:, None]
    draw, pair = np.nonzero(np.sum(np.abs(rest) < zero, axis=1) >= _ENOUGH)
    one, other = directions[draw, :, first[pair]], directions[draw, :, second[pair]]
    mixed: Float64s = a[draw, pair, None] * one + b[draw, pair, None] * other
    return mixed


def _sparsest(factors: _Factors, directions: Float64s) -> Float64s:
    """Those of the directions with the most zeros."""
    zeros = np.sum(np.abs(factors.left @ directions) < factors.zero, axis=0)
    return _distinct(_Found(directions, zeros.astype(np.float64))).directions


def _refined(
    factors: _Factors, directions: Float64s, rng: np.random.Generator, depth: int = 2
) -> _Found:
    """Each direction again, from all neurons on which it is zero.

    Where these leave several directions free, those that are zero on the most others are sought.
    One that rests on a single neuron, without which several would be free, counts half: there is
    one for every neuron.
    """
    rank = len(directions)
    found, scores = [np.empty((rank, 0))], [np.empty(0)]
    within = [np.empty((rank, 0))]
    for silent in (np.abs(factors.left @ directions) < factors.zero).T:
        zeros = factors.left[silent]
        values, vectors = np.linalg.eigh(zeros.T @ zeros)
        free = max(1, int(np.sum(values < len(zeros) * factors.zero**2)))
        basis = vectors[:, :free]
        if 1 < free < rank and depth:
            part = _Factors(factors.left @ basis, factors.right, factors.zero)
            within.append(basis @ _sampled(part, _WITHIN, rng))
            continue
        leverage = np.sum((zeros @ vectors[:, free:]) ** 2 / values[free:], axis=1)
        alone = np.any(leverage > 1 - 1e-6)
        silences = np.sum(np.abs(factors.left @ basis) < factors.zero, axis=0)
        found.append(basis)
        scores.append(silences / (2 if alone or free > 1 else 1))
    refined = _Found(np.hstack(found), np.concatenate(scores))
    inner = np.hstack(within)
    if not inner.shape[1]:
        return refined
    return _distinct(refined, _refined(factors, _sparsest(factors, inner), rng, depth - 1))


def _distinct(*parts: _Found) -> _Found:
    """The best of all these directions without repetitions, the best first."""
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


def _chosen(gradient: DenseGradient, factors: _Factors, directions: Float64s) -> Float64s | None:
    """Examples from `rank` of the directions: the first, then with each exchange that helps.

    Exchanges are tried where most of the activations are explained already, in the place of the
    two directions whose own are explained worst.
    """
    rank = len(directions)
    chosen: list[int] = []
    for i in range(directions.shape[1]):
        if len(chosen) < rank and np.linalg.svd(directions[:, [*chosen, i]])[1][-1] > 1e-4:
            chosen.append(i)
    if len(chosen) < rank:
        return None
    examples, shares = _explained(gradient, factors, directions[:, chosen])
    for candidate in range(directions.shape[1]):
        if candidate in chosen or not _PROMISING < shares.mean() < 1:
            continue
        for place in np.argsort(shares, kind="stable")[:2]:
            tried = [*chosen[:place], candidate, *chosen[place + 1 :]]
            other, better = _explained(gradient, factors, directions[:, tried])
            if better.mean() > shares.mean():
                examples, shares, chosen = other, better, tried
                break
    return examples if shares.mean() >= _EXPLAINED else None


def _explained(
    gradient: DenseGradient, factors: _Factors, directions: Float64s
) -> tuple[Float64s, Float64s]:
    """The examples that these directions give, and the share of activations each explains."""
    columns = factors.left @ directions
    scales = np.linalg.lstsq(columns, gradient.of_biases, rcond=None)[0]
    try:
        examples = np.linalg.solve(directions * scales, factors.right)
    except np.linalg.LinAlgError:
        return np.empty((0, factors.right.shape[1])), np.zeros(len(directions))
    heard = gradient.weights @ examples.T + gradient.biases[:, None] > 0
    explained = np.mean(heard == (np.abs(columns) > factors.zero), axis=0)
    return np.asarray(examples, np.float64), np.asarray(explained, np.float64)


def first_layer(model: nn.Module) -> nn.Linear:
    """The dense layer that a model begins with; raises `AttackImpossible` for another model."""
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
    """What a reading of a report says of the gradient of the target's first layer."""
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
    """The same with clients of `batch` examples each, all in one local step of plain SGD."""
    data = target.job.model_dump()
    data["training"] |= {"epochs": 1, "batch_size": batch, "momentum": 0.0, "optimizer": "sgd"}
    cohort = target.job.clients_per_round
    held = [target.rows(client) for client in range(cohort)]
    if min(map(len, held)) < batch:
        pool = target.partition.indices  # too few each: dealt anew from all that there are
        if len(pool) < cohort * batch:
            raise AttackImpossible(
                f"{cohort} clients of {batch} examples need {cohort * batch}, the data has "
                f"{len(pool)}"
            )
        held = list(pool[: cohort * batch].reshape(cohort, batch))
    rows = np.concatenate([mine[:batch] for mine in held])
    split = Partition(rows, np.arange(cohort + 1) * batch)
    return replace(target, job=type(target.job)(**data), partition=split)


def recovered(originals: Array, examples: Float64s | None) -> int:
    """How many of the originals are among the examples found, exactly."""
    if examples is None:
        return 0
    flat = originals.reshape(len(originals), -1).astype(np.float64)
    errors = np.mean((flat[:, None] - examples[None]) ** 2, axis=2)
    return int(np.sum(errors.min(axis=1) < EXACT))


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Invert the reports of clients that took one step over 5, 10 and 20 examples.

    The attacker knows the model, the size of a batch and the report. Where the reports say nothing
    it is given the cohort's sum, whose rank is that of all the examples in it.
    """
    target.needs_classes("exact")
    first_layer(target.model)
    draws = by_effort(effort, 1 << 17, 1 << 19, 1 << 22)
    cases = by_effort(effort, (10, 10, 4), (20, 20, 20), (20, 20, 20))
    figures, pictures = [], []
    for size, number in zip((5, 10, 20), cases, strict=True):
        figure, picture = recovered_of_batches(one_step(target, size), size, number, draws, watch)
        figures.append(figure)
        if picture is not None:
            name = f"exact-{target.job.protection.name}-{size}.png"
            pictures.append(watch.picture(name, picture))
    return target.finding(
        "exact",
        effort,
        figures,
        saw="a report of one local step over 5, 10 or 20 examples",
        pictures=pictures,
    )


def recovered_of_batches(
    target: Target, size: int, cases: int, draws: int, watch: Watch
) -> tuple[Measured, bytes | None]:
    """The share of examples recovered from the reports of some clients, and the first batch."""
    seen = target.seen(target.updates(range(target.partition.clients)))
    readings: Sequence[Reading] = seen.readings[:cases]
    sizes = [size] * len(readings)
    if all(reading.empty for reading in readings):
        readings = [Reading(seen.aggregate, np.ones_like(seen.aggregate))]
        sizes = [len(target.partition.indices)]
    hits, total, picture = 0, 0, None
    shape = target.dataset.example_shape
    for i, (reading, batch) in enumerate(zip(readings, sizes, strict=True)):
        watch.step(i, len(readings), f"batches of {size}")
        rng = Seeded(target.job.seed, "attack", "exact", size, i).generator()
        examples = invert(of_report(target, reading), draws, rng, batch)
        rows = target.rows(i) if batch == size else target.partition.indices
        originals = target.dataset.train.x[rows]
        hits, total = hits + recovered(originals, examples), total + len(originals)
        if picture is None and examples is not None and len(shape) == 3:
            picture = _picture(originals, examples)
    return share(f"recovered of batches of {size}", hits, total, guess=0.0), picture


def _picture(originals: Array, examples: Float64s) -> bytes:
    """Originals above what was found nearest to each."""
    flat = originals.reshape(len(originals), -1).astype(np.float64)
    nearest = np.argmin(np.mean((flat[:, None] - examples[None]) ** 2, axis=2), axis=1)
    low, high = float(flat.min()), float(flat.max())
    rows = [flat, examples[nearest]]
    unit = [[(row.reshape(originals.shape[1:]) - low) / (high - low) for row in r] for r in rows]
    return grid(unit)
