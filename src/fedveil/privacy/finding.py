"""The result of an attack, as data. Run records, comparisons and pages all read it.

A failed attack proves nothing, so no finding calls a protection safe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedveil.base.quantity import few_digits
from fedveil.base.validate import choice
from fedveil.errors import InvalidValue
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.loss import format_epsilon

#: How much work an attack may do, and how many cases it is tried on.
EFFORTS = ("quick", "standard", "full")
#: Prefix of the name of a lower bound on epsilon.
BOUND = "epsilon at least"
#: Prefix of the name of an epsilon that a ledger states.
CLAIM = "ledger's epsilon"
#: Prefixes of the names of the largest lower bounds that an attack's cases could show.
LIMITS = ("the most that", "most that")
#: The confidence of every interval.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Measured:
    """One metric of a finding: a value, with its 95% interval from `low` to `high`.

    `cases` is the number of cases on which it was measured, and `guess` the value that blind
    guessing would reach. Fields that do not apply are NaN.

    If the metric is a lower bound on epsilon, it is compared with the claim `epsilon` at `delta`.
    If `epsilon` and `delta` are NaN, the finding's own claim is used. `unseen` is the largest true
    epsilon that this bound would probably not have detected. It is infinite if the bound could not
    have refuted any false claim, and NaN if it was not computed.

    If there was nothing to measure, `value` is NaN, and `unmeasured` says why.

        >>> from fedveil.privacy.finding import Measured
        >>> metric = Measured("auc", 0.71, low=0.62, high=0.79, guess=0.5, cases=400)
        >>> print(metric)
        auc 0.71 [0.62, 0.79], guessing 0.5
        >>> metric.beats_guessing
        True
    """

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    guess: float = math.nan
    cases: int = 1
    epsilon: float = math.nan
    delta: float = math.nan
    unseen: float = math.nan
    unmeasured: str = ""

    @property
    def is_measured(self) -> bool:
        return not math.isnan(self.value)

    @property
    def is_bound(self) -> bool:
        """Return True if this metric is a lower bound on epsilon."""
        return self.name.startswith(BOUND)

    @property
    def is_claim(self) -> bool:
        """Return True if this metric is an epsilon that a ledger states."""
        return self.name.startswith(CLAIM)

    @property
    def is_limit(self) -> bool:
        """Return True if this metric is the largest lower bound that its cases could show."""
        return self.name.startswith(LIMITS)

    @property
    def is_error(self) -> bool:
        """True if the metric measures the attacker's error, so that smaller values are better."""
        # A name may begin with what the attacker knew, as in "left: known bottom: mse".
        return self.name.split()[-1] == "mse" or self.name.startswith("relative error")

    @property
    def beats_guessing(self) -> bool:
        """True if the whole interval is better than guessing."""
        if any(math.isnan(figure) for figure in (self.low, self.high, self.guess)):
            return False
        return self.high < self.guess if self.is_error else self.low > self.guess

    @property
    def exceeds_guessing(self) -> bool:
        """True if the value is better than guessing, which may be luck."""
        return self.value < self.guess if self.is_error else self.value > self.guess

    @property
    def missing(self) -> str:
        """A phrase that says that there is no value, with the reason if it is known."""
        return f"not measured: {self.unmeasured}" if self.unmeasured else "not measured"

    def claim(self, finding: float) -> float:
        """Return the claimed epsilon with which this bound is compared.

        It is the metric's own `epsilon`. If that is NaN, it is `finding`, the finding's epsilon.
        """
        return finding if math.isnan(self.epsilon) else self.epsilon

    def __str__(self) -> str:
        if not self.is_measured:
            return f"{self.name} {self.missing}"
        shown = rounded_down(self.value) if self.is_bound else few_digits(self.value)
        shown = format_epsilon(self.value) if self.is_claim or self.is_limit else shown
        text = f"{self.name} {shown}"
        if not math.isnan(self.epsilon):
            text += f" of {format_epsilon(self.epsilon)} claimed"
        if not math.isnan(self.low):
            text += f" [{few_digits(self.low)}, {few_digits(self.high)}]"
        return text if math.isnan(self.guess) else f"{text}, guessing {few_digits(self.guess)}"


