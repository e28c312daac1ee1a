"""Distinguishing two updates by a client's reports: an empirical check of the claimed epsilon.

The attacker knows the model, the protection and two updates, but not which of them the client has.
It guesses by the likelihood ratio, which is the best possible rule (Neyman and Pearson). Its
guesses give two lower bounds on epsilon. The bound of `privacy.audit` holds for every mechanism.
The bound of `privacy.curve_audit` is usually closer to the claim, but assumes that the reports
follow the protection's privacy curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.server_view import Seen, repeated
from fedveil.attacks.target import Target
from fedveil.base.array_types import Float32s, Float64s
from fedveil.base.quantity import quantity
from fedveil.engine.assembly import report_entropy
from fedveil.engine.target_epsilon import at_cost
from fedveil.entropy import Entropy
from fedveil.errors import AttackImpossible
from fedveil.privacy import audit, intervals
from fedveil.privacy.compose import Charge
from fedveil.privacy.curve_audit import Family, curve_bound
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import Protection
from fedveil.protections.reading import Reading

#: Evidence of a report that only one of the two updates can produce, above any other evidence.
_CERTAIN = 1e9
#: Sizes of updates: longer than any protection's clipping norm, and almost zero.
_HUGE, _TINY = 1e6, 1e-6
_TRIED = 50


class Pair(NamedTuple):
    """Two updates, `a` and `b`, one of which a client has, and a name for the pair."""

    name: str
    a: Float32s
    b: Float32s


def report_evidence(reading: Reading, a: Float32s, b: Float32s) -> float:
    """Return the evidence of one report for update `a` against update `b`.

    `reading` is the attacker's best conclusion from the report. The evidence is ln Pr[report | a] -
    ln Pr[report | b] if the protection states these probabilities. Otherwise it is positive if the
    attacker's estimate is closer to `a` than to `b`.
    """
    if reading.log_likelihood is not None:
        for_a, for_b = reading.log_likelihood(a), reading.log_likelihood(b)
        return 0.0 if for_a == for_b else float(np.clip(for_a - for_b, -_CERTAIN, _CERTAIN))
    ahead, back = a.astype(np.float64), b.astype(np.float64)
    if reading.scaled:
        return float(reading.weight * (reading.estimate - (ahead + back) / 2) @ (ahead - back))
    lengths = [np.linalg.norm(one) or 1.0 for one in (ahead, back)]
    return float(reading.weight * reading.estimate @ (ahead / lengths[0] - back / lengths[1]))


def best_reading(view: Seen, sums: bool = False) -> Reading:
    """Return the attacker's estimate of the first client's update in one round.

    `view` is what the server saw of the round. The estimate comes from the first client's report.
    If this report reveals nothing, or if `sums` is True, the estimate comes from the sum of all
    reports.
    """
    reading = view.readings[0]
    if not reading.empty and not sums:
        return reading
    return view.total


def evidence(
    protection: Protection,
    model: Float32s,
    pair: Pair,
    *,
    trials: int,
    rounds: int,
    entropy: Entropy,
    sums: bool = False,
    step: Callable[[], None] = lambda: None,
) -> tuple[Float64s, Float64s]:
    """Simulate a client that always reports `pair.a`, and one that always reports `pair.b`.

    Each client takes part in `rounds` rounds, and is simulated `trials` times with new noise.
    Returns one array [trials, rounds] for each client: the evidence of every report for `a` against
    `b` (see `report_evidence`). If `sums` is True, the attacker sees only the sum of all reports.
    `step` is called after every simulated run.
    """

    def told(view: Seen) -> float:
        reading, (a, b) = best_reading(view, sums), (pair.a, pair.b)
        # without likelihoods, the estimate is compared with the clipped updates
        if reading.log_likelihood is None:
            a, b = (protection.carried(update, view.told) for update in (a, b))
        return report_evidence(reading, a, b)

    found = np.empty((2, trials, rounds))
    for side, update in enumerate((pair.a, pair.b)):
        for trial in range(trials):
            source = entropy.stream(pair.name, side, trial)
            views = repeated(protection, model, update, rounds, source)
            found[side, trial] = [told(view) for view in views]
            step()
    return found[0], found[1]


def far_apart(
    protection: Protection, model: Float32s, entropy: Entropy, sums: bool = False
) -> Pair:
    """Return two very different updates that the attacker can distinguish well by a single report.

    Tries a few pairs, and returns the one with the strongest evidence. All pairs are tried with the
    same noise if `entropy` is seeded. If `sums` is True, the attacker sees only the sum of all
    reports.
    """
    size = len(model)
    ramp = ((np.arange(size) - (size - 1) / 2 + 0.25) / size).astype(np.float32)
    huge, tiny = np.float32(_HUGE) * ramp, np.float32(_TINY) * ramp
    pairs = [Pair("far apart", huge, other) for other in (-huge, -tiny, tiny)]

    def strength(pair: Pair) -> float:
        source = entropy.stream("trying")
        ahead, back = evidence(
            protection, model, pair, trials=_TRIED, rounds=1, entropy=source, sums=sums
        )
        gap, spread = np.mean(ahead) - np.mean(back), np.hypot(np.std(ahead), np.std(back))
        return float(gap / (spread + _TINY))

    return max(pairs, key=strength)


@dataclass(frozen=True)
class Distinguished:
    """Result of distinguishing the two updates of a pair by the reports of `rounds` rounds.

    `audit` compares a lower bound on epsilon with the claim. `right` is the share of right guesses
    if both updates are equally likely. `curve` is another lower bound on epsilon (`curve_bound`),
    valid if the reports follow the protection's privacy curve. It is NaN if the protection has no
    such curve.
    """

    pair: str
    rounds: int
    audit: audit.Audit
    right: Measured
    curve: float = math.nan

    def figures(self) -> Iterator[Measured]:
        """Yield the metrics of this result.

        They are a lower bound on epsilon, also the bound `curve` if there is one, the claimed
        epsilon minus the first bound, the largest bound that this number of trials can show, and
        the share of right guesses.
        """
        of = f"{self.pair}, {self.rounds} round{'s' if self.rounds > 1 else ''}"
        bound, cases, claim = self.audit.bound, self.audit.trials, self.audit.claim
        own = partial(Measured, cases=cases, epsilon=claim.epsilon, delta=claim.delta)
        yield own(f"epsilon at least: {of}", bound)
        if not math.isnan(self.curve):
            yield own(f"epsilon at least, by the mechanism's curve: {of}", self.curve)
        yield Measured(f"distance to the ledger: {of}", claim.epsilon - bound)
        yield Measured(f"most that {cases} trials can show: {of}", self.audit.reachable)
        yield self.right


def curves(protection: Protection, rounds: int) -> Family | None:
    """Return a function that maps a factor to the privacy cost of a variant of `protection`.

    The factor scales the one parameter that decides the cost, such as an epsilon. Factor 1 is
    `protection` itself, and a larger factor costs more. The cost is that of `rounds` reports, as a
    list of charges: pairs of a privacy loss and its number of releases. `curve_bound` needs this
    function. Returns None if there is no such parameter, or if the cost of a round depends on
    earlier rounds.
    """
    key = protection.cost_key(protection.settings)
    if key is None or protection.adaptive:
        return None
    value = key.of(protection.settings.model_dump())

    def charges(factor: float) -> list[Charge]:
        changed = at_cost(protection, key, value / factor if key.falls else value * factor)
        spending = changed.spending(changed.initial_state())
        return [(spent.loss, spent.count * rounds) for spent in spending]

    return charges


def distinguish(
    ahead: Float64s,
    back: Float64s,
    pair: str,
    rounds: int,
    claim: Figure,
    family: Family | None = None,
) -> Distinguished:
    """Measure how well the attacker's evidence distinguishes clients with two different updates.

    `ahead` has one number for each simulated client with the first update: its evidence, summed
    over its reports. `back` has these numbers for clients with the second update. Evidence above 0
    favours the first update. `pair` names the two updates. `claim` is the epsilon that the ledger
    states for `rounds` reports. `family` gives the cost of variants of the protection (see
    `curves`). Without it, there is only one lower bound on epsilon.

        >>> import numpy as np
        >>> from fedveil.attacks.distinguishing import distinguish
        >>> from fedveil.privacy import Figure
        >>> evidence = np.random.default_rng(0).normal(2.0, 1.0, 800)
        >>> result = distinguish(evidence, -evidence, "far apart", 1, Figure(0.5, 1e-5))
        >>> result.audit.refuted  # the two are told apart better than epsilon 0.5 allows
        True
    """
    hits = int(np.count_nonzero(ahead > 0) + np.count_nonzero(back <= 0))
    of = f"{pair}, {rounds} round{'s' if rounds > 1 else ''}"
    right = intervals.share(f"right guesses: {of}", hits, 2 * len(ahead), guess=0.5)
    loss = PrivacyLoss(claim.epsilon, claim.delta)
    audited, curve = audit.of_scores(ahead, back, claim=loss), math.nan
    if family is not None and math.isfinite(claim.epsilon):
        cases, sure = 2 * len(ahead), audited.confidence
        curve = curve_bound(hits, cases, family, delta=claim.delta, confidence=sure)
    return Distinguished(pair, rounds, audited, right, curve)


def distinguished(
    protection: Protection,
    model: Float32s,
    pairs: Sequence[Pair],
    *,
    promised: Callable[[int], Figure],
    trials: int,
    rounds: int,
    entropy: Entropy,
    sums: bool = False,
    watch: Watch | None = None,
) -> list[Distinguished]:
    """Measure how well an attacker distinguishes the two updates of each pair.

    The attacker sees a single report, and then all reports of a run of `rounds` rounds. So there
    are two results for each pair (one if `rounds` is 1). `promised` returns the ledger's epsilon
    for a client that reports in a given number of rounds. Each update of a pair is simulated in
    `trials` runs. If `sums` is True, the attacker sees only the sum of all reports. `watch`, if
    given, reports the progress.
    """
    found, done = [], 0
    watch = watch or Watch()

    def step() -> None:
        nonlocal done
        done += 1
        watch.step(done, 2 * trials * len(pairs), "runs of one client")

    for pair in pairs:
        sides = evidence(
            protection, model, pair,
            trials=trials, rounds=rounds, entropy=entropy, sums=sums, step=step,
        )  # fmt: skip
        ahead, back = (side.reshape(-1) for side in sides)
        found.append(distinguish(ahead, back, pair.name, 1, promised(1), curves(protection, 1)))
        if rounds > 1:
            ahead, back = (side.sum(axis=1) for side in sides)
            claim, family = promised(rounds), curves(protection, rounds)
            found.append(distinguish(ahead, back, pair.name, rounds, claim, family))
    return found


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Guess from a client's reports which of two known updates the client has.

    The attack is made on two pairs of updates. The first pair is two very different updates
    (`far_apart`). The second pair is the updates of the job's first two clients. `effort` sets how
    long the attack runs, and `watch` reports its progress.

    >>> from fedveil import Job
    >>> from fedveil.attacks.effort import Watch
    >>> from fedveil.attacks.distinguishing import attack
    >>> from fedveil.attacks.target import Target
    >>> target = Target.of(Job.load(None, ["model=logistic", "clients.number=30"]))
    >>> finding = attack(target, "quick", Watch())
    >>> finding.figure("right guesses: far apart, 1 round").value
    1.0
    """
    rounds = min(target.job.rounds, by_effort(effort, 10, 30, 100))
    entropy = report_entropy(target.job).stream("distinguishing")
    protection, model = target.protection, target.weights
    found = distinguished(
        protection,
        model,
        [far_apart(protection, model, entropy), real_pair(target)],
        promised=target.promised,
        trials=by_effort(effort, 200, 1000, 5000),
        rounds=rounds,
        entropy=entropy,
        watch=watch,
    )
    return target.finding(
        "distinguishing",
        effort,
        [figure for one in found for figure in one.figures()],
        rounds=rounds,
        saw=f"one client in {quantity(rounds, 'round')}: its reports, or the sums where these say "
        "nothing",
    )


def real_pair(target: Target) -> Pair:
    """Return the updates of the job's first two clients.

    Raises `AttackImpossible` if the job has only one client. Also raises it if the job's epsilon is
    for single examples, because such an epsilon is no claim about a client's whole update.
    """
    target.needs_client_unit("tells whole updates of clients apart")
    if target.partition.clients < 2:
        raise AttackImpossible("the job has one client: there is no other to take it for")
    a, b = target.updates([0, 1])
    return Pair("two clients", a, b)
