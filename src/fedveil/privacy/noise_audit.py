"""A lower bound on epsilon from the measured noise of a run's releases.

An auditor who knows a release without its noise knows the noise of every entry. If the noise is
Gaussian with the same sigma in all n entries, the sum of its squares is sigma² times a chi-square
variable with n degrees of freedom. So sigma is at most √(s / q), where s is this sum and q the
quantile of the chi-square distribution at the allowed error.

Replacing a client moves each of r releases by some distance m. The releases reveal at least as much
as one draw from N(0, 1) for one data set and N(√r · m / sigma, 1) for the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedveil.base.array_types import Float64s
from fedveil.base.lazy import special
from fedveil.base.message import Message, take
from fedveil.base.validate import integer, within
from fedveil.privacy.one_run_audit import epsilon_of_distance

#: Larger distances are reduced to this one.
_FARTHEST = 1e6


@dataclass
class MeasuredNoise:
    """The noise measured in `releases` releases of a run, which have `entries` entries each.

    `squares` is the sum of the squared noise over all entries of all releases. `fewest` is the
    smallest such sum of a single release.
    """

    entries: int
    releases: int = 0
    squares: float = 0.0
    fewest: float = math.inf

    def add(self, squares: float) -> None:
        """Add a release. `squares` is its squared L2 distance from its value without noise."""
        self.releases += 1
        self.squares += squares
        self.fewest = min(self.fewest, squares)

    def state(self) -> Message:
        fewest = self.fewest if self.releases else 0.0
        return {"releases": self.releases, "squares": self.squares, "fewest": fewest}

    def restore(self, state: Message) -> None:
        """Load noise from an untrusted checkpoint. Raises `ValueError` for impossible values."""
        self.releases = integer("releases", take(state, "releases", int), 0)
        self.squares = within("squares", take(state, "squares", float), 0, math.inf, open_high=True)
        fewest = within("fewest", take(state, "fewest", float), 0, math.inf, open_high=True)
        self.fewest = fewest if self.releases else math.inf

    def lower_bound(self, moved: float, rounds: int, *, delta: float, error: float) -> float:
        """Return a lower bound on the epsilon at `delta` of a client in `rounds` rounds.

        Replacing the client moves each release by the distance `moved`. The bound is above the true
        epsilon with probability at most `error`.
        """
        return epsilon_of_distance(self.distance(moved, rounds, error=error), delta)

    def distance(self, moved: float, rounds: int, *, error: float) -> float:
        """Return a lower bound on how far replacing a client moves the sequence of all releases.

        Replacing the client moves each of `rounds` releases by the L2 distance `moved`, before
        noise is added. The result is the L2 distance between the two sequences, in units of the
        noise's sigma. It is too large with probability at most `error`.
        """
        if not self.releases:
            return 0.0
        within("error", error, 0, 1, open_low=True, open_high=True)
        integer("rounds", rounds, 1)
        of_one = _most(self.fewest, self.entries, error / 2 / self.releases)
        distances = (moved * math.sqrt(rounds), self.sigma(error / 2)), (moved, of_one)
        return max(_ratio(distance, sigma) for distance, sigma in distances)

    def distance_of_least(self, moved: float, *, error: float) -> float:
        """Return a lower bound on `moved` / sigma, where sigma is that of the least noisy release.

        `moved` is the L2 distance by which replacing a client moves each release. The bound is
        wrong with probability at most `error`. Unlike `distance`, it does not combine releases, so
        the noises of different releases may be dependent.
        """
        if not self.releases:
            return 0.0
        within("error", error, 0, 1, open_low=True, open_high=True)
        return _ratio(moved, _most(self.fewest, self.entries, error / self.releases))

    def sigma(self, error: float) -> float:
        """Return an upper bound on the noise's sigma, wrong with probability at most `error`."""
        return _most(self.squares, self.releases * self.entries, error)


def moved_distance(
    moves: Float64s, rounds: int, noise: MeasuredNoise, *, error: float
) -> tuple[float, float]:
    """Return a lower bound on how far reversing a client's updates moves the releases.

    The client is replaced by one that sends the opposite update in each of `rounds` rounds. The
    bound is for the L2 distance between the two sequences of releases without noise, in standard
    deviations of the noise. It is too large with probability at most `error`.

    `moves` has one estimate for each of several clients: the length of the client's update in a
    release, in the units of `noise`. The estimate is the release's inner product with the direction
    of the client's update, averaged over the rounds.

    The second result is the amount by which the uncertainty of the mean of `moves` has reduced the
    bound. Returns (0, infinity) if `moves` has fewer than two entries or there is no release.
    """
    count = len(moves)
    if count < 2 or not noise.releases:
        return 0.0, math.inf
    quantile = -float(special().stdtrit(count - 1, error / 2))
    uncertain = quantile * float(moves.std(ddof=1)) / math.sqrt(count)
    scale = 2 * math.sqrt(rounds)
    sigma, least = noise.sigma(error / 2), float(moves.mean()) - uncertain
    return _ratio(scale * max(0.0, least), sigma), _ratio(scale * uncertain, sigma)


def _most(squares: float, entries: int, error: float) -> float:
    """Return an upper bound on sigma. The bound fails with probability at most `error`.

    `squares` is the sum of the squares of `entries` noise values.
    """
    quantile = 2 * float(special().gammaincinv(entries / 2, error))
    return math.sqrt(squares / quantile) if quantile > 0 else math.inf


def _ratio(distance: float, sigma: float) -> float:
    return min(distance / sigma, _FARTHEST) if sigma > 0 else _FARTHEST