@dataclass(frozen=True)
class Finding:
    """The result of one attack on one protection.

    `attack` and `protection` are names, and `effort` is one of `EFFORTS`. `settings` are the
    protection's settings, and `figures` the attack's metrics. `saw` describes in words the messages
    that the attacker sees. `epsilon` and `delta` are the ledger's claim for these messages, and
    `epsilon` is infinite if nothing is guaranteed. `seconds` is the attack's duration. `pictures`
    names image files in the run's folder.

        >>> from fedveil.privacy.finding import Finding, Measured
        >>> bound = Measured("epsilon at least", 1.7, cases=300)
        >>> finding = Finding("audit", "quick", "dp_encrypt", [bound], epsilon=1.2, delta=1e-5)
        >>> finding.refutes
        True
    """

    attack: str
    effort: str
    protection: str
    figures: Sequence[Measured]
    settings: Mapping[str, Any] = field(default_factory=dict)
    epsilon: float = math.inf
    delta: float = 0.0
    saw: str = ""
    seconds: float = math.nan
    pictures: Sequence[str] = ()

    def __post_init__(self) -> None:
        choice("effort", self.effort, EFFORTS)

    @property
    def bounds(self) -> Sequence[Measured]:
        """Return the metrics that are lower bounds on epsilon."""
        return [figure for figure in self.figures if figure.is_bound]

    @property
    def excesses(self) -> Sequence[Measured]:
        """Return the lower bounds on epsilon that are above their claims."""
        return [bound for bound in self.bounds if bound.value > bound.claim(self.epsilon)]

    @property
    def refutes(self) -> bool:
        """Return True if any lower bound on epsilon is above its claim."""
        return bool(self.excesses)

    @property
    def unseen(self) -> Sequence[str]:
        """Return a phrase for each lower bound that says which false claims it would miss.

        The phrase gives the largest true epsilon at which the bound would probably not refute its
        claim, or says that it misses every epsilon. Bounds with an infinite claim or an unknown
        `unseen` are left out.
        """
        return [_unseen(bound, claim) for bound, claim in self._known()]

    @property
    def limits(self) -> str:
        """Return a phrase that says how false a claim must be for the lower bounds to detect it.

        A bound's `unseen` is the largest true epsilon that it would probably miss. It is infinite
        if the bound could not have refuted any false claim, and unknown if the bound refutes its
        claim. Bounds with an infinite claim or an unknown `unseen` are left out.

        The phrase gives the number of bounds with an infinite `unseen`. Of the others, it describes
        the one with the least ratio of `unseen` to its claim. Returns "" if all bounds are left
        out, or if any bound refutes its claim and every bound not left out has an infinite
        `unseen`.
        """
        known = self._known()
        seeing = [(bound, claim) for bound, claim in known if not math.isinf(bound.unseen)]
        if not known or (self.refutes and not seeing):
            return ""
        if not seeing:
            return f"none of {len(known)} bounds could have refuted its claim"
        blind = len(known) - len(seeing)
        sharpest = min(seeing, key=lambda of: of[0].unseen / of[1] if of[1] else math.inf)
        some = f"{blind} of {len(known)} bounds could not have refuted their claims, and "
        return f"{some if blind else ''}the most sensitive bound is {_unseen(*sharpest)}"

    def _known(self) -> Sequence[tuple[Measured, float]]:
        """Return (bound, claim) for each lower bound whose claim is finite and `unseen` not NaN."""
        pairs = [(bound, bound.claim(self.epsilon)) for bound in self.bounds]
        return [(b, claim) for b, claim in pairs if claim < math.inf and not math.isnan(b.unseen)]

    @property
    def refutation(self) -> str:
        """Return a list, in words, of the lower bounds that exceed their claims."""
        return "; ".join(
            f"{bound.name} {rounded_down(bound.value, 6)} where "
            f"{format_epsilon(bound.claim(self.epsilon), 6)} is claimed"
            for bound in self.excesses
        )

    @property
    def distance(self) -> str:
        """Return, in words, the lower bound that is closest to its claim, and how far it is away.

        If bounds exceed their claims, it is the one that exceeds its claim by most. A bound of 0
        for a claim of 0 is left out, because no such bound is farther away. Returns "" if no other
        bound has a finite claim.
        """
        known = [(bound, bound.claim(self.epsilon)) for bound in self.bounds]
        usable = [(b, claim) for b, claim in known if claim < math.inf and max(claim, b.value) > 0]
        if not usable:
            return ""
        bound, claim = min(usable, key=lambda of: of[1] - of[0].value)
        gap, own = claim - bound.value, "the" if math.isnan(bound.epsilon) else "its own"
        what, side = ("largest excess", "above") if gap < 0 else ("closest", "below")
        return (
            f"; {what}: {bound.name.removeprefix(f'{BOUND}, ')} {rounded_down(bound.value)}, "
            f"{few_digits(abs(gap))} {side} {own} claim {format_epsilon(claim)}"
        )

    @property
    def verdict(self) -> str:
        """Return "NOT WHAT WAS PROMISED" if a bound refutes its claim.

        Otherwise return "not refuted", or "nothing to refute" if no bound has a finite claim.
        """
        if self.refutes:
            return "NOT WHAT WAS PROMISED"
        tested = any(bound.claim(self.epsilon) < math.inf for bound in self.bounds)
        return "not refuted" if tested else "nothing to refute"

    def figure(self, name: str) -> Measured:
        """Return the metric with this name. Raises `InvalidValue` if there is none."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise InvalidValue(f"there is no figure {name} in a finding of {self.attack}")

    def __str__(self) -> str:
        found = "; ".join(map(str, self.figures))
        return f"{self.attack} at effort {self.effort} against {self.protection} reached {found}"


def _unseen(bound: Measured, claim: float) -> str:
    missed = "every epsilon"
    if math.isfinite(bound.unseen):
        missed = f"epsilons up to {format_epsilon(bound.unseen)}"
    return f"{bound.name} (misses {missed} where {format_epsilon(claim)} is claimed)"


def timed(attack: Callable[[], Finding]) -> Finding:
    """Run an attack. Returns its finding with `seconds` set to its duration."""
    began = time.perf_counter()
    found = attack()
    return replace(found, seconds=time.perf_counter() - began)
