"""Lower bounds on epsilon from the canaries of a run, each compared with the claimed epsilon.

All bounds hold simultaneously with confidence `CONFIDENCE` (Bonferroni). So a single bound above
its claim refutes that claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedveil.base.array_types import Bools
from fedveil.engine.canary_evidence import WAYS, ReportEvidence
from fedveil.engine.canary_sums import SumEvidence
from fedveil.privacy.choice_audit import Choice, Counted, in_pairs
from fedveil.privacy.finding import BOUND, CONFIDENCE, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.intervals import share
from fedveil.privacy.noise_audit import MeasuredNoise, moved_distance
from fedveil.privacy.one_run_audit import alone, audit_run, distance_of_epsilon, epsilon_of_distance

_GAUSSIAN = "if the noise is Gaussian with equal variance in every coordinate"
BY_NOISE = f"{BOUND}, {_GAUSSIAN}"
BY_LAG = f"{BOUND}, by differences between rounds, {_GAUSSIAN}"
BY_PAIRS = f"{BOUND}, by differences between canaries, {_GAUSSIAN}"
BY_CALM = f"{BOUND}, by differences between decoded rounds, {_GAUSSIAN}"
BY_SPARE = f"{BOUND}, by entries that no update reaches, {_GAUSSIAN}"
BY_MOVE = f"{BOUND}, by how far canaries move it, {_GAUSSIAN}"
BY_CURVE = f"{BOUND}, if the privacy curve is Gaussian"
ALONE = f"{BOUND}, if canaries reveal nothing about each other"
TURNED = (
    f"{BOUND}, by coins in differences between rounds, if canaries reveal nothing about each other"
)
#: Computes a bound that is wrong with at most the given probability.
Bound = Callable[[float], Measured]


@dataclass(frozen=True)
class Canvass:
    """Computes lower bounds on epsilon from the canaries' evidence and their coins (`included`).

    A canary's coin is a secret bit that decides the sign of its updates. A release is a report or,
    if the server sees no reports, a sum. Replacing one client can move a release by `moved`, which
    is None if the protection states no clip. `gaussian` is True if the protection claims Gaussian
    noise. `measured` is True if the protection also claims equal standard deviations in all rounds.
    The measured noise then gives further bounds, most of them only if `moved` is known.
    """

    included: Bools
    reports: ReportEvidence
    sums: SumEvidence
    moved: float | None
    gaussian: bool
    measured: bool

    def figures(self, claim: Figure) -> list[Measured]:
        """Return the lower bounds on epsilon, to be compared with the epsilon of `claim`.

        The result also has two other metrics: the largest bound that this number of canaries can
        show, and the share of the canaries' coins (secret bits) that were guessed right. If the
        protection claims Gaussian noise, the first two bounds assume that a canary is no easier to
        recognise than under some Gaussian noise. Otherwise the first assumes nothing.
        """
        measured = [*self._by_noise(claim), *self._by_move(claim)] if self.measured else []
        bounds = [*self._by_coins(claim), *measured, *self._by_choices()]
        error = (1 - CONFIDENCE) / (2 + len(bounds))
        scores = self.reports.scores if self.reports.told else self.sums.scores
        audit = audit_run(
            scores, self.included, claim, gaussian=self.gaussian, confidence=1 - 2 * error
        )
        m, by_curve = audit.canaries, self.gaussian and claim.delta > 0
        return [
            Measured(BY_CURVE if by_curve else BOUND, audit.bound, cases=m, unseen=audit.unseen),
            Measured(ALONE, audit.alone, cases=m, unseen=audit.unseen_alone),
            Measured("the most that these canaries could show", audit.reachable, cases=m),
            share("coins guessed right", audit.right_of_all, m, guess=0.5),
            *(bound(error) for bound in bounds),
        ]

    def _by_coins(self, claim: Figure) -> Iterator[Bound]:
        sums = self.sums
        if self.reports.told or not (self.measured and sums.moves):
            return

        def bound(error: float) -> Measured:
            found = alone(sums.turned, self.included, claim, gaussian=True, confidence=1 - error)
            return Measured(TURNED, found.bound, cases=len(self.included), unseen=found.unseen)

        yield bound

    def _seen(self) -> tuple[ReportEvidence | SumEvidence, int]:
        """Return the evidence from the releases, and the number of releases in a round."""
        return (self.reports, len(self.included)) if self.reports.told else (self.sums, 1)

    def _by_noise(self, claim: Figure) -> Iterator[Bound]:
        # A canary longer than an unknown clip moves a release by less than its length. The bounds
        # below would then be too large, and would refute true claims.
        if self.moved is None:
            return
        told, reports, sums = self.reports.told, self.reports, self.sums
        seen, count = self._seen()

        def by(name: str, noise: MeasuredNoise, moved: float, clients: int = count) -> Bound:
            def bound(error: float) -> Measured:
                rounds = max(1, noise.releases // clients)
                distance = noise.distance(moved, rounds, error=error)
                return self._of_distance(name, distance, 0.0, claim, noise.releases)

            return bound

        yield by(BY_NOISE, seen.noise, self.moved)

        def by_lag(error: float) -> Measured:
            """Return a lower bound on epsilon that is large if two rounds have the same noise.

            It exceeds the true epsilon with probability at most `error`.
            """
            lag, echo = seen.lag, seen.echo
            rounds = max(1, lag.releases // count)
            before = lag.distance(1.0, rounds, error=error / 2)
            distance = max(before, echo.distance_of_least(1.0, error=error / 2))
            return self._of_distance(BY_LAG, distance, 0.0, claim, lag.releases)

        yield by_lag
        if told and count > 1:
            yield by(BY_PAIRS, reports.pairs, 1.0, count // 2)
        if not told and sums.spare.entries:
            yield by(BY_SPARE, sums.spare, self.moved)
        if not told and sums.moves:
            yield by(BY_CALM, sums.calm, 1.0)

    def _by_move(self, claim: Figure) -> Iterator[Bound]:
        seen, count = self._seen()

        def by_move(error: float) -> Measured:
            rounds = max(1, seen.noise.releases // count)
            signs = 2.0 * self.included - 1
            moves = signs * seen.scores / rounds
            distance, uncertain = moved_distance(moves, rounds, seen.noise, error=error)
            return self._of_distance(BY_MOVE, distance, uncertain, claim, len(moves))

        yield by_move

    def _of_distance(
        self, name: str, distance: float, uncertain: float, claim: Figure, cases: int
    ) -> Measured:
        """Return the metric `name`: the lower bound on epsilon that follows from `distance`.

        Replacing one client moves the releases of a run by at least `distance` standard deviations
        of the noise. `distance` was found from `cases` measurements. `uncertain` is what was
        subtracted from their mean as its uncertainty, or 0 if nothing was subtracted. `claim` is
        the claimed epsilon. It determines `Measured.unseen`, the largest true epsilon that this
        bound would probably not detect (NaN if the bound refutes the claim).
        """
        value = epsilon_of_distance(distance, claim.delta)
        claimed = distance_of_epsilon(claim)
        if uncertain:
            missed = claimed + uncertain
        else:
            missed = claimed**2 / distance if distance else math.inf
        unseen = math.inf if math.isinf(missed) else epsilon_of_distance(missed, claim.delta)
        refuted = value > claim.epsilon
        return Measured(name, value, cases=cases, unseen=math.nan if refuted else unseen)

    def _by_choices(self) -> Iterator[Bound]:
        tally = self.reports.tally
        for choice, ways in zip(tally.choices, tally.counts, strict=True):
            for way, counted in zip(WAYS, ways, strict=True):
                yield _by_choice(f"{BOUND}, {choice.name} {way}", choice, counted, way != WAYS[0])


def _by_choice(name: str, choice: Choice, counted: Counted, pairs: bool) -> Bound:
    chance = in_pairs(choice.chance) if pairs else choice.chance

    def bound(error: float) -> Measured:
        value = counted.lower_bound(chance, error=error) if counted.tries else 0.0
        missed = counted.unseen(chance, choice.claim, error=error) if counted.tries else math.inf
        refuted = value > choice.claim
        return Measured(
            name, value, cases=counted.tries, epsilon=choice.claim, delta=0.0,
            unseen=math.nan if refuted else missed,
        )  # fmt: skip

    return bound
