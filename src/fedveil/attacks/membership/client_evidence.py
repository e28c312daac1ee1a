"""Evidence, in a round's messages, that a client with known examples took part in the round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedveil.attacks.server_view import Seen
from fedveil.base.array_types import Float64s
from fedveil.protections.reading import Reading


@dataclass(frozen=True)
class View:
    """The server's estimate of one client's update, or of the mean update of a cohort.

    `clients` are that one client, or all clients of the cohort. The estimate, `reading`, is `share`
    times the sum of these clients' updates, plus noise. So `share` is 1 for a single client, and
    1 / (the expected number of updates) for a mean.
    """

    reading: Reading
    clients: Sequence[int]
    share: float


def views(seen: Seen, cohort: Sequence[int], turn_rate: float = 1.0) -> list[View]:
    """Return the server's views of a round: one of each report, or a single one of their mean.

    The mean is used if single reports reveal nothing. `seen` is what the server saw of the round,
    and `cohort` are the round's clients. `turn_rate` is the probability that a client's report
    contains its update, and not zeros in its place.
    """
    if seen.masked:
        summed = [cohort[i] for i in seen.asked]
        return [View(seen.mean, summed, 1 / (len(summed) * turn_rate))]
    pairs = zip(seen.readings, cohort, strict=True)
    return [View(reading, [client], 1.0) for reading, client in pairs]


def log_odds(view: View, candidates: Float64s, turn_rate: float = 1.0) -> Float64s:
    """Return each candidate's log-likelihood ratio for being one of the view's clients.

    `candidates[i]` is the update that candidate i would have sent. `turn_rate` is the probability
    that a client's report contains its update, and not zeros in its place.

    To test a candidate, the view's estimate is projected on the difference between the candidate's
    update and the mean update of all other candidates. The likelihoods are those of this
    projection, which is assumed normal. If the estimate has a direction but no length, the
    likelihoods are unknown, and the result is the projection divided by its standard deviation over
    the candidates.
    """
    count, weight = len(candidates), view.reading.weight
    weight = weight / (weight.mean() or 1.0)
    centre = candidates.mean(axis=0)
    apart = candidates - centre
    # The mean without the candidate is farther from the candidate than the mean of all.
    apart *= count / (count - 1)
    energy = (apart * apart) @ weight
    length = np.sqrt(energy)
    held = view.reading.estimate - (centre if view.reading.scaled else 0.0)
    along = np.divide(apart @ (weight * held), length, out=np.zeros(count), where=length > 0)
    if not view.reading.scaled:
        spread = float(along.std()) or 1.0
        return np.asarray(along / spread)
    along += length / count
    expected = view.share * length
    spread = float(np.sqrt(np.mean((along - expected / 2) ** 2))) or 1.0
    found = expected * (along - expected / 2) / spread**2
    if turn_rate < 1:
        found = np.logaddexp(math.log(turn_rate) + found, math.log1p(-turn_rate))
    return np.asarray(found)


class Evidence:
    """Collects, over the rounds of a run, the evidence that known candidates took part.

    A candidate is a client whose examples the attacker knows. If it took part, it may be any of the
    run's clients. So each pair of a client and a candidate has a log-likelihood ratio for being the
    same, summed over the rounds. `clients` is the number of clients, and `candidates` the number of
    candidates.
    """

    def __init__(self, clients: int, candidates: int) -> None:
        self._found = np.zeros((clients, candidates))

    def add(self, view: View, log_odds: Float64s) -> None:
        """Add `log_odds`, one value for each candidate, to the sums of every client in `view`."""
        self._found[list(view.clients)] += log_odds

    @property
    def scores(self) -> Float64s:
        """Return each candidate's log-likelihood ratio for having taken part in the run."""
        scores: Float64s = np.logaddexp.reduce(self._found, axis=0) - math.log(len(self._found))
        return scores
