"""Decides claims by the runs of an experiment.

Runs at chance level decide nothing. Several seeds give a confidence interval. One seed decides only
about large differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise, takewhile
from statistics import mean, stdev
from typing import TypeVar

from fedveil.base.lazy import special
from fedveil.privacy.finding import CONFIDENCE

#: A run learnt if its accuracy is at least this far above chance level. The most frequent label of
#: an uneven data set stays below that too.
MARGIN = 0.1
T = TypeVar("T")
#: Fewest seeds that give an interval.
LEAST_SEEDS = 3
#: The seeds of a run, where one seed cannot decide a claim.
SEEDS = tuple(range(LEAST_SEEDS))
#: A difference of accuracies, or of other figures from 0 to 1, counts as none up to this. With one
#: seed, it may be chance.
SLACK = 0.02


def learnt(accuracy: float, labels: int) -> bool:
    """Return True if a model of `labels` labels is more accurate than one that learnt nothing."""
    return accuracy >= 1 / labels + MARGIN


def idle(accuracies: Mapping[str, float], labels: int) -> str:
    """Return a sentence that names the runs at chance level, or "" if there are none."""
    found = [f"{name} ({a:.3f})" for name, a in accuracies.items() if not learnt(a, labels)]
    if not found:
        return ""
    chance = f"{1 / labels:.3f}"
    return f"less than {MARGIN:g} above chance level ({chance}) at the end: {', '.join(found)}"


@dataclass(frozen=True)
class Lost:
    """Accuracies of noisy runs, ordered from most to least noise, and the accuracies without noise.

    `noisy` has a list for each setting, with the accuracy at each seed. `plain` has a list for each
    of these lists: the accuracies without noise, at the same seeds.
    """

    plain: Sequence[Sequence[float]]
    noisy: Sequence[Sequence[float]]
    labels: int

    @property
    def by_seed(self) -> list[list[float]]:
        """For each setting, the relative loss of accuracy at each seed. Source: 002, eq. (8)."""
        return [
            [(p - n) / p if p else 0.0 for p, n in zip(*pair, strict=True)]
            for pair in zip(self.plain, self.noisy, strict=True)
        ]

    @property
    def rates(self) -> list[float]:
        """For each setting, the mean of all seeds' relative losses."""
        return [mean(each) for each in self.by_seed]

    @property
    def learnt(self) -> list[bool]:
        """For each setting, True if its runs learnt something: their mean accuracy decides."""
        return [learnt(mean(accuracies), self.labels) for accuracies in self.noisy]

    @property
    def without(self) -> str:
        """A sentence which says that a run without protection learnt nothing, or ""."""
        return idle({"without protection": min(map(min, self.plain))}, self.labels)

    @property
    def trend(self) -> list[list[float]]:
        """`by_seed` from the first setting that learnt something on. Idle ones may follow.

        If only the last one learnt something, the one before it comes first.
        """
        first = next((i for i, each in enumerate(self.learnt) if each), len(self.noisy))
        return self.by_seed[first - self._only_last :]

    @property
    def start(self) -> str:
        """The settings of `trend`, in words."""
        if self._only_last:
            return "from the last run at chance level to the only one above it"
        return "from the first run above chance level on"

    @property
    def _only_last(self) -> bool:
        return len(self.learnt) > 1 and self.learnt[-1] and not any(self.learnt[:-1])

    @property
    def nothing(self) -> str:
        """A sentence that says why these runs show no trend, or "" if they can."""
        return self.without or ("" if self._only_last else self.few)

    @property
    def few(self) -> str:
        """A sentence which says that fewer than two runs learnt something, or ""."""
        return "" if sum(self.learnt) > 1 else "fewer than two runs end above chance level"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's confidence interval of the mean of at least two seeds' values."""
    quantile = float(special().stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    half = quantile * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def with_interval(values: Sequence[float], places: int = 3) -> str:
    """Format the mean of the seeds' values, with its interval if there are at least three."""
    middle = f"{mean(values):.{places}f}"
    if len(values) < LEAST_SEEDS:
        return middle
    low, high = interval(values)
    return f"{middle} [{low:.{places}f}, {high:.{places}f}]"


