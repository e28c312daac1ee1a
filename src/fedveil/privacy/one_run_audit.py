"""A lower bound on the epsilon of a run, from that run alone.

Each of m canaries has a secret fair coin. The coin decides which of two inputs the canary puts into
the run: the first if the coin shows 1 (the canary is "in"), the second if it shows 0. An input is a
client's whole data, so the two data sets are neighbours (replace-one). An observer computes a score
for every canary from the run's releases, and guesses some of the coins. `right` of the `guesses`
guesses are right. If the run is (epsilon, delta)-differentially private, then, even for dependent
canaries (Steinke, Nasr and Jagielski, 2023):

    Pr[right >= v] <= b(v) + 2 m delta max over i of (b(v - i) - b(v)) / i,

where b(v) = Pr[Binomial(guesses, e^epsilon / (1 + e^epsilon)) >= v]. If the right-hand side is
below 1 - confidence, that epsilon is refuted. The bound is the largest refuted epsilon. The number
of guesses is computed from the claim only, because it must not depend on the coins.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedveil.base.array_types import Bools, Float64s
from fedveil.base.lazy import special
from fedveil.base.validate import finite_vector, integer, within
from fedveil.errors import InvalidValue
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.choice_audit import told_true
from fedveil.privacy.finding import CONFIDENCE
from fedveil.privacy.gaussian_curve import analytic_sigma, epsilon_for
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.loss import format_epsilon

#: An epsilon in place of 0, for curves that need a positive one, and the end of every search.
_LEAST, _MOST = 2.0**-100, 2.0**20
#: For m canaries, the number of guesses is m, m / 2, m / 4 and so on, but at least this.
_FEWEST = 8


def surest(scores: Float64s, guesses: int) -> tuple[int, int]:
    """Count the nonnegative and the negative scores among the `guesses` scores farthest from 0.

    Each score belongs to a canary, a test input that a fair coin put into the run or left out. A
    score must be likelier positive if the canary is in. Averaged over the coin, the distribution of
    a score must be symmetric about 0.
    """
    order = np.argsort(-np.abs(scores), kind="stable")[:guesses]
    above = int((scores[order] >= 0).sum())
    return above, len(order) - above


def right_guesses(scores: Float64s, included: Bools, highest: int, lowest: int) -> int:
    """Return how many guesses about canaries are right.

    A canary is a test input that a fair coin put into the run or left out. `included` is True for
    those put in. The `highest` canaries with the highest scores are guessed to be in, and the
    `lowest` canaries with the lowest scores to be out.
    """
    order = np.argsort(-scores, kind="stable")
    above, below = order[:highest], order[len(order) - lowest :]
    return int(included[above].sum()) + int((~included[below]).sum())


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the probability of at least `right` right guesses.

    The observer guesses for `guesses` of the `canaries` whether each is in the run. The bound holds
    for every (epsilon, delta)-private run.
    """
    tail = special().bdtrc
    chance = 1 / (1 + math.exp(-epsilon))
    exact = float(tail(right - 1, guesses, chance)) if right else 1.0
    if delta == 0 or right == 0:
        return exact
    i = np.arange(1, right + 1)
    wider = np.where(i < right, tail(np.maximum(right - i - 1, 0), guesses, chance), 1.0)
    return min(1.0, exact + 2 * canaries * delta * max(0.0, float(np.max((wider - exact) / i))))


