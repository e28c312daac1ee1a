"""A federated job as an attacker sees it: the model, and the clients' messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.attacks.effort import Effort
from fedveil.attacks.server_view import Seen, seen
from fedveil.base.array_types import Array, Bools, Float32s, Int64s
from fedveil.base.example_arrays import IGNORED, items
from fedveil.base.message import take
from fedveil.base.validate import integer
from fedveil.data.datasets import Dataset, Examples
from fedveil.data.partition import Partition
from fedveil.engine.assembly import (
    ModelShape,
    load_data,
    make_model,
    make_partition,
    make_protection,
    make_trainer,
    report_entropy,
    training_entropy,
)
from fedveil.engine.cohorts import Cohorts
from fedveil.engine.executors.client_side import ClientsData, LocalTraining, Trained
from fedveil.engine.round_checkpoint import LATEST, Checkpoint
from fedveil.engine.target_epsilon import whole_run
from fedveil.errors import AttackImpossible, RunFolderError
from fedveil.federated.job import Job
from fedveil.federated.language_blocks import LANGUAGE_TASKS
from fedveil.learning.trained_part import TrainedPart, taken
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.client_tally import Clients
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import Ledger
from fedveil.protections.base import Protection
from fedveil.record.model_file import read_model
from fedveil.record.run_folder import JOB, MODEL
from fedveil.record.saved_job import look_where_a_run_looked
from fedveil.record.sealed_message import intact


def _as_taken(dataset: Dataset, model: nn.Module) -> Dataset:
    parts = [replace(part, x=taken(model, part.x)) for part in (dataset.train, dataset.test)]
    return replace(dataset, train=parts[0], test=parts[1])


def _not_empty(y: Array) -> Bools:
    """Return a mask of the texts that have a token to predict. `y` has each text's next tokens."""
    return np.array([(tokens != IGNORED).any() for tokens in items(y)], np.bool_)


def _usable(part: TrainedPart, train: Examples, device: str) -> Bools:
    if train.usable is None:
        return np.ones(len(train), np.bool_)
    return part.usable_inputs(train.x, train.usable, device)[1]


def _only_held_examples(
    job: Job, dataset: Dataset, split: Partition
) -> tuple[Job, Dataset, Partition]:
    """Copy the job, data and partition, with only the training examples that clients have."""
    rows = np.sort(split.indices)
    train = dataset.train.of(rows)
    owners = None if dataset.owners is None else dataset.owners[rows]
    places = np.searchsorted(rows, split.indices)
    data = job.model_dump()
    data["evaluation"]["clients"] = 0.0
    alone = replace(dataset, train=train, owners=owners)
    return Job(**data), alone, Partition(places, split.offsets)


def _fields_of_checkpoint(run: Path, job: Job) -> dict[str, Any]:
    """Return the fields of a run's target that come from the run's latest checkpoint.

    The fields are `took_part` (the clients that took part before the model was saved), `played`
    (the number of rounds) and `claim` (the guarantee of an adaptive run, from `claim_of`). The
    result is empty if there is no checkpoint.
    """
    saved = Checkpoint.at(run)
    if saved is None:
        return {}
    with intact(run / LATEST):
        ledger = Ledger.from_state(saved.ledger)
        rounds = integer("round", saved.round, 1)
        kept = integer("round", take(saved.best, "round", int), 1, rounds) if saved.best else None
    took_part = clients_before(ledger.clients, job, kept)
    return {"took_part": took_part, "played": rounds, "claim": claim_of(ledger, job)}


def claim_of(ledger: Ledger, job: Job) -> Figure | None:
    """Return the guarantee of an adaptive run for a client that took part in every round, or None.

    In an adaptive run, the cost of a round depends on earlier rounds, so a forecast made from the
    first round may be too small. The ledger knows the cost of every round. Returns None if the run
    is not adaptive.
    """
    return ledger.figure_every_round(job.privacy.delta) if ledger.adaptive else None


def clients_before(charged: Clients, job: Job, kept_round: int | None) -> Clients:
    """Return the clients that took part in a run before its model was saved.

    `charged` are the clients that took part in any round. If the job keeps the best model,
    `kept_round` is the round of this model, and clients that took part only in later rounds are
    left out. If `kept_round` is None, the result is `charged`. It is also `charged` if clients are
    drawn in secret, because nobody then knows in which rounds a client took part.
    """
    drawn = None if kept_round is None else Cohorts(job).until(kept_round)
    return charged if drawn is None else np.intersect1d(charged, np.array(drawn, np.uint64))


