"""Gradient inversion of a job's clients: `fedveil attack gradient`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedveil.attacks.attack_randomness import generator
from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.gradient.reconstruction import Knowledge, Search, reconstruct
from fedveil.attacks.gradient.recovered_examples import Score
from fedveil.attacks.gradient.unrolled_training import UnrolledTraining
from fedveil.attacks.target import Target
from fedveil.base.array_types import Float32s, Float64s
from fedveil.base.quantity import quantity
from fedveil.engine.assembly import ModelShape, make_model, training_plan
from fedveil.errors import AttackImpossible
from fedveil.federated.job import Job
from fedveil.learning.trainer import TrainingPlan
from fedveil.privacy.finding import Finding
from fedveil.protections.reading import Reading
from fedveil.settings.allowed import shown

#: Examples of the test set that the attacker knows, to estimate the inputs of the last layer.
_PROBES = 64


@dataclass(frozen=True)
class Bounds:
    """Limits of a gradient inversion at one effort, and the `searches` to run in order.

    `cases` is the number of examples after which the attack stops. `at_once` is the largest number
    of examples to reconstruct from one report or aggregate. `steps` is the largest number of local
    steps of an attacked client.
    """

    cases: int
    at_once: int
    steps: int
    searches: tuple[Search, ...]


def bounds(effort: Effort) -> Bounds:
    """Return the attack's limits, and the searches that it runs, at this `effort`."""
    iterations = by_effort(effort, 120, 300, 1200)
    turns = by_effort(effort, 300, 4000, 24_000)
    restarts = by_effort(effort, 2, 3, 4)
    return Bounds(
        by_effort(effort, 8, 64, 200),
        by_effort(effort, 16, 32, 128),
        by_effort(effort, 20, 50, 200),
        (Search("squared", iterations, restarts), Search("cosine", turns, 1, variation=0.1)),
    )


@dataclass(frozen=True)
class View:
    """A report or an aggregate of one round, and the attacker's knowledge about it.

    `reading` is the attacker's estimate of the reported update. `clients` are the clients whose
    examples the attacker reconstructs, and `known` is its knowledge of their training. `cohort` is
    the number of clients in the aggregate, or 1 for a report.
    """

    clients: Sequence[int]
    reading: Reading
    known: Knowledge
    cohort: int = 1


def _unfollowed(job: Job, plan: TrainingPlan) -> Iterator[str]:
    """Yield the keys of the job, with their values, whose training steps are not reproduced."""
    training = job.training
    known = {
        "optimizer": plan.optimizer in ("sgd", "adam"),
        "proximal": plan.proximal == 0,
        "gradient_norm": plan.gradient_norm is None,
        "class_weights": plan.class_weights is None,
    }
    for key, follows in known.items():
        if not follows:
            yield f"training.{key} = {shown(getattr(training, key))}"
    if plan.class_weights is None and plan.loss != "cross_entropy":
        yield f"task = {shown(job.task)}"


