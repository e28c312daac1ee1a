"""An attack's finding, as data: a run's record, a comparison and a page read equal numbers.

An attack that recovers nothing proves nothing: no finding calls a protection safe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedveil.base.validate import choice
from fedveil.errors import InvalidValue
from fedveil.privacy.audit import rounded_down

#: How much work an attack may do, and how many cases it is tried on.
EFFORTS = ("quick", "standard", "full")
#: Prefix of the name of a lower bound on epsilon.
BOUND = "epsilon at least"
#: The confidence of every interval.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Measured:
    """One metric: `low` to `high` is its interval at 95%, `guess` the result of guessing.

    `cases` is how many cases it was measured on. A figure without an interval has NaN there, and
    one that guessing says nothing of has it in `guess`.

    A lower bound on epsilon is compared with `epsilon` at `delta`, or with its finding's where
    these are NaN. `unseen`: a true epsilon up to which this bound would probably not have refuted
    the claim, infinite where it could refute none; NaN where nobody worked it out.
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

    @property
    def is_bound(self) -> bool:
        """True for a lower bound on epsilon."""
        return self.name.startswith(BOUND)

    @property
    def beats_guessing(self) -> bool:
        """True if the whole interval is better than guessing. Smaller errors are better."""
        if any(math.isnan(figure) for figure in (self.low, self.high, self.guess)):
            return False
        error = self.name == "mse" or self.name.startswith("relative error")
        return self.high < self.guess if error else self.low > self.guess

    def claim(self, finding: float) -> float:
        """Return the epsilon that a bound is compared with; `finding` is its finding's."""
        return finding if math.isnan(self.epsilon) else self.epsilon

    def __str__(self) -> str:
        down = self.is_bound and math.isfinite(self.value)
        shown = rounded_down(self.value, 6) if down else f"{self.value:.3g}"
        text = f"{self.name} {shown}"
        if not math.isnan(self.epsilon):
            text += f" of {self.epsilon:.6g} claimed"
        if not math.isnan(self.low):
            text += f" [{self.low:.3g}, {self.high:.3g}]"
        return text if math.isnan(self.guess) else f"{text}, guessing {self.guess:.3g}"


@dataclass(frozen=True)
class Finding:
    """Result of this attack, at this effort, against this protection with these settings.

    `epsilon` and `delta` are the ledger's for the attacker's view, epsilon infinite if nothing is
    promised. `pictures` are files beside the record.
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
        """The lower bounds on epsilon."""
        return [figure for figure in self.figures if figure.is_bound]

    @property
    def excesses(self) -> Sequence[Measured]:
        """The lower bounds that are above what they are compared with."""
        return [bound for bound in self.bounds if bound.value > bound.claim(self.epsilon)]

    @property
    def refutes(self) -> bool:
        """True if any lower bound is above its claim, by however little."""
        return bool(self.excesses)

    @property
    def unseen(self) -> Sequence[str]:
        """A sentence for each bound: what it could not have seen at this effort."""
        return [_unseen(bound, claim) for bound, claim in self._known()]

    @property
    def limits(self) -> str:
        """In words, what all bounds together could not have seen; "" where nobody knows."""
        known = self._known()
        seeing = [(bound, claim) for bound, claim in known if not math.isinf(bound.unseen)]
        if not known:
            return ""
        if not seeing:
            return f"none of {len(known)} bounds could have refuted its claim"
        blind = len(known) - len(seeing)
        sharpest = min(seeing, key=lambda of: of[0].unseen / of[1] if of[1] else math.inf)
        some = f"{blind} of {len(known)} bounds could not have refuted their claims, and "
        return f"{some if blind else ''}the sharpest is {_unseen(*sharpest)}"

    def _known(self) -> Sequence[tuple[Measured, float]]:
        """The bounds of finite claims whose `unseen` is known, each with its claim."""
        pairs = [(bound, bound.claim(self.epsilon)) for bound in self.bounds]
        return [(b, claim) for b, claim in pairs if claim < math.inf and not math.isnan(b.unseen)]

    @property
    def refutation(self) -> str:
        """The bounds above their claims, in words."""
        return "; ".join(
            f"{bound.name} {rounded_down(bound.value, 6)} where "
            f"{bound.claim(self.epsilon):.6g} is claimed"
            for bound in self.excesses
        )

    @property
    def distance(self) -> str:
        """How far what is claimed is from the bound that is closest to it or farthest above."""
        gaps = [bound.claim(self.epsilon) - bound.value for bound in self.bounds]
        gap = min(gaps, default=math.inf)
        if math.isinf(gap):
            return ""
        return f", {abs(gap):.4g} {'below' if gap < 0 else 'above'} the closest bound"

    @property
    def verdict(self) -> str:
        """Describe the finding in words, with the promise."""
        return "NOT WHAT WAS PROMISED" if self.refutes else "not refuted"

    @property
    def conclusion(self) -> str:
        """The result in a sentence: a refuted claim, a leak, or nothing proven."""
        if self.refutes:
            return f"The guarantee of {self.protection} is refuted: {self.refutation}."
        best = next((figure for figure in self.figures if figure.beats_guessing), None)
        if best is not None:
            return (
                f"Reports under {self.protection} leak: {best.name} {best.value:.3g}, where "
                f"guessing reaches {best.guess:.3g}."
            )
        if self.bounds:
            return f"The guarantee of {self.protection} stands: no bound is above its claim."
        return (
            f"Against {self.protection} this attack, at effort {self.effort}, did no better than "
            f"guessing. That does not prove that nothing leaks."
        )

    def figure(self, name: str) -> Measured:
        """Return the metric with this name."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise InvalidValue(f"there is no figure {name} in a finding of {self.attack}")

    def __str__(self) -> str:
        found = "; ".join(map(str, self.figures))
        return f"{self.attack} at effort {self.effort} against {self.protection} reached {found}"


def _unseen(bound: Measured, claim: float) -> str:
    """Return what a bound misses, in words."""
    missed = "every epsilon" if math.isinf(bound.unseen) else f"epsilons up to {bound.unseen:.4g}"
    return f"{bound.name} (misses {missed} where {claim:.4g} is claimed)"


def timed(attack: Callable[[], Finding]) -> Finding:
    """Run an attack, and return its finding with the seconds that it took."""
    began = time.perf_counter()
    found = attack()
    return replace(found, seconds=time.perf_counter() - began)
