"""A batch of examples, exactly, from one gradient of a dense layer with a ReLU behind it.

SPEAR (Dimitrov et al., NeurIPS 2024). The weight gradient of the layer is D X, with X [b, features]
the batch and D [neurons, b] the loss's derivatives before the ReLU: its rank is at most b. Any
factors L R of that rank are D and X up to an unknown b x b matrix, D = L Q and X = Q^-1 R. A column
of D is zero wherever its example leaves a neuron silent, about every second time, which no other
direction in the span of L is. So b - 1 neurons that happen to be silent for an example determine
its column: the one direction that is zero on all of them. Directions are sampled, those with many
zeros kept, and b of them chosen whose examples explain which neurons are silent. The bias gradient
gives the scales.

How many samples that takes grows as 2^(b - 1) where all are drawn alike. Here every second one is
drawn near the sparsest directions so far, which are sums of few columns.
"""

from __future__ import annotations

import time
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

#: Larger batches are not tried: 2^(b - 1) samples.
LARGEST_BATCH = 24
#: The mean squared error below which a recovered example is the example, values in [-1, 1] or so.
EXACT = 1e-4
#: The share of the layer's activations that the examples found must explain to be believed.
_EXPLAINED = 0.98
_SAMPLES_AT_ONCE = 1024
#: How many directions are kept for each example.
_KEPT = 4
#: The cosine above which two directions are not kept both.
_ALIKE = 0.95


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


def invert(
    gradient: DenseGradient, samples: int, rng: np.random.Generator, batch: int | None = None
) -> Float64s | None:
    """The batch [examples, features] whose mean loss has this gradient; None if none is found.

    The attacker knows the layer and the gradient, and how large the batch is if `batch` is given,
    else it takes the gradient's rank. At most so many `samples` are drawn. What is returned
    explains which neurons each example leaves silent, so that the attacker knows that it is right.
    """
    factors = _factors(gradient, batch)
    if factors is None:
        return None
    rank = factors.left.shape[1]
    live = np.flatnonzero(np.linalg.norm(factors.left, axis=1) > factors.zero)
    if len(live) < rank:
        return None
    found = np.empty((rank, 0))
    for start in range(0, samples, _SAMPLES_AT_ONCE):
        count = min(_SAMPLES_AT_ONCE, samples - start)
        sampled = _sampled(factors, live, count, found, rng)
        found = _distinct(factors, np.hstack([found, sampled]))
        examples = _chosen(gradient, factors, found)
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
    factors: _Factors, live: Array, count: int, near: Float64s, rng: np.random.Generator
) -> Float64s:
    """Directions [rank, ...] that are zero on the neurons of a sample each: those with most zeros.

    Every second sample is of any neurons. The others are, but for one to three, of those on which
    one of the directions `near` is zero: where that is a sum of few columns, one of them is close.
    """
    rank = factors.left.shape[1]
    order = rng.random((count, len(live)))
    if near.shape[1]:
        zeros = np.abs(factors.left[live] @ near) < factors.zero
        order[::2] -= zeros[:, rng.integers(near.shape[1], size=len(order[::2]))].T
    rows = live[np.argpartition(order, min(rank, len(live) - 1), axis=1)[:, : rank - 1]]
    for other in range(min(3, rank - 1)):
        drawn = rng.integers(3, size=len(rows[::2])) >= other
        rows[::2, other] = np.where(drawn, rng.choice(live, len(drawn)), rows[::2, other])
    systems = np.empty((count, rank, rank))
    systems[:, :-1] = factors.left[rows]
    systems[:, -1] = rng.standard_normal((count, rank))
    systems += 1e-12 * rng.standard_normal(systems.shape)  # two neurons may say the same
    wanted = np.zeros((count, rank, 1))
    wanted[:, -1] = 1
    directions = np.linalg.solve(systems, wanted)[:, :, 0]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    distinct = _distinct(factors, np.asarray(directions.T, np.float64))
    silent = np.abs(factors.left @ distinct) < factors.zero
    return _refined(factors, silent[:, silent.sum(axis=0) >= rank])


def _refined(factors: _Factors, silent: Array) -> Float64s:
    """Each direction again, from all neurons on which it was found to be zero."""
    columns = [np.linalg.eigh(factors.left[z].T @ factors.left[z])[1][:, 0] for z in silent.T]
    return np.array(columns).reshape(-1, factors.left.shape[1]).T


def _distinct(factors: _Factors, directions: Float64s) -> Float64s:
    """The sparsest of the directions without repetitions, those with the most zeros first."""
    zeros = np.sum(np.abs(factors.left @ directions) < factors.zero, axis=0)
    ordered = directions[:, np.argsort(-zeros, kind="stable")]
    alike = np.abs(ordered.T @ ordered) > _ALIKE
    first = ~np.any(np.tril(alike, -1), axis=1)
    return ordered[:, first][:, : _KEPT * len(directions)]


def _chosen(gradient: DenseGradient, factors: _Factors, directions: Float64s) -> Float64s | None:
    """Examples from `rank` of the directions: the sparsest, then with each exchange that helps.

    Exchanges are tried where most of the activations are explained already.
    """
    rank = len(directions)
    chosen: list[int] = []
    for i in range(directions.shape[1]):
        if np.linalg.svd(directions[:, [*chosen, i]])[1][-1] > 1e-4 and len(chosen) < rank:
            chosen.append(i)
    if len(chosen) < rank:
        return None
    examples, best = _explained(gradient, factors, directions[:, chosen])
    for candidate in range(min(directions.shape[1], rank + 4)):
        for place in range(rank):
            if not 0.8 < best < _EXPLAINED or candidate in chosen:
                break
            tried = [*chosen[:place], candidate, *chosen[place + 1 :]]
            other, better = _explained(gradient, factors, directions[:, tried])
            if better > best:
                examples, best, chosen = other, better, tried
    return examples if best >= _EXPLAINED else None


def _explained(
    gradient: DenseGradient, factors: _Factors, directions: Float64s
) -> tuple[Float64s, float]:
    """The examples that these directions give, and the share of activations they explain."""
    columns = factors.left @ directions
    scales = np.linalg.lstsq(columns, gradient.of_biases, rcond=None)[0]
    try:
        examples = np.linalg.solve(directions * scales, factors.right)
    except np.linalg.LinAlgError:
        return np.empty((0, factors.right.shape[1])), 0.0
    heard = gradient.weights @ examples.T + gradient.biases[:, None] > 0
    explained = float(np.mean(heard == (np.abs(columns) > factors.zero)))
    return np.asarray(examples, np.float64), explained


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
    began = time.monotonic()
    first_layer(target.model)
    samples = by_effort(effort, 1 << 19, 1 << 21, 1 << 24)
    cases = by_effort(effort, (10, 10, 2), (20, 20, 10), (20, 20, 20))
    figures, pictures = [], []
    for size, number in zip((5, 10, 20), cases, strict=True):
        figure, picture = recovered_of_batches(one_step(target, size), size, number, samples, watch)
        figures.append(figure)
        if picture is not None:
            name = f"exact-{target.job.protection.name}-{size}.png"
            pictures.append(watch.picture(name, picture))
    return target.finding(
        "exact",
        effort,
        figures,
        saw="a report of one local step over 5, 10 or 20 examples",
        seconds=time.monotonic() - began,
        pictures=pictures,
    )


def recovered_of_batches(
    target: Target, size: int, cases: int, samples: int, watch: Watch
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
        examples = invert(of_report(target, reading), samples, rng, batch)
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
