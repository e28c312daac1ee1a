"""Try to refute a privacy claim by playing the game it is about.

(epsilon, delta)-differential privacy says that no event tells two inputs apart better than

    Pr[event | a] <= e^epsilon * Pr[event | b] + delta.

The audit runs the mechanism on both inputs, looks for a telling event in one half of the
outputs, and counts it in the other half. Clopper-Pearson bounds on the two counts give a lower
bound on epsilon that is wrong with probability at most 1 - confidence, whatever the mechanism
and however the event was found. A bound above the claim refutes it. A bound below the claim
proves nothing: a better event, other inputs or more trials might still refute it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from typing import Any, TypeAlias

import numpy as np

from fedveil.base.arrays import Array, Float64s
from fedveil.base.validate import integer, within
from fedveil.entropy import Entropy, Secure
from fedveil.errors import InvalidValue
from fedveil.privacy.audit_scores import Scorer, as_rows, learned
from fedveil.privacy.guarantee_word import Figure
from fedveil.privacy.loss import PrivacyLoss, as_written

Mechanism: TypeAlias = Callable[[Any, Entropy], Any] | object

_METHODS = ("privatize", "perturb", "select")
_MIN_TRIALS = 100
_THRESHOLDS = 512


@dataclass(frozen=True)
class Audit:
    """Result of an audit: epsilon is at least `bound`, at that confidence."""

    claim: PrivacyLoss
    bound: float
    reachable: float
    trials: int
    confidence: float

    @property
    def refuted(self) -> bool:
        """True if the claim is refuted."""
        return self.bound > self.claim.epsilon

    def __str__(self) -> str:
        claimed = Figure(self.claim.epsilon, self.claim.delta)
        verdict = "refuted" if self.refuted else "not refuted"
        found, reachable = rounded_down(self.bound), rounded_down(self.reachable)
        return (
            f"claimed: {claimed}; found: epsilon at least {found} at confidence "
            f"{self.confidence:g} ({self.trials} trials can show at most {reachable}): {verdict}"
        )


@dataclass(frozen=True)
class Case:
    """A mechanism, and two inputs that differ as much as its claim allows."""

    name: str
    release: Callable[[Any, Entropy], Any]
    a: Any
    b: Any
    claim: PrivacyLoss

    def audit(self, trials: int) -> Audit:
        """Play the game."""
        return run(self.release, self.a, self.b, claim=self.claim, trials=trials)


def run(
    mechanism: Mechanism,
    a: Any,
    b: Any,
    *,
    claim: PrivacyLoss | float,
    trials: int,
    confidence: float = 0.999,
    entropy: Entropy | None = None,
    score: Callable[[Any], float] | None = None,
) -> Audit:
    """Audit what `mechanism` claims for inputs that differ as `a` and `b` do.

    Arguments as for `lower_bound`; `claim` is a loss, or the epsilon of a pure one. It must be
    what the mechanism claims for this pair: where a and b differ in several bits or parameters,
    the composed loss.
    """
    if not isinstance(claim, PrivacyLoss):
        claim = PrivacyLoss(claim)
    bound = lower_bound(
        mechanism, a, b,
        trials=trials, confidence=confidence, entropy=entropy, delta=claim.delta, score=score,
    )  # fmt: skip
    return Audit(claim, bound, _reachable(trials, confidence, claim.delta), trials, confidence)


def of_scores(
    ahead: Float64s, back: Float64s, *, claim: PrivacyLoss, confidence: float = 0.999
) -> Audit:
    """Audit from scores of outputs for a, and of as many for b: larger where a is likelier.

    The first half of each chooses the threshold, the rest is counted.
    """
    trials = integer("scores", len(ahead), _MIN_TRIALS)
    if len(back) != trials:
        raise InvalidValue(f"there are {trials} scores for a and {len(back)} for b, not as many")
    if np.isnan(ahead).any() or np.isnan(back).any():
        raise InvalidValue("a score is NaN")
    bound = _played(ahead[:, None], back[:, None], [_itself], 0, confidence, claim.delta)
    return Audit(claim, bound, _reachable(trials, confidence, claim.delta), trials, confidence)


def _reachable(trials: int, confidence: float, delta: float) -> float:
    """Return the bound if every output for a is in the event, and none for b."""
    tested, error = trials - trials // 2, (1 - confidence) / 2
    most = _bound(np.array([tested]), np.array([0]), tested, error, delta)
    return max(0.0, float(most[0]))


def lower_bound(
    mechanism: Mechanism,
    a: Any,
    b: Any,
    *,
    trials: int,
    confidence: float = 0.999,
    entropy: Entropy | None = None,
    delta: float = 0.0,
    score: Callable[[Any], float] | None = None,
) -> float:
    """Return a lower bound on the epsilon of `mechanism` at `delta`, from `trials` outputs each.

    `mechanism` is called as `mechanism(input, entropy)`, or is an object with a method `privatize`,
    `perturb` or `select` that is. The bound is above the true epsilon with probability at most 1 -
    confidence. It is 0 if nothing was found, and at most about log(trials / 15) at the default
    confidence.

    Outputs may be numbers, arrays, text, bytes, or dataclasses, mappings and sequences of these.
    They are laid out as rows of numbers, a text by its bytes, rows of different lengths padded,
    with their length in front. A first quarter of the rows trains several scores: the likelihood
    ratio of the whole row if rows repeat; of each column, binned, added up over all columns, over
    those that differ significantly, and for the best column only; and the best linear score. A
    second quarter chooses among the scores and their thresholds. The rest is counted. `score`, a
    function of one output, replaces them if the tester knows a better one.
    """
    trials = integer("trials", trials, _MIN_TRIALS)
    confidence = within("confidence", confidence, 0, 1, open_low=True, open_high=True)
    delta = within("delta", delta, 0, 1, open_high=True)
    release = _callable(mechanism)
    source = Secure() if entropy is None else entropy
    outputs = [[release(given, source) for _ in range(trials)] for given in (a, b)]
    learn = trials // 4
    scorers: list[Scorer]
    if score is None:
        rows = as_rows([output for side in outputs for output in side])
        scorers = learned(rows[:learn], rows[trials : trials + learn])
    else:
        rows = np.array([[float(score(output))] for side in outputs for output in side])
        if np.isnan(rows).any():
            raise InvalidValue("score gave NaN")
        scorers = [_itself]
    return _played(rows[:trials], rows[trials:], scorers, learn, confidence, delta)


def _itself(rows: Float64s) -> Float64s:
    """Return rows of one number as their own score."""
    return rows[:, 0]


def _played(
    ahead: Float64s,
    back: Float64s,
    scorers: Sequence[Scorer],
    learn: int,
    confidence: float,
    delta: float,
) -> float:
    """Return the bound.

    The rows from `learn` to the middle choose an event, the rest is counted.
    """
    trials = len(ahead)
    choose, error = trials // 2, (1 - confidence) / 2
    event = _choose(scorers, ahead[learn:choose], back[learn:choose], error, delta)
    if event.swapped:
        ahead, back = back, ahead
    hits, others = event.count(ahead[choose:]), event.count(back[choose:])
    found = _bound(np.array([hits]), np.array([others]), trials - choose, error, delta)
    return max(0.0, float(found[0]))


@dataclass(frozen=True)
class _Event:
    """sign * score >= threshold; with `swapped`, likelier under b than under a."""

    score: Scorer
    sign: float
    threshold: float
    swapped: bool

    def count(self, rows: Float64s) -> int:
        return int((self.sign * self.score(rows) >= self.threshold).sum())


def _choose(
    scorers: Sequence[Scorer], ahead: Float64s, back: Float64s, error: float, delta: float
) -> _Event:
    """Return the event of the best bound on these rows."""
    best, event = -math.inf, _Event(scorers[0], 1.0, math.inf, False)
    for score in scorers:
        plain = score(ahead), score(back)
        for sign in (1.0, -1.0):
            scores = np.sort(sign * plain[0]), np.sort(sign * plain[1])
            thresholds = np.unique(np.concatenate(scores))
            picked = np.linspace(0, len(thresholds) - 1, min(len(thresholds), _THRESHOLDS))
            thresholds = thresholds[picked.astype(np.int64)]
            hits = [len(side) - np.searchsorted(side, thresholds) for side in scores]
            for swapped in (False, True):
                k, other = reversed(hits) if swapped else hits
                bounds = _bound(k, other, len(ahead), error, delta)
                at = int(np.argmax(bounds))
                if bounds[at] > best:
                    best, event = bounds[at], _Event(score, sign, float(thresholds[at]), swapped)
    return event


def _bound(hits: Array, others: Array, n: int, error: float, delta: float) -> Float64s:
    """Return log((p - delta) / q) for the least p and the largest q that the counts allow.

    Clopper and Pearson: each is wrong with probability at most `error`, exactly.
    """
    from scipy.special import betaincinv  # a third of a second to import

    k, j = hits.astype(np.float64), others.astype(np.float64)
    least = np.where(k > 0, betaincinv(np.maximum(k, 1), n - k + 1, error), 0.0)
    most = np.where(j < n, betaincinv(j + 1, np.maximum(n - j, 1), 1 - error), 1.0)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(least - delta, 0.0)) - np.log(most)


def _callable(mechanism: Mechanism) -> Callable[[Any, Entropy], Any]:
    for name in _METHODS:
        method = getattr(mechanism, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    if callable(mechanism):
        return mechanism
    raise InvalidValue(
        f"mechanism = {mechanism!r} is neither a function of (input, entropy) nor an object "
        f"with a method {', '.join(_METHODS)}"
    )


def rounded_down(bound: float, digits: int = 4) -> str:
    """Format a bound with `digits` digits, rounded down: it states no more than was found."""
    context = Context(prec=digits, rounding=ROUND_FLOOR)
    return f"{float(context.create_decimal(as_written(bound))):g}"
