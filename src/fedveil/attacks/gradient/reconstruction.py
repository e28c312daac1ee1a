"""Reconstruction of a client's examples from the attacker's estimate of its update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedveil.attacks.gradient.label_recovery import LastLayer, recover
from fedveil.attacks.gradient.matching import Distance, Found, by_lbfgs, by_signed_adam
from fedveil.attacks.gradient.unrolled_training import UnrolledTraining
from fedveil.attacks.smoothness import total_variation
from fedveil.base.array_types import Float64s, Int64s
from fedveil.protections.reading import Reading


@dataclass(frozen=True)
class Knowledge:
    """The attacker's knowledge besides the observed update: the job, and typical data.

    `training` computes the client's update from its `count` examples. `prior` is a typical example,
    and all values of examples are in `box`. `clients` is above 1 if the observed update is the mean
    of several clients, each with `count` examples. `probes` are typical examples (possibly only
    `prior`) to estimate the last layer's inputs. `common` is the label to guess without any
    knowledge.
    """

    training: UnrolledTraining
    count: int
    prior: Tensor
    probes: Tensor
    box: tuple[float, float] = (0.0, 1.0)
    clients: int = 1
    common: int = 0

    @property
    def total(self) -> int:
        """Return the number of examples of all attacked clients together."""
        return self.count * self.clients


@dataclass(frozen=True)
class Search:
    """Settings of a search for inputs whose update is close to the observed one.

    With `distance` "squared", the search minimises the squared distance by L-BFGS (Zhu et al.
    2019). With "cosine", it minimises 1 - cosine plus `variation` times the images' total
    variation, by Adam on signs (Geiping et al. 2020). The search begins at up to `restarts` random
    starting points, and returns the best result. It ends early if a result has a value below
    `near`. If the best value is below `explains`, the attack's later searches are skipped.
    """

    distance: Literal["squared", "cosine"]
    iterations: int
    restarts: int = 1
    variation: float = 0.0
    near: float = 1e-4
    explains: float = 1e-2


@dataclass(frozen=True)
class Reconstruction:
    """Reconstructed examples and labels, and how close their update is to the observed one.

    A search found the examples. `by` is its kind of distance, "squared" or "cosine". `value` is the
    smallest value of the function that it minimised. If no search ran, the examples are a guess,
    `by` is "guess" and `value` is infinite.
    """

    examples: Float64s
    labels: Int64s
    value: float
    by: str


def reconstruct(
    reading: Reading,
    known: Knowledge,
    searches: Sequence[Search],
    draw: torch.Generator,
    labels: Int64s | Literal["joint"] | None = None,
) -> Reconstruction:
    """Reconstruct the examples behind an observed update.

    `reading` is the attacker's estimate of the update, and `known` has its other knowledge. The
    `searches` run in order. Each starts from examples drawn with `draw`, and minimises the distance
    of the examples' update from the estimate (see `Search`). If the value it reaches is below its
    `explains`, no further search runs. The result is that of the last search that ran.

    If `reading.scaled` is False, the estimate has the update's direction but not its length, and
    searches by squared distance are skipped. If no search ran, or if `reading` reveals nothing, the
    result has `known.prior` for each example.

    `labels` are the examples' labels. If None, they come from `recovered_labels`. If "joint",
    labels and examples are first searched for together (Zhu et al. 2019).
    """
    if not (reading.weight * reading.estimate**2).any():
        return _guess(known)
    distance = Distance(reading, known.prior.device.type)
    if labels is None:
        labels = recovered_labels(reading, known)
    if isinstance(labels, str):
        labels = _joint_labels(reading, known, distance, searches[0], draw)
    usable = [s for s in searches if reading.scaled or s.distance == "cosine"]
    result = _guess(known)
    for search in usable:
        found = _search(known, distance, search, labels, draw)
        examples = found.point.clamp(*known.box).cpu().double().numpy()
        result = Reconstruction(examples, labels, found.value, search.distance)
        if found.value < search.explains:
            break
    return result


def recovered_labels(reading: Reading, known: Knowledge) -> Int64s | Literal["joint"]:
    """Return the labels recovered from the last layer, or "joint" if this layer is not dense.

    With "joint", `reconstruct` searches for labels and examples together.
    """
    training = known.training
    layer = LastLayer.of(training.model, known.probes)
    if layer is None:
        return "joint"
    plan = training.plan
    one_step = training.steps(known.count) == 1 and plan.optimizer == "sgd"
    scale = plan.lr if one_step and reading.scaled else None
    return recover(reading, layer, known.total, scale)


def _guess(known: Knowledge) -> Reconstruction:
    examples = known.prior.expand(known.total, *known.prior.shape).cpu().double().numpy()
    return Reconstruction(examples, np.full(known.total, known.common), float("inf"), "guess")


def _search(
    known: Knowledge, distance: Distance, search: Search, labels: Int64s, draw: torch.Generator
) -> Found:
    device = known.prior.device
    classes = _classes(known)
    targets = torch.nn.functional.one_hot(torch.from_numpy(labels), classes).float().to(device)
    measure = distance.squared if search.distance == "squared" else distance.cosine

    def objective(examples: Tensor) -> Tensor:
        apart = measure(known.training.update(examples, targets, known.clients))
        if not search.variation:
            return apart
        # number of differences per pixel, in each direction of a square image
        neighbours = examples[0].numel() * (1 - 1 / examples.shape[-1])
        return apart + search.variation * total_variation(examples).mean() / neighbours

    best = Found(_start(known, draw, 0), float("inf"))
    for attempt in range(search.restarts):
        start = _start(known, draw, attempt)
        if search.distance == "squared":
            found = by_lbfgs(objective, start, search.iterations)
        else:
            found = by_signed_adam(objective, start, search.iterations, known.box)
        best = min(best, found, key=lambda candidate: candidate.value)
        if best.value < search.near:
            break
    return best


def _joint_labels(
    reading: Reading, known: Knowledge, distance: Distance, search: Search, draw: torch.Generator
) -> Int64s:
    measure = distance.squared if reading.scaled else distance.cosine
    shape, classes = (known.total, *known.prior.shape), _classes(known)
    pixels = known.prior.numel() * known.total

    def objective(point: Tensor) -> Tensor:
        targets = point[pixels:].view(-1, classes).softmax(1)
        return measure(known.training.update(point[:pixels].view(shape), targets, known.clients))

    best = Found(torch.empty(0), float("inf"))
    for attempt in range(search.restarts):
        start = _start(known, draw, attempt).reshape(-1)
        logits = torch.randn(known.total * classes, generator=draw).to(start.device)
        found = by_lbfgs(objective, torch.cat([start, logits]), search.iterations)
        best = found if found.value < best.value or not len(best.point) else best
        if best.value < search.near:
            break
    return best.point[pixels:].view(-1, classes).argmax(1).cpu().numpy()


def _start(known: Knowledge, draw: torch.Generator, attempt: int) -> Tensor:
    spread = 0.05 * (known.box[1] - known.box[0]) * 3**attempt
    noise = torch.randn((known.total, *known.prior.shape), generator=draw)
    start: Tensor = known.prior + spread * noise.to(known.prior.device)
    return start


def _classes(known: Knowledge) -> int:
    with torch.no_grad():
        return int(known.training.model(known.probes[:1]).shape[1])
