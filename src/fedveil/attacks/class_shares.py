"""Inference of a client's classes from its report: the examples of each class, and the main class.

Property inference (Melis et al. 2019, "Exploiting unintended feature leakage in collaborative
learning") decides if more than half of a client's examples are of one class. The attacker trains
simulated clients with that property, and others without it. The mean updates of the two groups
differ along a direction. A report's score is how far it points in that direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.gradient.label_counts import label_counts
from fedveil.attacks.gradient.label_recovery import LastLayer
from fedveil.attacks.roc import best_threshold, figures
from fedveil.attacks.server_view import seen
from fedveil.attacks.target import Target
from fedveil.base.array_types import Float32s, Float64s, Int64s
from fedveil.data.examples import Examples
from fedveil.data.partition import Partition
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy import intervals
from fedveil.privacy.finding import Finding, Measured
from fedveil.protections.reading import Reading

#: A client that is to hold mostly one class has this share of its examples in that class.
_PREVAILS = 0.75
_PROBES = 256


@dataclass(frozen=True)
class Observer:
    """Simulates what the server sees: one report or, if it reveals nothing, a sum of reports."""

    target: Target
    entropy: Entropy

    def readings(
        self, updates: Sequence[Float32s], clients: Sequence[int] | None = None
    ) -> Iterator[Reading]:
        """Yield the attacker's estimate of each of the `updates`, in this order.

        The estimate comes from a report of the update. If single reports reveal nothing, it comes
        from a sum of reports: of this update, and of updates of the job's clients. If `updates[i]`
        is itself the update of the job's client `clients[i]`, pass `clients`, so that no sum has
        two reports of one client. Raises `AttackImpossible` if the job has too few clients for a
        sum.
        """
        protection, weights = self.target.protection, self.target.weights
        job = self.target.job
        others: list[Float32s] = []
        for i, update in enumerate(updates):
            source = self.entropy.stream("report", i)
            if not others and protection.least_clients == 1:
                view = seen(protection, weights, [update], source)
                if not view.masked:
                    yield view.readings[0]
                    continue
            size = max(2, protection.least_clients)
            others = others or self.target.updates(range(self.target.partition.clients))
            if len(others) < size - 1 or job.clients_per_round < size:
                raise AttackImpossible("the job has too few clients for a round of this protection")
            drawn = source.stream("others").permutation(len(others))
            chosen = (drawn[drawn != clients[i]] if clients is not None else drawn)[: size - 1]
            view = seen(protection, weights, [update, *(others[c] for c in chosen)], source)
            yield view.total


def of_class(labels: Int64s, wanted: int, count: int, entropy: Entropy) -> Int64s:
    """Draw the indices of `count` examples, three quarters of them with the label `wanted`."""
    mine, rest = np.flatnonzero(labels == wanted), np.flatnonzero(labels != wanted)
    many = math.ceil(_PREVAILS * count)
    return np.concatenate([
        mine[entropy.stream("class").permutation(len(mine))[:many]],
        rest[entropy.stream("rest").permutation(len(rest))[: count - many]],
    ])  # fmt: skip


def of_any(labels: Int64s, wanted: int, count: int, entropy: Entropy) -> Int64s:
    """Draw the indices of `count` examples, at most half of them with the label `wanted`."""
    rows = entropy.permutation(len(labels))
    mine = labels[rows] == wanted
    kept: Int64s = rows[~mine | (np.cumsum(mine) <= count // 2)][:count]
    return kept


@dataclass(frozen=True)
class Classes:
    """Simulates clients that hold mostly examples of one class, and clients that do not.

    Each client has `count` examples. `wanted` are the classes that the attack looks for.
    """

    target: Target
    count: int
    wanted: Sequence[int]
    entropy: Entropy

    @classmethod
    def of(cls, target: Target, most: int) -> Classes:
        """Choose, at random, up to `most` classes that the attack looks for.

        Each simulated client has as many examples as the job's median client. The attacked clients
        get training examples, and the attacker's own clients get test examples. Raises
        `AttackImpossible` if no class has enough examples in both, or if the median client has less
        than two.
        """
        entropy = Seeded(target.job.seed, "attack", "classes")
        count = int(np.median(target.partition.sizes))
        if count < 2:
            raise AttackImpossible(
                "the median client has only one example, which is of one class anyway. The attack "
                "needs clients with more examples, as with a smaller clients.number"
            )
        data, needed, rest = target.dataset, math.ceil(_PREVAILS * count), count - count // 2
        parts = (data.train, data.test)
        held = np.stack([np.bincount(part.y, minlength=data.classes) for part in parts])
        others = held.sum(axis=1, keepdims=True) - held
        enough = np.flatnonzero(((held >= needed) & (others >= rest)).all(axis=0))
        if not len(enough):
            most = int(held.min(axis=0).max() / _PREVAILS)
            raise AttackImpossible(
                f"no class has enough examples. The attack simulates clients of {count:,} "
                "examples, like the median client. From the training data and from the test data, "
                f"it needs {needed:,} examples of one class for a client with mostly this class, "
                f"and {rest:,} of other classes for a client without. A larger clients.number "
                "gives each client fewer examples"
                + (f": at most {most:,} are possible here" if 2 <= most < count else "")
            )
        wanted = enough[entropy.stream("classes").permutation(len(enough))[:most]]
        return cls(target, count, sorted(map(int, wanted)), entropy)

    def updates(self, examples: Examples, wanted: int, has: bool, number: int) -> list[Float32s]:
        """Train `number` simulated clients on random `examples`, and return their updates.

        If `has` is True, three quarters of each client's examples are of the class `wanted`.
        Otherwise at most half are.
        """
        whose = "shadow" if examples is self.target.dataset.test else "client"
        draw, rows = of_class if has else of_any, []
        for i in range(number):
            source = self.entropy.stream(whose, wanted, int(has), i)
            rows.append(np.sort(draw(examples.y, wanted, self.count, source)))
        offsets = np.cumsum([0, *map(len, rows)])
        dataset = replace(self.target.dataset, train=examples, owners=None)
        clients = replace(
            self.target, dataset=dataset, partition=Partition(np.concatenate(rows), offsets)
        )
        return clients.updates(range(number))

    def scores(
        self, wanted: int, shadows: int, cases: int
    ) -> tuple[list[Float64s], list[Float64s]]:
        """Return scores of the attacker's own simulated clients, and of the attacked clients.

        A larger score means that a client is likelier to hold mostly the class `wanted`. Each
        result is a list of two arrays: scores of clients that hold mostly this class, and scores of
        clients that do not. An array of the first result has `shadows` scores, an array of the
        second has `cases`.
        """
        data = self.target.dataset
        taught = [self.updates(data.test, wanted, has, shadows) for has in (True, False)]
        direction = np.mean(taught[0], axis=0, dtype=np.float64) - np.mean(taught[1], axis=0)
        found = []
        asked = [self.updates(data.train, wanted, has, cases) for has in (True, False)]
        for kind, side in (("shadows", taught), ("clients", asked)):
            for has, updates in zip((True, False), side, strict=True):
                source = self.entropy.stream("seen", kind, wanted, int(has))
                read = Observer(self.target, source).readings(updates)
                found.append(np.array([_along(reading, direction) for reading in read]))
        return found[:2], found[2:]


def _along(reading: Reading, direction: Float64s) -> float:
    weight = reading.weight / (reading.weight.mean() or 1.0)
    length = math.sqrt(float(weight @ direction**2)) or 1.0
    return float((weight * reading.estimate) @ direction / length)


def property_figures(target: Target, effort: Effort, watch: Watch) -> list[Measured]:
    """Return metrics for how well the attack finds the clients that hold mostly one class.

    `effort` sets how long the attack runs, and `watch` reports its progress.
    """
    most, shadows, cases = by_effort(effort, (3, 8, 10), (10, 16, 20), (30, 32, 40))
    classes = Classes.of(target, most)
    known: list[list[Float64s]] = []
    asked: list[list[Float64s]] = []
    for i, wanted in enumerate(classes.wanted):
        watch.step(i + 1, len(classes.wanted) + 1, f"class {wanted}")
        taught, found = classes.scores(wanted, shadows, cases)
        # Classes have different scales: scores are divided by the spread of shadow clients' scores.
        centre, spread = np.mean(taught), float(np.std(np.concatenate(taught))) or 1.0
        known.append([(side - centre) / spread for side in taught])
        asked.append([(side - centre) / spread for side in found])
    has, lacks = (np.concatenate(side) for side in zip(*asked, strict=True))
    limit = best_threshold(*(np.concatenate(side) for side in zip(*known, strict=True)))
    return figures("property", has, lacks, limit)


def count_figures(target: Target, effort: Effort) -> list[Measured]:
    """Return metrics for how well iLRG (`label_counts`) counts the labels of clients.

    The metrics are the median share of a client's labels that is counted right, and the share of
    clients for which every count is right. Returns no metrics unless the optimiser is SGD and the
    model ends in a dense layer. `effort` sets the number of clients.
    """
    settings, probes = target.job.training, target.dataset.test.x[:_PROBES]
    layer = LastLayer.of(target.model, torch.from_numpy(probes))
    if layer is None or settings.optimizer != "sgd":
        return []
    draw = Seeded(target.job.seed, "attack", "counts")
    clients = sorted(
        map(int, draw.permutation(target.partition.clients)[: by_effort(effort, 20, 60, 200)])
    )
    usual = np.bincount(target.dataset.test.y, minlength=target.dataset.classes)
    shares, guesses, right = [], [], 0
    readings = Observer(target, draw).readings(target.updates(clients), clients)
    for client, reading in zip(clients, readings, strict=True):
        labels = target.dataset.train.y[target.rows(client)]
        truth = np.bincount(labels, minlength=len(usual))
        steps = settings.epochs * math.ceil(len(labels) / settings.batch_size)
        # Equal gradients g move a weight by lr · g · (1 + m + ... + m^(t-1)) in step t.
        pace = np.cumsum(settings.momentum ** np.arange(steps)).sum()
        scale = float(settings.lr * pace)
        found = label_counts(reading, layer, target.weights, len(labels), scale)
        shares.append(float(np.minimum(found, truth).sum()) / len(labels))
        guessed = usual * len(labels) / usual.sum()
        guesses.append(float(np.minimum(guessed, truth).sum()) / len(labels))
        right += bool((found == truth).all())
    guess = float(np.median(guesses))
    return [
        intervals.median("labels counted, median client", shares, guess=guess),
        intervals.share("clients with all counts right", right, len(clients)),
    ]


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Infer each client's number of examples per class, and which clients hold mostly one class.

    `effort` sets how long the attack runs, and `watch` reports its progress.
    """
    target.needs_classes("classes")
    target.needs_client_unit("asks what one client holds")
    found = [*count_figures(target, effort), *property_figures(target, effort, watch)]
    return target.finding(
        "classes",
        effort,
        found,
        saw="one report of each client, or the smallest sum that it may be in, and test examples",
    )
