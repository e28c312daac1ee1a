"""User-level membership: did a known client take part in a run?

The attacker knows the candidate's examples, the model of every round, and what the server sees:
each report or, under secure aggregation, only the sum. The attack plays several games. In each, a
random half of the data goes to clients that take part, and the other half to clients that do not.
The attacker tests equally many of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.membership.client_evidence import Evidence, log_odds, views
from fedveil.attacks.membership.references import halves
from fedveil.attacks.membership.shadow_runs import Pool, split
from fedveil.attacks.roc import best_threshold, figures
from fedveil.attacks.server_view import seen
from fedveil.attacks.target import Target
from fedveil.base.array_types import Bools, Float32s, Float64s
from fedveil.base.quantity import quantity
from fedveil.engine.cohorts import Cohorts
from fedveil.engine.server_optimizer import make_optimizer
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import AttackImpossible, InvalidValue, JobError
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.finding import Finding, Measured


@dataclass(frozen=True)
class Game:
    """A run's clients (`present`), and clients with other examples that take no part (`absent`).

    `cohorts` are the clients of each round. The attacker tests the clients `members` of `present`,
    each of which is in a cohort, and equally many clients `strangers` of `absent`.
    """

    present: Target
    absent: Target
    cohorts: Sequence[Sequence[int]]
    members: Sequence[int]
    strangers: Sequence[int]

    @classmethod
    def of(cls, target: Target, most: int, rounds: int, entropy: Entropy) -> Game:
        """Split the job's examples at random between clients of a run and absent clients.

        The run has `rounds` rounds. If the data names owners, all examples of an owner go to the
        same half. At most `most` clients of each half are tested. Raises `AttackImpossible` if the
        job does not allow this split, or has too few clients for it.
        """
        pool = Pool.training(target.dataset)
        there, seed = _half(pool, entropy.stream("there")), entropy.stream("seed").integer(1 << 31)
        try:
            present, absent = (
                pool.target(target, rows, seed) for rows in (split(there)[0], split(~there)[0])
            )
        except (InvalidValue, JobError) as error:
            raise AttackImpossible(
                f"half of the clients must take part without the others, but the job does not "
                f"allow this: {error}"
            ) from None
        drawn = [Cohorts(present.job).draw(round) for round in range(1, rounds + 1)]
        # A round with fewer clients has no sum.
        cohorts = [c if len(c) >= present.protection.least_clients else [] for c in drawn]
        there = np.unique(np.array([c for cohort in cohorts for c in cohort], np.int64))
        away = np.arange(absent.partition.clients)
        count = min(most, len(there), len(away))
        if count < 2:
            raise AttackImpossible(
                f"{quantity(len(there), 'client')} took part in {quantity(rounds, 'round')}, and "
                f"the other half of the examples belongs to {quantity(len(away), 'client')}: it "
                "takes two clients on each side to ask which of them took part"
            )
        chosen = [
            sorted(map(int, ids[entropy.stream(name).permutation(len(ids))[:count]]))
            for name, ids in (("members", there), ("strangers", away))
        ]
        return cls(present, absent, cohorts, *chosen)

    def play(self, entropy: Entropy) -> tuple[Float64s, Float64s]:
        """Run the rounds with the clients of `present`. Returns the tested clients' scores.

        The first array is for `members`, the second for `strangers`. A client with a larger score
        is likelier to take part.
        """
        target, protection = self.present, self.present.protection
        job = target.job
        state, weights = protection.initial_state(), target.weights
        optimizer = make_optimizer(job, Layout(target.model).trainable)
        evidence = Evidence(target.partition.clients, len(self.members) + len(self.strangers))
        turns = protection.context.turn_rate
        for round, cohort in enumerate(self.cohorts, start=1):
            if not cohort:
                continue
            updates = target.updates(cohort, round, weights)
            source = entropy.stream("report")
            view = seen(protection, weights, updates, source, round=round, state=state)
            candidates = self._candidates(round, weights, protection.norm_clip, entropy)
            for one in views(view, cohort, turns):
                evidence.add(one, log_odds(one, candidates, turns))
            share = len(cohort) / target.partition.clients
            weights = optimizer.step(weights, view.aggregate, share)
            state = view.state or state
        return evidence.scores[: len(self.members)], evidence.scores[len(self.members) :]

    def _candidates(self, round: int, weights: Float32s, clip: float, entropy: Entropy) -> Float64s:
        rows = []
        for name, one, asked in (
            ("members", self.present, self.members), ("strangers", self.absent, self.strangers)
        ):  # fmt: skip
            seed = entropy.stream("attacker", name).integer(1 << 31)
            own = replace(one, job=Job(**{**one.job.model_dump(), "seed": seed}))
            rows += own.updates(asked, round, weights)
        updates = np.stack(rows).astype(np.float64)
        lengths = np.linalg.norm(updates, axis=1, keepdims=True)
        return np.asarray(updates * np.minimum(1, clip / np.maximum(lengths, np.finfo(float).tiny)))


def _half(pool: Pool, entropy: Entropy) -> Bools:
    owners = np.arange(len(pool)) if pool.owners is None else pool.owners
    names = np.unique(owners)
    return np.asarray(np.isin(owners, names[halves(len(names), 2, entropy)[0]]), np.bool_)


def measured(
    target: Target, effort: Effort, step: Callable[[int, int], None] = lambda done, total: None
) -> tuple[list[Measured], int]:
    """Play several games (`Game`). Returns the metrics, and the number of rounds of each game.

    `effort` sets the number of games. `step` is called after each game with the number of finished
    games and the number of all games.
    """
    target.needs_client_unit("asks whether a client took part")
    rounds = min(target.rounds, by_effort(effort, 5, 20, 100))
    most, cases = by_effort(effort, (8, 40), (16, 160), (32, 640))
    entropy = Seeded(target.job.seed, "attack", "clients")
    sides: list[tuple[Float64s, Float64s]] = []
    games = 2
    while len(sides) < games:
        source = entropy.stream("game", len(sides))
        sides.append(Game.of(target, most, rounds, source).play(source))
        games = 1 + max(1, math.ceil(cases / len(sides[0][0])))
        step(len(sides), games)
    limit = best_threshold(*sides[0])
    members, strangers = (np.concatenate(side) for side in zip(*sides[1:], strict=True))
    return figures("client", members, strangers, limit), rounds


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Distinguish clients that take part in a job's rounds from clients that do not.

    `effort` sets how long the attack runs, and `watch` reports its progress.
    """
    found, rounds = measured(
        target, effort, lambda done, total: watch.step(done, total, f"game {done} of {total}")
    )
    return target.finding(
        "clients",
        effort,
        found,
        # The ledger of an adaptive run states only the cost of all its rounds together, which is an
        # upper bound for fewer rounds.
        rounds=rounds if target.claim is None else target.rounds,
        saw=f"{quantity(rounds, 'round')}, as the server sees them, and the examples of every "
        "client that it asks about",
    )