def lower_bound(
    canaries: int, guesses: int, right: int, *, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return the largest epsilon at `delta` that the right guesses refute, or 0 if there is none.

    Each of the `canaries` is a test input that a fair coin put into the run or left out. `guesses`
    of the coins were guessed, and `right` guesses were right. The result is above the run's epsilon
    with probability at most 1 - confidence.
    """
    error = _checked(canaries, guesses, right, delta, confidence)
    return _largest(lambda eps: p_value(canaries, guesses, right, eps, delta) <= error)


def gaussian_lower_bound(
    canaries: int, guesses: int, right: int, *, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return a lower bound on epsilon at `delta` > 0, valid only for a run with Gaussian noise.

    Each of the `canaries` is a test input that a fair coin put into the run or left out. `guesses`
    of the coins were guessed, and `right` guesses were right. The result is above the run's epsilon
    with probability at most 1 - `confidence`. It is larger than that of `lower_bound`.
    """
    # The tested hypothesis is that replacing a canary is at least as hard to detect as telling N(0,
    # 1) from N(mu, 1). Here mu is the distance at which these two are exactly (epsilon,
    # delta)-private (Mahloujifar, Melis and Chaudhuri, 2024).
    error = _checked(canaries, guesses, right, delta, confidence)
    if delta == 0:
        raise InvalidValue("delta = 0 is promised by no Gaussian noise")
    mu = _largest(lambda mu: _curve_refuted(canaries, guesses, right, mu, error))
    return epsilon_of_distance(mu, delta)


def independent_lower_bound(
    canaries: int, right: int, *, delta: float, gaussian: bool, confidence: float = CONFIDENCE
) -> float:
    """Return a lower bound on epsilon from guesses about all canaries, if these are independent.

    A canary is a test input that a fair coin put into the run or left out. `right` of the
    `canaries` guesses were right. `gaussian` is True if the run has Gaussian noise, which gives a
    larger bound. The bound is for epsilon at `delta`, and wrong with probability at most 1 -
    `confidence`.
    """
    # A guess is right with probability at most (e^epsilon + delta) / (1 + e^epsilon). In a run with
    # Gaussian noise it is right with probability at most Phi(mu / 2), with the mu of
    # `gaussian_lower_bound` and the normal distribution function Phi. Clopper and Pearson bound
    # that probability.
    error = _checked(canaries, canaries, right, delta, confidence)
    least = float(special().betaincinv(right, canaries - right + 1, error)) if right else 0.0
    if gaussian and delta > 0:
        mu = 2 * float(special().ndtri(least))
        return epsilon_of_distance(mu, delta)
    return max(0.0, math.log(max(least - delta, _LEAST)) - math.log1p(-least))


@dataclass(frozen=True)
class OneRunAudit:
    """Result of testing a claim about one run, by guessing which canaries are in it.

    A canary is a test input that a fair coin put into the run or left out. `right` of `guesses`
    guesses were right, or `right_of_all` if all canaries are guessed. `bound` is a lower bound on
    the run's epsilon. `alone` is a second lower bound, valid only if the canaries' outcomes are
    independent. If the audit was told that the run has Gaussian noise, both are valid only for the
    privacy curve of Gaussian noise. Both bounds hold together with probability at least
    `confidence`. `reachable` is what `bound` would be if every guess were right.

    A bound refutes the claim if it is above the claimed epsilon. `unseen` is the largest true
    epsilon that `bound` would probably miss: up to it, the expected number of right guesses is too
    small to refute the claim. `unseen_alone` is the same for `alone`. Each is infinite if its bound
    is at most the claim even when every guess is right.
    """

    claim: Figure
    canaries: int
    guesses: int
    right: int
    right_of_all: int
    bound: float
    alone: float
    reachable: float
    unseen: float = math.nan
    unseen_alone: float = math.nan
    confidence: float = CONFIDENCE

    @property
    def refuted(self) -> bool:
        """Return True if one of the two lower bounds on epsilon is above the claim."""
        return max(self.bound, self.alone) > self.claim.epsilon

    def __str__(self) -> str:
        found, alone = rounded_down(self.bound), rounded_down(self.alone)
        most = format_epsilon(self.reachable)
        return (
            f"epsilon at least {found} at confidence {self.confidence:g} ({self.canaries} canaries "
            f"can show at most {most}), {alone} if canaries reveal nothing about each other"
        )


def audit_run(
    scores: Float64s,
    included: Bools,
    claim: Figure,
    *,
    gaussian: bool = False,
    confidence: float = CONFIDENCE,
) -> OneRunAudit:
    """Test a claim about one run by the scores of its canaries.

    A canary is a test input that a fair coin put into the run or left out. `included` is True for
    those put in. A positive score means that the canary seems to be in. `gaussian` is True if the
    claim is about Gaussian noise. This gives larger bounds, which are valid only if the run has the
    privacy curve of some Gaussian noise. A true claim is refuted with probability at most 1 -
    `confidence`.
    """
    scores = np.asarray(finite_vector("scores", scores), np.float64)
    m = integer("canaries", len(scores), 1)
    if included.shape != scores.shape or included.dtype != bool:
        raise InvalidValue(f"included is {included.dtype} {included.shape}, a bit a score is due")
    delta, gaussian = claim.delta, gaussian and claim.delta > 0
    each = 1 - (1 - confidence) / 2
    bound = gaussian_lower_bound if gaussian else lower_bound
    guesses = planned(m, claim, gaussian=gaussian, confidence=each)
    right = right_guesses(scores, included, *surest(scores, guesses))
    coins = alone(scores, included, claim, gaussian=gaussian, confidence=each)
    error = 1 - each

    def refutes(hits: int) -> bool:
        if gaussian:
            return _curve_refuted(m, guesses, hits, _mu(claim.epsilon, delta), error)
        return p_value(m, guesses, hits, claim.epsilon, delta) <= error

    def share(epsilon: float) -> float:
        return expected_share(_mu(epsilon, delta), guesses / m) if gaussian else told_true(epsilon)

    return OneRunAudit(
        claim, m, guesses, right, coins.right,
        bound=bound(m, guesses, right, delta=delta, confidence=each),
        alone=coins.bound,
        reachable=bound(m, guesses, guesses, delta=delta, confidence=each),
        unseen=_unseen(refutes, guesses, share, claim),
        unseen_alone=coins.unseen,
        confidence=confidence,
    )  # fmt: skip


class Alone(NamedTuple):
    """Result of `alone`: `bound`, a lower bound on epsilon from guesses about all canaries.

    `right` is the number of right guesses. `bound` refutes the claim if it is above the claimed
    epsilon. `unseen` is the largest true epsilon that `bound` would probably miss: up to it, the
    expected number of right guesses is too small to refute the claim.
    """

    bound: float
    right: int
    unseen: float


def alone(
    scores: Float64s, included: Bools, claim: Figure, *, gaussian: bool, confidence: float
) -> Alone:
    """Guess for every canary whether it is in the run, and compute a lower bound on epsilon.

    The bound is at the delta of `claim`, has the given `confidence`, and is valid only if the
    canaries' outcomes are independent. `scores` has a score for each canary, positive if it seems
    to be in. `included` is True for canaries that are in. `claim` is the epsilon and delta that the
    bound may refute. `gaussian` is True if it is about Gaussian noise, which gives a larger bound.
    """
    m, delta = len(scores), claim.delta

    def bound(right: int) -> float:
        return independent_lower_bound(
            m, right, delta=delta, gaussian=gaussian, confidence=confidence
        )

    def share(epsilon: float) -> float:
        if not (gaussian and delta > 0):
            return told_true(epsilon)
        return float(special().ndtr(_mu(epsilon, delta) / 2))

    right = right_guesses(scores, included, *surest(scores, m))
    unseen = _unseen(lambda hits: bound(hits) > claim.epsilon, m, share, claim)
    return Alone(bound(right), right, unseen)


def _unseen(
    refutes: Callable[[int], bool], guesses: int, share: Callable[[float], float], claim: Figure
) -> float:
    """Return the largest true epsilon that a test of `claim` would probably miss.

    Up to this epsilon, the expected number of right guesses is too small to refute the claim.
    `refutes(right)` is True if `right` right guesses, of all `guesses`, refute it. `share(epsilon)`
    is the expected share of right guesses in a run with this true epsilon. Returns infinity if no
    number of right guesses refutes the claim.
    """
    if claim.epsilon >= _MOST or not refutes(guesses):
        return math.inf
    low, high = -1, guesses
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refutes(middle) else (middle, high)
    return max(claim.epsilon, _largest(lambda epsilon: share(epsilon) < high / guesses))


@functools.lru_cache(maxsize=16)
def planned(canaries: int, claim: Figure, *, gaussian: bool, confidence: float) -> int:
    """Return how many of the `canaries` to guess, for a large lower bound on epsilon.

    The number is best for a run whose true epsilon equals the claim. It depends on no coin and no
    score. `gaussian` is True if the run has Gaussian noise. `confidence` is that of the bound.
    """
    # Under Gaussian noise with exactly the claimed (epsilon, delta), a canary's log-likelihood
    # ratio is N(mu² / 2, mu²) if it is in the run, where mu is the claim's `distance_of_epsilon`.
    # The plan assumes one standard deviation fewer right guesses than expected. If no Gaussian
    # noise has the claim, all coins are guessed.
    if not (0 < claim.delta < 1 and 0 < claim.epsilon < _MOST):
        return canaries
    mu = _mu(claim.epsilon, claim.delta)
    bound = gaussian_lower_bound if gaussian else lower_bound
    best, most = canaries, 0.0
    guesses = canaries
    while guesses >= min(canaries, _FEWEST):
        hit = expected_share(mu, guesses / canaries)
        right = math.floor(guesses * hit - math.sqrt(guesses * hit * (1 - hit)))
        shown = bound(canaries, guesses, max(right, 0), delta=claim.delta, confidence=confidence)
        if shown > most:
            best, most = guesses, shown
        guesses //= 2
    return best


def expected_share(mu: float, share: float) -> float:
    """Return the expected fraction of right guesses if a fraction `share` of canaries is guessed.

    A canary's score is N(mu² / 2, mu²) if it is in, and N(-mu² / 2, mu²) if it is out. The canaries
    with the scores farthest from 0 are guessed.
    """

    def beyond(threshold: float) -> Float64s:
        tails: Float64s = special().ndtr(np.array([mu / 2, -mu / 2]) - threshold / mu)
        return tails

    low, high = 0.0, mu * (mu / 2 + 40)
    for _ in range(60):  # to 18 digits of the interval
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle).sum() > share else (low, middle)
    right, wrong = beyond(low)
    return float(right / (right + wrong))