@dataclass(frozen=True)
class Target:
    """A job, its data, each client's examples, and a model with the clients' starting weights.

    `partition` has the indices of each client's training examples. `trained` is True if the weights
    are a run's result, False if they are initial. After a run, `took_part` has the numbers of the
    clients that took part, `played` is the number of rounds, and `claim` is the ledger's guarantee
    if the run is adaptive (`claim_of`). Each of these three is None if it is not known or does not
    apply.

        >>> from fedveil import Job
        >>> from fedveil.attacks.target import Target
        >>> target = Target.of(Job.load(None, ["model=logistic", "clients.number=30"]))
        >>> target.trained, target.job.model
        (False, 'logistic')
    """

    job: Job
    dataset: Dataset
    partition: Partition
    model: nn.Module
    trained: bool = False
    took_part: Clients | None = None
    played: int | None = None
    claim: Figure | None = None

    @classmethod
    def of(cls, job: Job) -> Target:
        """Create a target from a job before its first round.

        The target has only the training examples that a run trains on, without invalid records.
        Raises `AttackImpossible` if there are none, if clients keep state between rounds, or if
        they do not train by fedavg.
        """
        if job.keeps_state or job.training.algorithm != "fedavg":
            raise AttackImpossible(
                "attacks play the training of fedavg, in which clients keep nothing: they take no "
                "training.algorithm and no clients.own_layers"
            )
        dataset = load_data(job)
        split = make_partition(job, dataset)
        if job.clients.number is None:
            job = job.with_clients(split.clients)
        model = make_model(job, ModelShape(dataset.example_shape, dataset.classes))
        usable = _usable(TrainedPart.of(model), dataset.train, job.training.device)
        if not usable.any():
            raise AttackImpossible(
                f"the job has no valid training example: a run says in events.log why all "
                f"{len(usable)} are invalid"
            )
        if job.evaluation.clients or not usable.all():
            job, dataset, split = _only_held_examples(job, dataset, split.only(usable))
        return cls(job, _as_taken(dataset, model), split, model)

    def needs_classes(self, attack: str, *, of_texts: bool = False) -> None:
        """Raise `AttackImpossible` unless the job classifies examples that are single arrays.

        If `of_texts` is True, a job whose task is one of `LANGUAGE_TASKS` is allowed too. `attack`
        is the attack's name for the error.
        """
        shape = self.dataset.example_shape
        tasks = ("classification", *(LANGUAGE_TASKS if of_texts else ()))
        if self.job.task not in tasks or isinstance(shape, dict):
            what = f"task is {self.job.task}"
            if isinstance(shape, dict):
                what = f"examples have the inputs {', '.join(shape)}"
            raise AttackImpossible(
                f"the {attack} attack is on models of task = {' or '.join(tasks)} whose examples "
                f"are one array: this job's {what}"
            )

    def without_empty_texts(self) -> Target:
        """Copy the target without texts that have no token to predict, and so no loss.

        Returns the target itself if there are none, or if the job does not predict tokens. Raises
        `AttackImpossible` if no training text or no test text has such a token.
        """
        if self.dataset.targets != "tokens":
            return self
        train, test = (_not_empty(p.y) for p in (self.dataset.train, self.dataset.test))
        if train.all() and test.all():
            return self
        for what, kept in (("training", train[self.partition.indices]), ("test", test)):
            if not kept.any():
                raise AttackImpossible(
                    f"none of the {len(kept):,} {what} texts has a token to predict, so none has a "
                    "loss. Use texts with at least one token after the prompt, or a larger "
                    "language.length"
                )
        job, dataset, split = _only_held_examples(
            self.job, self.dataset, self.partition.only(train)
        )
        dataset = replace(dataset, test=dataset.test.of(test))
        return replace(self, job=job, dataset=dataset, partition=split)

    def needs_client_unit(self, what: str) -> None:
        """Raise `AttackImpossible` unless the job's epsilon covers whole clients.

        `what` is a phrase for the error that says what the attack does, such as "asks what one
        client holds".
        """
        if self.job.privacy.unit == "example":
            raise AttackImpossible(
                f"it {what}, and under privacy.unit = example the ledger is about one example: "
                "attack the job with privacy.unit = client"
            )

    @classmethod
    def of_run(cls, folder: str | Path, overrides: Sequence[str] = ()) -> Target:
        """Load a finished run from its folder: its final model, and its job with `overrides`.

        An override is a text such as "seed=3". Raises `RunFolderError` if the folder holds no
        finished run.
        """
        path = Path(folder)
        if not (path / MODEL).is_file():
            raise RunFolderError(f"{path} holds no finished run: it has no {MODEL}")
        look_where_a_run_looked(path)
        target = cls.of(Job.load(path / JOB, overrides))
        read_model(path / MODEL, target.model)
        own, number = Job.load(path / JOB), target.job.clients.number
        own = own if own.clients.number or number is None else own.with_clients(number)
        known, now = _fields_of_checkpoint(path, own), target.job
        if (own.protection, own.privacy.delta) != (now.protection, now.privacy.delta):
            known["claim"] = None  # `overrides` change the guarantee
        return replace(target, trained=True, **known)

    def under(self, protection: str) -> Target:
        """Copy the target with the named protection, whose parameters come from the job."""
        job = self.job.under(protection)
        claim = self.claim if job.protection == self.job.protection else None
        return replace(self, job=job, claim=claim)

    @cached_property
    def weights(self) -> Float32s:
        return Layout(self.model).vector()

    @cached_property
    def protection(self) -> Protection:
        return make_protection(self.job, len(self.weights))

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.job.protection.settings.model_dump(mode="json")

    @property
    def rounds(self) -> int:
        """The number of rounds of the finished run or, if there is no run, of the job."""
        return self.job.rounds if self.played is None else self.played

    def promised(self, rounds: int = 1) -> Figure:
        """Return the epsilon, with its delta, for a client that reports in `rounds` rounds.

        Epsilon is infinite if the protection gives no guarantee against a server that reads the
        reports.
        """
        trusted = self.protection.rests_on_server(self.job.protection.settings)
        # Only a protection with several phases hides reports from the server by masks, which a
        # simulation may leave out.
        if trusted and len(self.protection.phases) == 1:
            return Figure(math.inf, 0.0)
        if self.claim is not None and rounds == self.rounds:
            return self.claim
        return whole_run(self.protection, rounds, self.job.privacy.delta)

    def finding(
        self,
        attack: str,
        effort: Effort,
        figures: Sequence[Measured],
        *,
        rounds: int = 1,
        **more: Any,
    ) -> Finding:
        """Return an attack's result: its metrics beside the epsilon that the protection claims.

        The claim is for a client that reports in `rounds` rounds. `more` are further fields of
        `Finding`. For several rounds of an adaptive protection, the field `saw` also says if this
        epsilon is the ledger's or a forecast.
        """
        promised = self.promised(rounds)
        more["saw"] = more.get("saw", "") + self._basis(rounds, promised)
        fields: dict[str, Any] = {
            "protection": self.job.protection.name,
            "settings": self.settings,
            "epsilon": promised.epsilon,
            "delta": promised.delta,
        }
        return Finding(attack=attack, effort=effort, figures=figures, **{**fields, **more})

    def _basis(self, rounds: int, promised: Figure) -> str:
        if rounds == 1 or not self.protection.adaptive or math.isinf(promised.epsilon):
            return ""
        if promised is self.claim:
            return f" (the epsilon is the ledger's, for all {rounds:,} rounds of the run)"
        return " (the epsilon is a forecast: the cost of a round depends on earlier rounds)"

    def rows(self, client: int) -> Int64s:
        return self.partition.of(client)

    def rows_of(self, clients: Iterable[int] | Clients | None) -> Int64s:
        """Return the indices of the training examples that `clients` (None: all) hold."""
        split = self.partition
        if clients is None:
            return split.indices
        known = [split.of(int(client)) for client in clients if client < split.clients]
        return np.concatenate([split.indices[:0], *known])

    @cached_property
    def _seen(self) -> tuple[Float32s, Bools | None]:
        part, device, train = (
            TrainedPart.of(self.model),
            self.job.training.device,
            self.dataset.train,
        )
        if train.usable is None:
            return part.inputs(train.x, device), None
        return part.usable_inputs(train.x, train.usable, device)

    def updates(
        self, clients: Sequence[int], round: int = 1, weights: Float32s | None = None
    ) -> list[Float32s]:
        """Train the clients as in the given `round`. Returns one update, a vector, for each client.

        The clients start from `weights`, by default the target's own. Raises `AttackImpossible` if
        an update is not finite.
        """
        train, split = self.dataset.train, self.partition
        x, usable = self._seen
        data = ClientsData(x, train.y, split.indices, split.offsets, usable)
        trainer = make_trainer(self.job, self.model, self.dataset.example_shape, round)
        training = LocalTraining(trainer, data, training_entropy(self.job))
        training.open(round, self.weights if weights is None else weights)
        found = []
        for answer in training.updates(list(clients)):
            if not isinstance(answer, Trained) or not np.isfinite(answer.update).all():
                raise AttackImpossible(
                    f"client {answer.client} trains to no finite update: there is nothing to attack"
                )
            found.append(answer.update.copy())
        layout = Layout(self.model)
        layout.write(torch.from_numpy(self.weights))
        return found

    @property
    def trains_natively(self) -> bool:
        """Return True if a simulation trains this job's clients in threads of native code."""
        if self.job.training.lr_schedule != "constant":
            return False
        return make_trainer(self.job, self.model, self.dataset.example_shape).native

    def server_view(self, updates: Sequence[Float32s], repeat: int = 0) -> Seen:
        """Return the server's view of round 1, in which client i reports `updates[i]`.

        Each value of `repeat` draws other noise.
        """
        entropy = report_entropy(self.job).stream("attacked", repeat)
        return seen(self.protection, self.weights, updates, entropy)