def mean_of(number: int = LEAST_SEEDS, what: str = "seeds") -> str:
    """Return the part of a page's sentence that says what a figure with several seeds is."""
    return f"a figure is the mean of {number} {what}, with its {CONFIDENCE:.0%} confidence interval"


def decided(apart: Sequence[float], slack: float = SLACK) -> tuple[bool, str]:
    """Decide whether a difference is above 0. `apart` has its value for each seed.

    Returns (True, "") if it is above 0, (False, "") if it is not, and (False, reason) if the seeds
    cannot decide. The interval of at least `LEAST_SEEDS` seeds decides if it lies above 0, or ends
    at `slack` at most. Fewer seeds decide if their mean is more than `slack` away from 0.
    """
    if len(apart) < LEAST_SEEDS:
        middle, seeds = mean(apart), f"{len(apart)} seed{'s' if len(apart) > 1 else ''}"
        chance = f"a difference of {middle:+.3f} may be chance with {seeds}"
        return middle > slack, "" if abs(middle) > slack else chance
    low, high = interval(apart)
    if low > 0 or high <= slack:
        return low > 0, ""
    return False, f"the seeds differ too much to decide: [{low:.3f}, {high:.3f}]"


def within(apart: Sequence[float], bound: float) -> tuple[bool, str]:
    """Decide whether a difference is between -`bound` and `bound`. Returns a pair like `decided`.

    `apart` has the difference for each seed. Its interval decides if it lies inside or outside of
    these bounds. Too few seeds for an interval cannot decide.
    """
    if len(apart) < LEAST_SEEDS:
        return False, f"fewer than {LEAST_SEEDS} seeds have no interval"
    low, high = interval(apart)
    if low > bound or high < -bound:
        return False, ""
    inside = -bound <= low and high <= bound
    return inside, "" if inside else f"the seeds differ too much to decide: [{low:.4f}, {high:.4f}]"


def near(apart: Sequence[float], bound: float) -> tuple[bool, str]:
    """Decide as `within` does. Too few seeds for an interval decide by their mean."""
    return within(apart, bound) if len(apart) >= LEAST_SEEDS else (abs(mean(apart)) <= bound, "")


def whole_interval(seeds: int) -> str:
    """Return how a criterion of `near` ends: with several seeds, it holds the interval."""
    return "" if seeds < LEAST_SEEDS else ", with the whole interval"


def falls(values: Sequence[Sequence[float]], rise: float) -> tuple[bool, str]:
    """Decide whether values fall from setting to setting. Returns a pair like `decided`.

    `values` has a list for each setting, with the value at each seed. They do not fall if a single
    step of their mean rises by more than `rise`. Otherwise the differences of each seed's first
    value and last decide.
    """
    if any(after > before + rise for before, after in pairwise(map(mean, values))):
        return False, ""
    return decided([first - last for first, last in zip(values[0], values[-1], strict=False)])


def all_hold(found: Iterable[tuple[bool, str]]) -> tuple[bool, str]:
    """Decide whether several claims all hold. Each is a pair like that of `decided`."""
    pairs = [*found]
    if (False, "") in pairs:
        return False, ""
    return all(holds for holds, _ in pairs), next((why for _, why in pairs if why), "")


def seeded(name: str, seed: int) -> str:
    """Return the name of a run with this seed. `name` is its name with seed 0."""
    return f"{name}-seed-{seed}" if seed else name


def of_seeds(found: Mapping[str, T], name: str) -> list[T]:
    """Return the entries of `found` for all seeds of the run `name`: 0, 1, and so on."""
    names = (seeded(name, seed) for seed in count())
    return [found[each] for each in takewhile(found.__contains__, names)]