def _curve_refuted(m: int, guesses: int, right: int, mu: float, error: float) -> bool:
    """Return True if right guesses about canaries refute a hypothesis about Gaussian noise.

    `right` of `guesses` guesses were right, out of `m` canaries. The hypothesis says that replacing
    a canary is no easier to detect than telling N(0, 1) from N(`mu`, 1). A true hypothesis is
    refuted with probability at most `error` (Mahloujifar, Melis and Chaudhuri, 2024, algorithm 3).
    """
    ndtr, ndtri = special().ndtr, special().ndtri
    r, h = error * right / m, error * (guesses - right) / m
    for i in range(right - 1, -1, -1):
        higher = max(h, float(ndtr(ndtri(r) - mu)))
        if higher == h:
            break
        h, r = higher, min(r + i / (guesses - i) * (higher - h), 1.0)
    return r + h > guesses / m


def _mu(epsilon: float, delta: float) -> float:
    """Return the mu at which N(0, 1) and N(mu, 1) satisfy (epsilon, delta)-privacy exactly."""
    return 1 / analytic_sigma(max(epsilon, _LEAST), delta, 1.0)


def distance_of_epsilon(figure: Figure) -> float:
    return _mu(figure.epsilon, figure.delta)


def epsilon_of_distance(mu: float, delta: float) -> float:
    """Return the epsilon at `delta` between N(0, 1) and N(mu, 1), rounded down."""
    if mu <= _mu(0.0, delta):
        return 0.0
    # `epsilon_for` rounds up by less than 2e-8.
    return min(_MOST, (1 - 2e-8) * epsilon_for(1 / min(mu, _MOST), delta))


def _largest(refuted: Callable[[float], bool]) -> float:
    """Return the largest number for which `refuted` is True, rounded down, or 0."""
    low, high = 0.0, 1.0
    if not refuted(low):
        return 0.0
    while refuted(high):
        low, high = high, 2 * high
        if high > _MOST:
            return low
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _checked(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    integer("canaries", canaries, 1)
    integer("guesses", guesses, 0, canaries)
    integer("right", right, 0, guesses)
    within("delta", delta, 0, 1, open_high=True)
    return 1 - within("confidence", confidence, 0, 1, open_low=True, open_high=True)
