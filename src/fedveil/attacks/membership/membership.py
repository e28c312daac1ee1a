"""Membership attacks on a job or a run: on its final model, and on the reports of a round.

The attacker knows the whole job. The reference models come from the same job under the same
protection. Each is trained on a random half of the examples to test. If a job is attacked, it is
first run with a random half of the training examples, and all training examples are tested. If a
finished run is attacked, the training and the test examples are tested. The members are the
training examples of the clients that took part in a round. All other examples are the non-members.
If the model predicts tokens, an example is a text of a client, or a piece of a longer one, and its
loss is the mean loss over its tokens.

A random half makes members and non-members exchangeable, even if the examples are pieces of one
text. So if the model reveals nothing, scores are above chance level only by chance. If whole texts
were drawn, all pieces of a text would be members together. The confidence intervals, which count
the pieces as independent, would then be too narrow. The members of a finished run are not drawn at
random, so its test examples must come from the same distribution as its training examples.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.membership import client_membership
from fedveil.attacks.membership.answer_scores import (
    calibrated_loss,
    lira,
    loss,
    online_lira,
    rmia,
    rmia_of_texts,
)
from fedveil.attacks.membership.model_answers import Answers, answers
from fedveil.attacks.membership.references import Method, References, halves, threshold
from fedveil.attacks.membership.report_scores import ReportScores
from fedveil.attacks.membership.shadow_attack import shadow_attack
from fedveil.attacks.membership.shadow_runs import Pool, play_round, rehearse, split
from fedveil.attacks.roc import best_threshold, figures
from fedveil.attacks.target import Target
from fedveil.base.array_types import Bools
from fedveil.base.quantity import quantity
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.client_tally import Clients
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.intervals import median, share

#: Attacks on a trained model, by their name in metrics.
METHODS: dict[str, Method] = {
    "loss": loss,
    "calibrated loss": calibrated_loss,
    "shadow models": shadow_attack,
    "LiRA": lira,
    "online LiRA": online_lira,
    "RMIA": rmia,
}
#: The attacks on a model that predicts tokens.
TEXT_METHODS: dict[str, Method] = {**METHODS, "RMIA": rmia_of_texts}
#: Thresholds that follow from the attack itself. All others are computed by `threshold`.
_OWN_THRESHOLD = {"shadow models": 0.0}


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Run all membership attacks, on the trained model and on the reports of one round.

    `effort` sets how long the attacks run, and `watch` reports their progress.
    """
    target.needs_classes("membership", of_texts=True)
    target = target.without_empty_texts()
    case, found, summed = on_examples(target, effort, watch)
    count, _ = _counts(effort)
    if summed:
        watch.step(count + 1, count + 2, "who is in the sums of several rounds")
        with suppress(AttackImpossible):  # too few clients, or a claim about one example
            found += client_membership.measured(target, effort)[0]
    watch.step(count + 2, count + 2, "reports")
    who = "its training and its test examples" if target.trained else "its training examples"
    known = replace(target, played=case.target.played, claim=case.target.claim)
    return known.finding(
        "membership",
        effort,
        found,
        rounds=known.rounds,
        saw=f"the model after {quantity(known.rounds, 'round')}, the reports of one "
        f"round, and {count} models trained by the same job on halves of {who}; {case.asked}"
        f"{_of_pieces(target)}",
    )


def _counts(effort: Effort) -> tuple[int, int]:
    """Return the number of reference models, and the most clients of the attacked round."""
    return by_effort(effort, (4, 8), (32, 32), (64, 100))


def on_examples(target: Target, effort: Effort, watch: Watch) -> tuple[Case, list[Measured], bool]:
    """Attack the trained model, and the reports of one round, but ask nothing about whole clients.

    `effort` sets how long the attacks run, and `watch` reports their progress. Returns what was
    attacked, the metrics, and True if the server saw only the sum of the reports.
    """
    count, reporters = _counts(effort)
    case = Case.of(target, count, Seeded(target.job.seed, "attack", "membership"), watch)
    on_round, summed = case.on_round(reporters)
    return case, [*case.on_model(), *on_round], summed


def _of_pieces(target: Target) -> str:
    """Return a note that a text may be split into members and non-members, or "" if it cannot be.

    The note says that this can lower the scores. It applies if the attack runs a job that predicts
    next tokens, because it then trains on a random half of the pieces of all texts.
    """
    if target.trained or target.job.task != "next_token":
        return ""
    return (
        "; each piece of a long text is tested on its own, so a non-member may stand between "
        "members, which can lower the scores"
    )


