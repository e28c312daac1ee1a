"""Simulated runs of a job on a subset of its examples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import nn

from fedveil.attacks.membership.model_answers import are_classes
from fedveil.attacks.membership.report_scores import Round
from fedveil.attacks.target import Target, claim_of, clients_before
from fedveil.base.array_types import Array, Bools, Int64s
from fedveil.base.example_arrays import stacked
from fedveil.data.datasets import Dataset, Examples
from fedveil.data.examples import owner_codes
from fedveil.data.lone_records import without_a_fault
from fedveil.engine.assembly import make_partition
from fedveil.engine.simulation import Simulator
from fedveil.engine.start import start
from fedveil.entropy import Entropy
from fedveil.federated.job import Job
from fedveil.privacy.client_tally import Clients
from fedveil.privacy.guarantee_strength import Figure
from fedveil.record.run_folder import RunFolder, temporary_folder


@dataclass(frozen=True)
class Pool:
    """Examples from which training sets are chosen.

    `x` has the examples' inputs, and `y` their targets: a class for each, or the tokens of each
    text. `owners` has each example's owner, or is None if the data names no owners.
    """

    x: Array
    y: Array
    owners: Int64s | None

    @classmethod
    def training(cls, dataset: Dataset) -> Pool:
        return cls(dataset.train.x, dataset.train.y, dataset.owners)

    @classmethod
    def everything(cls, dataset: Dataset) -> Pool:
        """Return a pool of the training examples, followed by the test examples.

        If the training examples have owners, the test examples are dealt out to these owners in
        turn.
        """
        train, test = cls.training(dataset), dataset.test
        owners = train.owners
        x, y = stacked([train.x, test.x]), stacked([train.y, test.y])
        if owners is not None:
            owners = np.concatenate([owners, np.arange(len(test)) % (owners.max() + 1)])
        return cls(x, y, owners)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def of_tokens(self) -> bool:
        """Return True if the targets are tokens, False if they are classes."""
        return not are_classes(self.y)

    @property
    def labels(self) -> Int64s:
        """The examples' classes. If targets are tokens, every text counts as class 0."""
        return np.zeros(len(self), np.int64) if self.of_tokens else self.y

    def kinds(self, job: Job) -> Int64s | None:
        """Return a number for each example: clients hold examples of different kinds.

        A kind is a class, or an owner if the job's clients are owners. Returns None if the job
        deals out the examples to its clients at random.
        """
        if job.data.by_owner:
            return self.owners
        return None if job.data.split == "iid" else self.labels

    def target(self, target: Target, rows: Int64s, seed: int) -> Target:
        """Copy the target, with this pool's examples `rows` as its training examples.

        These are distributed among the clients anew. `seed` replaces the seed of the job.
        """
        owners = None if self.owners is None else owner_codes(self.owners[rows])
        train = Examples(self.x[rows], self.y[rows])
        if target.dataset.train.usable is not None:
            train = without_a_fault(train)
        dataset = replace(target.dataset, train=train, owners=owners)
        data = target.job.model_dump()
        data["seed"] = seed
        if target.job.data.by_owner:
            data["clients"]["number"] = None
        elif target.job.clients.number is not None:
            data["clients"]["number"] = min(target.job.clients.number, len(rows))
        job = Job(**data)
        split = make_partition(job, dataset)
        job = job.with_clients(split.clients)
        return replace(target, job=job, dataset=dataset, partition=split)


@dataclass(frozen=True)
class Rehearsal:
    """Result of a simulated run: its final model, and the number of its rounds.

    `clients` are the clients that took part before this model was saved. `claim` is the ledger's
    guarantee if the run is adaptive, that is, if a round's cost depends on earlier rounds.
    Otherwise it is None.
    """

    model: nn.Module
    clients: Clients
    rounds: int
    claim: Figure | None = None


def rehearse(target: Target) -> Rehearsal:
    """Run the target's job in this process, under its protection."""
    data = target.job.model_dump()
    data["simulation"]["workers"] = "auto" if target.trains_natively else 0
    data["record"] = {"tensorboard": False, "page": False}
    data["privacy"]["account"] = None  # an attack releases no model, and must not spend the account
    data["checkpoint"]["every"] = target.job.rounds
    if not (target.job.stopping.may_end or target.job.stopping.keep == "best"):
        data["evaluation"]["every"] = target.job.rounds
    with temporary_folder() as folder, ExitStack() as stack:
        opened = partial(RunFolder.create, folder / "run", target.job.name)
        job = Job(**data)
        run = start(job, Simulator(), opened, stack, dataset=target.dataset).run()
        clients = clients_before(run.ledger.clients, run.job, run.kept_round)
        return Rehearsal(run.model, clients, len(run.metrics), claim_of(run.ledger, run.job))


def play_round(
    target: Target,
    rows: Int64s,
    strangers: Int64s,
    most: int,
    entropy: Entropy,
    kinds: Int64s | None = None,
) -> Round:
    """Simulate one round of the job. Returns the attacker's estimates, and the examples to test.

    All examples are given as rows of one pool: `rows[i]` is the row of the target's training
    example i, and `strangers` are rows that no client trains on. A client's report is tested on the
    client's own examples, and on at most as many of the strangers. If `kinds` has the kind of each
    row of the pool, it is tested on pairs of an own example and a stranger of the same kind. At
    most `most` clients take part, unless the protection needs more.
    """
    in_round = target.job.clients_per_round
    count = min(in_round, max(most, target.protection.least_clients))
    cohort = sorted(
        map(int, entropy.stream("cohort").permutation(target.partition.clients)[:count])
    )
    view = target.server_view(target.updates(cohort))
    held = [rows[target.rows(client)] for client in cohort]
    strangers = strangers[entropy.stream("strangers").permutation(len(strangers))]
    if kinds is None:
        dealt = np.array_split(strangers, count)
        asked = [some[: len(mine)] for some, mine in zip(dealt, held, strict=True)]
    else:
        held, asked = paired(held, strangers, kinds, entropy.stream("pairs"))
    if view.masked:
        summed = [np.concatenate([some[i] for i in view.asked]) for some in (held, asked)]
        return Round([view.mean], summed[:1], summed[1:], summed=True)
    return Round(view.readings, held, asked)


def paired(
    held: Sequence[Int64s], strangers: Int64s, kinds: Int64s, entropy: Entropy
) -> tuple[list[Int64s], list[Int64s]]:
    """Pair each client's examples with strangers of the same kind, as many as there are.

    `held[i]` are the rows of client i, `strangers` other rows in random order, and `kinds[r]` is
    the kind of row r. Returns each client's paired rows, and the strangers paired with them. No
    row is in two pairs.
    """
    # Unpaired examples would show which kinds a client has: a report's noise favours some kinds,
    # and so most of the examples of a client that has only these.
    mine, other = np.concatenate(held), np.full(sum(map(len, held)), -1)
    order = entropy.permutation(len(mine))
    for kind in np.unique(kinds[mine]):
        of_kind = order[kinds[mine[order]] == kind]
        alike = strangers[kinds[strangers] == kind][: len(of_kind)]
        other[of_kind[: len(alike)]] = alike
    ends = np.cumsum([len(some) for some in held])[:-1]
    found = np.split(other >= 0, ends)
    ours, theirs = (
        [part[some] for part, some in zip(np.split(rows, ends), found, strict=True)]
        for rows in (mine, other)
    )
    return ours, theirs


def split(held: Bools) -> tuple[Int64s, Int64s]:
    return np.flatnonzero(held), np.flatnonzero(~held)