class Sight:
    """The attacker's view of a job before its first round: initial weights, and typical data.

    The attacker tries to reconstruct only the examples of clients within the limits `allowed`,
    which has the largest numbers of examples and of local steps. Raises `AttackImpossible` if
    `target` has no such client, or if the attack cannot reproduce the job's training steps.
    """

    def __init__(self, target: Target, allowed: Bounds) -> None:
        self.target, self.allowed = target, allowed
        data, job = target.dataset, target.job
        # A trainer changes a model's layers, so this model is not shared.
        model = make_model(job, ModelShape(data.example_shape, data.classes))
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        plan = training_plan(job)
        if unknown := ", ".join(_unfollowed(job, plan)):
            raise AttackImpossible(
                f"gradient inversion knows the steps of sgd and adam along the gradient of the "
                f"cross-entropy, and does not follow {unknown}"
            )
        self._training = UnrolledTraining(model, plan, target.weights, device=self._device)
        x = data.train.x
        self._mean = x.mean(0, dtype=np.float64)
        self._box = float(x.min()), max(float(x.max()), float(x.min()) + 1e-6)
        self._common = int(np.bincount(data.train.y).argmax())
        sizes = target.partition.sizes
        fits = (sizes > 0) & (sizes <= allowed.at_once)
        fits &= [self._training.steps(int(size)) <= allowed.steps for size in sizes]
        self._within = np.flatnonzero(fits)
        if not len(self._within):
            least = int(sizes.min())
            raise AttackImpossible(
                f"gradient inversion seeks at most {allowed.at_once} examples of a client behind "
                f"{allowed.steps} local steps at this effort, and every client has {least} or more "
                f"and takes {self._training.steps(least)} or more: choose a greater effort, or a "
                f"job of more clients or fewer epochs"
            )

    def score(self) -> Score:
        """Return an empty `Score` whose baseline is the mean example with the commonest label."""
        return Score(self.scaled(self._mean), self._common)

    def scaled(self, examples: Float64s) -> Float64s:
        """Scale values to [0, 1]: 0 is the smallest value in the training data, 1 the largest."""
        low, high = self._box
        return np.clip((examples - low) / (high - low), 0, 1)

    def views(self) -> Iterator[View]:
        """Simulate rounds without end, and yield the attacker's views of them.

        A round gives one view of each report or, if any of its reports reveals nothing, one view of
        its aggregate. Reports of clients outside the limits (`Bounds`) are left out. So is an
        aggregate if all its clients are outside the limits.
        """
        job, number = self.target.job, self.target.partition.clients
        for turn in itertools.count():
            draw = generator(job.seed, "gradient", "cohort", turn)
            pick = int(torch.randint(len(self._within), (), generator=draw))
            first = int(self._within[pick])
            others = [c for c in torch.randperm(number, generator=draw).tolist() if c != first]
            clients = [first, *others[: job.clients_per_round - 1]]
            seen = self.target.server_view(self.target.updates(clients), repeat=turn)
            if any(reading.empty for reading in seen.readings):
                # `_aggregate` may seek only the first client: it must be within the limits.
                summed = sorted((clients[i] for i in seen.asked), key=self._is_outside)
                if summed and not self._is_outside(summed[0]):
                    yield self._aggregate(summed, seen.aggregate)
                continue
            for client, reading in zip(clients, seen.readings, strict=True):
                if not self._is_outside(client):
                    yield View([client], reading, self._known([client]))

    def _is_outside(self, client: int) -> bool:
        """Return True if the client is outside the attack's limits, or has no examples."""
        return client not in self._within

    def _aggregate(self, clients: Sequence[int], aggregate: Float64s) -> View:
        """Return a view of `aggregate`, to reconstruct the examples of all `clients`.

        If the clients have different numbers of examples, or together more than `Bounds.at_once`,
        the attacker reconstructs only the first client's examples, as if the aggregate were that
        client's update.
        """
        sizes = [len(self.target.rows(client)) for client in clients]
        together = len({*sizes}) == 1 and sum(sizes) <= self.allowed.at_once
        sought = clients if together else clients[:1]
        reading = Reading(aggregate, np.ones_like(aggregate))
        return View(sought, reading, self._known(sought), len(clients))

    def _known(self, clients: Sequence[int]) -> Knowledge:
        def tensor(values: Float32s) -> torch.Tensor:
            return torch.from_numpy(values).to(self._device)

        return Knowledge(
            self._training,
            len(self.target.rows(clients[0])),
            tensor(self._mean.astype(np.float32)),
            tensor(self.target.dataset.test.x[:_PROBES]),
            self._box,
            len(clients),
            self._common,
        )


def _what_was_seen(view: View) -> str:
    known = view.known
    steps = known.training.steps(known.count)
    cohort = quantity(view.cohort, "client")
    whose = "one client's report" if view.cohort == 1 else f"the aggregate of {cohort}"
    examples, trained = quantity(known.count, "example"), quantity(steps, "local step")
    return f"{whose}; {examples} and {trained} a client"


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Reconstruct examples from clients' reports. A larger `effort` attacks more examples.

    The attacker knows the job, the number of a client's examples, the mean training example and a
    few test examples. It receives one client's report or, if single reports reveal nothing, the
    cohort's aggregate. From an aggregate, it reconstructs the examples of all clients together, or
    only those of the first client if the clients have too many examples or different numbers of
    examples. `watch` reports the progress and saves pictures.
    """
    target.needs_classes("gradient")
    allowed = bounds(effort)
    sight = Sight(target, allowed)
    score, by, saw = sight.score(), Counter[str](), ""
    draw = generator(target.job.seed, "gradient", "search")
    for view in sight.views():
        watch.step(len(score.labels), allowed.cases, "examples sought")
        found = reconstruct(view.reading, view.known, allowed.searches, draw)
        rows = np.concatenate([target.rows(client) for client in view.clients])
        x, y = target.dataset.train.x[rows].astype(np.float64), target.dataset.train.y[rows]
        score.add(sight.scaled(x), y, sight.scaled(found.examples), found.labels)
        by[found.by] += 1
        saw = _what_was_seen(view)
        if len(score.labels) >= allowed.cases:
            break
    watch.step(allowed.cases, allowed.cases, "examples sought")
    name = target.job.protection.name
    pictures = [watch.picture(f"gradient-{name}.png", score.grid())] if score.are_images else []
    settings = {**target.settings, "found by": dict(by)}
    return target.finding(
        "gradient", effort, score.figures(), settings=settings, saw=saw, pictures=pictures
    )