@dataclass(frozen=True)
class Case:
    """The attacked model, the examples that it was trained on, and the attacker's reference models.

    `pool` has all examples to test, and `members` marks those that `model` was trained on. `target`
    is the attacked job, with the weights at the start of the attacked round. `given` marks the
    pool's examples that this job's clients hold. Some of them are not members, if their client took
    part in no round. `other` is the job that trained the first reference model, and `other_given`
    marks the examples that its clients hold. On a round of `other`, the attacker chooses the
    thresholds for attacking reports.
    """

    pool: Pool
    members: Bools
    model: nn.Module
    target: Target
    given: Bools
    other: Target
    other_given: Bools
    references: References
    entropy: Entropy

    @classmethod
    def of(cls, target: Target, count: int, entropy: Entropy, watch: Watch) -> Case:
        """Train `count` reference models, and the attacked model if `target` is not trained.

        `watch` reports the progress.
        """
        dataset, job = target.dataset, target.job
        pool = Pool.everything(dataset) if target.trained else Pool.training(dataset)
        given = np.arange(len(pool)) < len(pool) - len(dataset.test)
        model, attacked = target.model, target
        clients, rounds, claim = target.took_part, target.played, target.claim
        if not target.trained:
            given = halves(len(pool), 2, entropy.stream("members"))[0]
            watch.step(0, count + 2, "the job on half of its examples")
            attacked = pool.target(target, split(given)[0], job.seed)
            played = rehearse(attacked)
            model, clients = played.model, played.clients
            rounds, claim = played.rounds, played.claim
        members = _held_by(attacked, given, clients)
        parts = halves(len(pool), count, entropy.stream("halves"))
        held, found, others = [], [], []
        for i, row in enumerate(parts):
            watch.step(i + 1, count + 2, f"reference {i + 1} of {count}")
            seed = entropy.stream("seed", i).integer(1 << 31)
            others.append(pool.target(target, split(row)[0], seed))
            played = rehearse(others[-1])
            held.append(_held_by(others[-1], row, played.clients))
            found.append(answers(played.model, pool.x, pool.y))
        references = References(found, np.stack(held), pool.labels)
        asked = replace(attacked, took_part=clients, played=rounds, claim=claim)
        return cls(pool, members, model, asked, given, others[0], parts[0], references, entropy)

    @property
    def asked(self) -> str:
        """Return a sentence that says how many members there are, and from how many clients.

        An example is "the members are the 80 examples of 3 of 4 clients that took part".
        """
        every, some = self.target.partition.clients, self.target.took_part
        clients = (
            quantity(every, "client") if some is None else f"{len(some):,} of {every:,} clients"
        )
        return (
            f"the members are the {int(self.members.sum()):,} examples of {clients} that took part"
        )

    def on_model(self) -> list[Measured]:
        """Return the model's quality on members and on others, then each attack's metrics."""
        given = answers(self.model, self.pool.x, self.pool.y)
        found = self._quality(given)
        for name, method in (TEXT_METHODS if self.pool.of_tokens else METHODS).items():
            limit = _OWN_THRESHOLD.get(name)
            limit = threshold(method, self.references) if limit is None else limit
            scores = method(given, self.references)
            found += figures(name, scores[self.members], scores[~self.members], limit)
        return found

    def _quality(self, given: Answers) -> list[Measured]:
        """Return two metrics: the model's accuracy on members, and on others.

        `given` are the attacked model's outputs for the pool. If targets are tokens, the metrics
        are median losses instead.
        """
        sides = (("members", self.members), ("others", ~self.members))
        if self.pool.of_tokens:
            return [median(f"median loss on {name}", -given.truth[side]) for name, side in sides]
        right = given.truth == given.top[:, 0]
        return [
            share(f"accuracy on {name}", int(right[side].sum()), int(side.sum()))
            for name, side in sides
        ]

    def on_round(self, most: int) -> tuple[list[Measured], bool]:
        """Attack the reports of at most `most` clients in a round. Returns (metrics, summed).

        `summed` is True if single reports reveal nothing, so that the attack uses their sum. If
        clients hold different kinds of examples, a member and a non-member of one kind are tested
        together. There are no metrics if no two examples are of one kind.
        """
        x, y, kinds = self.pool.x, self.pool.y, self.pool.kinds(self.target.job)
        scores = ReportScores(self.target.model, self.target.weights)
        attacked = play_round(self.target, *split(self.given), most, self.entropy, kinds)
        rehearsed = play_round(self.other, *split(self.other_given), most, self.entropy, kinds)
        if not all(any(map(len, played.held)) for played in (attacked, rehearsed)):
            return [], attacked.summed
        what = "sum" if attacked.summed else "report"
        scorers = {f"{what}'s gradient": scores.along}
        if all(reading.scaled for reading in attacked.readings):
            scorers[f"{what}'s loss"] = scores.moved
        found = []
        for name, scorer in scorers.items():
            limit = best_threshold(*rehearsed.scores(scorer, x, y))
            found += figures(name, *attacked.scores(scorer, x, y), limit)
        return found, attacked.summed


def _held_by(target: Target, given: Bools, clients: Clients | None) -> Bools:
    """Return a mask of the pool that marks the examples that `clients` hold.

    The training examples of `target` are the pool's examples that `given` marks, in the same order.
    `clients` are numbers of the target's clients, or None for all of them.
    """
    mask = np.zeros_like(given)
    mask[np.flatnonzero(given)[target.rows_of(clients)]] = True
    return mask
