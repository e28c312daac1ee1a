"""Evidence in a round's messages that a client with known examples took part."""

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
    """A report, or the mean of a cohort's reports, as the server reads it.

    It may contain the updates of `clients`, each multiplied by `share`.
    """

    reading: Reading
    clients: Sequence[int]
    share: float


def views(seen: Seen, cohort: Sequence[int], turn_rate: float = 1.0) -> list[View]:
    """Return what the server sees of a round: each report, or their mean if reports reveal nothing.

    `turn_rate` is the probability with which each client of the cohort secretly adds its update.
    """
    if seen.masked:
        return [View(seen.mean, cohort, 1 / (len(cohort) * turn_rate))]
    pairs = zip(seen.readings, cohort, strict=True)
    return [View(reading, [client], 1.0) for reading, client in pairs]


def log_odds(view: View, candidates: Float64s, turn_rate: float = 1.0) -> Float64s:
    """Return for each candidate the log-likelihood ratio of "its update is in the view".

    `candidates[i]` is the update that candidate i would have sent. Each candidate is tested
    separately. The mean of the other candidates estimates the view without it. The view's component
    along the candidate's difference from that mean is assumed normal. Its mean is 0 without the
    candidate, and the `share` of that difference with it. Its spread, which comes from the noise
    and the other clients, is estimated over all candidates. If the reading has no scale, the result
    is the number of spreads above 0.
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
    """Sums over rounds the evidence that each candidate is one of a run's clients."""

    def __init__(self, clients: int, candidates: int) -> None:
        self._found = np.zeros((clients, candidates))

    def add(self, view: View, log_odds: Float64s) -> None:
        """Add a view's `log_odds` to the evidence of all clients whose update it may contain."""
        self._found[list(view.clients)] += log_odds

    @property
    def scores(self) -> Float64s:
        """Return for each candidate the log-likelihood ratio of "it is one of the clients".

        A candidate is equally likely to be any client, so the likelihood ratio is the mean over
        clients.
        """
        scores: Float64s = np.logaddexp.reduce(self._found, axis=0) - math.log(len(self._found))
        return scores
