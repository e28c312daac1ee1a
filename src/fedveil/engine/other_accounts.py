"""The cost of a run under other assumptions than the ledger's, as lines with a label.

The ledger assumes that a client's whole data is replaced, that the attacker knows who took part,
and that the number of rounds was fixed in advance. This module adds:

- If the run's own results, or a callback, ended it early: the cost of all planned rounds.
- For Gaussian noise, the cost if a client is added or removed instead of replaced. Most papers
  state this cost.
- For Gaussian noise, the cost against an attacker who sees only the models, amplified by sampling.
  The amplification needs secret cohorts (`clients.sampling: poisson`), and rounds that release a
  noised sum divided by a constant. This cost is omitted if `privacy.max_epsilon` may end the run,
  because the end would then reveal something about the cohorts.

The last two costs, too, are those of all planned rounds if the run ended early.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedveil.base.quantity import all_of, quantity
from fedveil.engine.target_epsilon import whole_run
from fedveil.federated.job import Job
from fedveil.privacy.added_or_removed import added_or_removed
from fedveil.privacy.compose import compose
from fedveil.privacy.ledger import Line
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.privacy.sampled_gaussian import sampled_release
from fedveil.protections.base import Protection
from fedveil.record.account_lines import WHENEVER


def other_accounts(
    job: Job, protection: Protection, rounds: int, *, by_callback: bool = False
) -> Iterator[Line]:
    """Yield the costs of a run of `rounds` rounds under other assumptions than the ledger's.

    The module's docstring lists these assumptions. `by_callback` is True if a user's callback ended
    the run.
    """
    early = (job.stopping.may_end or by_callback) and rounds < job.rounds
    if early and not protection.adaptive:
        whole = whole_run(protection, job.rounds, job.privacy.delta)
        if math.isfinite(whole.epsilon):
            ends = "a callback" if by_callback else "stopping"
            all_rounds = all_of(job.rounds, "round")
            yield Line(*whole, f"{all_rounds}: {WHENEVER} {ends} ends the run")
    yield from _of_gaussian_noise(job, protection, job.rounds if early else rounds)


def _of_gaussian_noise(job: Job, protection: Protection, rounds: int) -> Iterator[Line]:
    ratio, delta = _ratio(protection), job.privacy.delta
    if ratio is None or delta == 0 or not rounds:
        return
    unit = "an example" if protection.context.unit == "example" else "a client"
    added = f"{unit} added or removed instead of replaced, for comparison only"
    alike = added_or_removed(ratio, 1.0, rounds, delta)
    yield Line(alike, delta, f"{added}: takes part in {all_of(rounds, 'round')}")
    limited = job.privacy.max_epsilon is not None
    if limited or not (protection.amplified and protection.context.poisson):
        return
    rate = job.clients.fraction
    who = f"an attacker who only gets the models, amplified by Poisson sampling at rate {rate:g}"
    loss = PrivacyLoss.of_release(sampled_release(ratio, rate))
    yield Line(compose([(loss, rounds)], delta), delta, f"{who}: {quantity(rounds, 'round')}")
    yield Line(added_or_removed(ratio, rate, rounds, delta), delta, f"the same, {added}")


def _ratio(protection: Protection) -> float | None:
    """Return a report's noise ratio, standard deviation over sensitivity, or None if not Gaussian.

    If a report has several Gaussian releases, the result is the ratio of one release that costs as
    much as all of them together.
    """
    square = 0.0
    for spent in protection.spending(protection.initial_state()):
        if not isinstance(spent.loss.release, Gaussian):
            return None
        square += spent.count / spent.loss.release.ratio**2
    return 1 / math.sqrt(square) if square else None
