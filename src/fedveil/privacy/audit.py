"""Tries to refute a privacy claim by distinguishing a mechanism's outputs for two inputs.

The audit chooses an event by one half of the outputs, and counts it in the other half.
Clopper-Pearson bounds on the counts give a lower bound on epsilon. This bound is wrong with
probability at most 1 - confidence, whatever the mechanism is, if its runs are independent. A bound
above the claim refutes the claim. A bound below the claim proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from typing import Any, TypeAlias

import numpy as np

from fedveil.base.array_types import Array, Float64s
from fedveil.base.validate import integer, within
from fedveil.entropy import Entropy, Secure
from fedveil.errors import InvalidValue
from fedveil.privacy.audit_scores import Scorer, as_rows, learned
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.loss import PrivacyLoss, as_written, format_epsilon

Mechanism: TypeAlias = Callable[[Any, Entropy], Any] | object

_METHODS = ("privatize", "perturb", "select")
_MIN_TRIALS = 100
_THRESHOLDS = 512


@dataclass(frozen=True)
class Audit:
    """Result of an audit: with this `confidence`, the mechanism's epsilon is at least `bound`.

    `reachable` is the largest `bound` that `trials` outputs for each input can give.

        >>> from fedveil.privacy import PrivacyLoss
        >>> from fedveil.privacy.audit import Audit
        >>> Audit(PrivacyLoss(1.0), 1.34, reachable=5.2, trials=3000, confidence=0.999).refuted
        True
    """

    claim: PrivacyLoss
    bound: float
    reachable: float
    trials: int
    confidence: float

    @property
    def refuted(self) -> bool:
        """Return True if the lower bound on epsilon is above the claimed epsilon."""
        return self.bound > self.claim.epsilon

    def __str__(self) -> str:
        claimed = Figure(self.claim.epsilon, self.claim.delta)
        verdict = "refuted" if self.refuted else "not refuted"
        found, reachable = rounded_down(self.bound), format_epsilon(self.reachable)
        return (
            f"claimed: {claimed}; found: epsilon at least {found} at confidence "
            f"{self.confidence:g} ({self.trials} trials can show at most {reachable}): {verdict}"
        )


@dataclass(frozen=True)
class Case:
    """A mechanism to audit (`release`), its claim, and two inputs for which the claim must hold."""

    name: str
    release: Callable[[Any, Entropy], Any]
    a: Any
    b: Any
    claim: PrivacyLoss

    def audit(self, trials: int) -> Audit:
        """Run the mechanism `trials` times on each input, and return the audit of its claim."""
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
    """Run `mechanism` on the inputs `a` and `b`, and test whether the outputs refute its claim.

    `claim` is a loss, or an epsilon at delta = 0. It must be the claim for this pair of inputs: if
    they differ in several bits or parameters, it is the composed loss. The mechanism runs `trials`
    times on each input, with randomness from `entropy` (default: the operating system). The runs
    must be independent: a mechanism that saves its noise and uses it again must be made anew for
    each run. A true claim is refuted with probability at most 1 - `confidence`. `score` maps one
    output to a number that differs between the inputs. Without it, scores are trained on the
    outputs.

        >>> import numpy as np
        >>> from fedveil.entropy import Seeded
        >>> from fedveil.mechanisms import BinaryRandomizedResponse
        >>> from fedveil.privacy import audit
        >>> zero, one = np.zeros(1, bool), np.ones(1, bool)
        >>> response = BinaryRandomizedResponse(eps=2.0)
        >>> audit.run(response, zero, one, claim=0.7, trials=3000, entropy=Seeded(1)).refuted
        True
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
    """Test a claim by scores of a mechanism's outputs for two inputs a and b.

    `ahead` has the scores of outputs for a, and `back` those for b, equally many. Outputs that are
    likelier for a must have larger scores. A true claim is refuted with probability at most 1 -
    `confidence`.
    """
    trials = integer("scores", len(ahead), _MIN_TRIALS)
    if len(back) != trials:
        raise InvalidValue(f"there are {trials} scores for a and {len(back)} for b, not as many")
    if np.isnan(ahead).any() or np.isnan(back).any():
        raise InvalidValue("a score is NaN")
    bound = _played(ahead[:, None], back[:, None], [_itself], 0, confidence, claim.delta)
    return Audit(claim, bound, _reachable(trials, confidence, claim.delta), trials, confidence)


def _reachable(trials: int, confidence: float, delta: float) -> float:
    """Return the largest lower bound on epsilon at `delta` that an audit can show.

    The audit has `trials` outputs for each input. Its bound has the given `confidence`.
    """
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
    """Return a lower bound on the epsilon of `mechanism`, from `trials` outputs for each input.

    `mechanism` is a function of (input, entropy), or an object with such a method named
    `privatize`, `perturb` or `select`. The bound is for epsilon at `delta`. It is above the true
    epsilon with probability at most 1 - `confidence`. It is 0 if no difference was found, and at
    most about log(trials / 15) at the default confidence. `score` maps one output to a number that
    differs between the inputs. Without it, scores are trained on the outputs. `entropy` is the
    source of randomness, by default the operating system.

    Outputs may be numbers, arrays, text, bytes, or dataclasses, mappings and sequences of these.
    """
    # Each output becomes a row: how many numbers it has, those numbers (bytes for a text), and
    # padding. The first quarter of the rows trains several scores: the likelihood ratio of the
    # whole row, if rows repeat; the sum of the columns' likelihood ratios, over all columns and
    # over those that differ significantly; the likelihood ratio of the best column; and the best
    # linear score. The second quarter chooses a score and a threshold. The other rows are counted.
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
    return rows[:, 0]


def _played(
    ahead: Float64s,
    back: Float64s,
    scorers: Sequence[Scorer],
    learn: int,
    confidence: float,
    delta: float,
) -> float:
    """Choose an event, count it, and return a lower bound on epsilon at `delta`.

    `ahead` has a mechanism's outputs for a first input, and `back` those for a second. The first
    `learn` outputs of each have trained the `scorers`, and are not used here. The event is chosen
    by the rest of the first half of the outputs, and counted in the second half. The bound is wrong
    with probability at most 1 - `confidence`.
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
    """The event that an audit counts: an output has `sign` * score >= `threshold`.

    The event is likelier for the first input, or for the second if `swapped` is True.
    """

    score: Scorer
    sign: float
    threshold: float
    swapped: bool

    def count(self, rows: Float64s) -> int:
        return int((self.sign * self.score(rows) >= self.threshold).sum())


def _choose(
    scorers: Sequence[Scorer], ahead: Float64s, back: Float64s, error: float, delta: float
) -> _Event:
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
    """Return a lower bound on epsilon at `delta`, log((p - delta) / q), from counts of an event.

    The event occurred in `hits` of n outputs for one input, and in `others` of n for the other. Its
    probability is at least p for the first input, and at most q for the second (Clopper-Pearson).
    The bounds p and q are each wrong with probability at most `error`.
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


def rounded_down(bound: float, digits: int = 3) -> str:
    """Format a lower bound with `digits` significant digits, rounded down. It may be infinite."""
    if not math.isfinite(bound):
        return f"{bound:g}"
    context = Context(prec=digits, rounding=ROUND_FLOOR)
    return f"{float(context.create_decimal(as_written(bound))):g}"
