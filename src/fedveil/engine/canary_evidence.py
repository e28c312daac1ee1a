"""Evidence from the canaries' reports: scores, measured noise, and random choices.

A canary's coin decides whether it sends its update or the negative. A score guesses the coin. An
auditor knows the coins, so it can measure the noise in a report, and in the difference of two
reports. If both reports contain the same noise, it cancels in the difference.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from fedveil.base.array_types import Array, Bools, Float64s, Int8s
from fedveil.base.message import Message, prefixed, take, take_array, within
from fedveil.base.validate import integer
from fedveil.engine.canary_directions import Directions
from fedveil.privacy.choice_audit import Choice, Counted
from fedveil.privacy.noise_audit import MeasuredNoise
from fedveil.protections.base import Update
from fedveil.protections.reading import Reading

#: The most entries that are stored of the last reports, of all canaries together.
_KEPT = 1 << 20
#: Limits the score of one report, so that an impossible report does not score infinity.
_MOST_SCORE = 1e6
#: The least distance by which a client can change the difference between two rounds' releases, as
#: a multiple of its update's length. The worst case is two releases in orthogonal directions.
LEAST_STEP = 2.0**0.5
#: The ways to count truthful choices: single ones, or truthful pairs. A pair is the same choice in
#: two successive rounds, in two rounds with one between them, or in the reports of two canaries.
WAYS = (
    "told true", "told true in two rounds", "told true two rounds apart",
    "told true by two canaries",
)  # fmt: skip


class _EarlierRounds:
    """Stores each canary's report, to pair it with the canary's report `lag` rounds later.

    Every report is in at most one pair.
    """

    def __init__(self, lag: int) -> None:
        self.rounds: deque[dict[int, list[Int8s]]] = deque([{} for _ in range(lag)], lag)

    def report(self, number: int) -> list[Int8s] | None:
        return self.rounds[0].get(number)

    def close(self, now: dict[int, list[Int8s]]) -> None:
        self.rounds.append({} if self.rounds[0] else now)


class ChoiceTally:
    """Counts how often random choices report the truth, in single reports and in pairs of reports.

    A choice is one random decision of the protection, such as to flip a bit or not (`Choice`). A
    pair is the same choice in two reports: of one canary in two successive rounds, of one canary
    two rounds apart, or of two canaries in one round. The tally counts the pairs in which both
    reports state the truth. If all choices are independent, so are all pairs of one kind.
    """

    def __init__(self, choices: Sequence[Choice], canaries: int) -> None:
        self.choices = choices
        self.counts = [[Counted() for _ in WAYS] for _ in choices]
        self._earlier = (_EarlierRounds(1), _EarlierRounds(2))
        share = _KEPT // max(1, 3 * canaries * len(choices))
        self._places = [_spread(choice.count, share) for choice in choices]
        self._now: dict[int, list[Int8s]] = {}

    def read(self, number: int, truths: Sequence[Int8s]) -> None:
        """Count the protection's random choices in this round's report of canary `number`.

        `truths` has one array for each `Choice` of the tally, with an entry for each random choice
        of that kind: 1 if it reports the truth, 0 if it does not, and -1 if that is unknown.
        """
        kept = [truth[at] for truth, at in zip(truths, self._places, strict=True)]
        for counts, truth in zip(self.counts, truths, strict=True):
            counts[0].add(int((truth == 1).sum()), int((truth >= 0).sum()))
        for way, earlier in enumerate(self._earlier, start=1):
            self._pairs(way, earlier.report(number), kept)
        if number % 2:
            self._pairs(3, self._now.get(number - 1), kept)
        self._now[number] = kept

    def close(self) -> None:
        """End the round, and store its reports, to pair them with reports of later rounds."""
        for earlier in self._earlier:
            earlier.close(self._now)
        self._now = {}

    def _pairs(self, way: int, others: list[Int8s] | None, kept: list[Int8s]) -> None:
        for counts, a, b in zip(self.counts, others or [], kept, strict=False):
            counts[way].add(int(((a == 1) & (b == 1)).sum()), int(((a >= 0) & (b >= 0)).sum()))

    def state(self) -> Message:
        counts = [[n.hits, n.tries] for ways in self.counts for n in ways]
        saved = {f"last.{n}": self._rows(kept) for n, (_, kept) in enumerate(self._waiting)}
        return {"counts": np.array(counts, np.int64).reshape(-1, 2), **saved}

    def _rows(self, kept: dict[int, list[Int8s]]) -> Array:
        rows = [np.concatenate(report) for _, report in sorted(kept.items())]
        return np.stack(rows) if rows and self.choices else np.zeros((0, self._width), np.int8)

    def restore(self, state: Message, canaries: int) -> None:
        """Load and validate a checkpoint's `state`. `canaries` is the run's number of canaries."""
        shape = (len(self.choices) * len(WAYS), 2)
        counts = iter(take_array(state, "counts", np.int64, shape).tolist())
        for ways in self.counts:
            for counted in ways:
                hits, tries = next(counts)
                counted.tries = integer("tries", tries, 0)
                counted.hits = integer("hits", hits, 0, tries)
        ends = np.cumsum([len(at) for at in self._places])[:-1]
        for n, (earlier, _) in enumerate(self._waiting):
            rows = take_array(state, f"last.{n}", np.int8, (None, self._width))
            if len(rows) not in (0, canaries) or (np.abs(rows.astype(np.int64)) > 1).any():
                raise ValueError(f"field last.{n} holds no reports of the canaries")
            earlier.rounds.append({at: np.split(row, ends) for at, row in enumerate(rows)})

    @property
    def _waiting(self) -> list[tuple[_EarlierRounds, dict[int, list[Int8s]]]]:
        return [(earlier, kept) for earlier in self._earlier for kept in earlier.rounds]

    @property
    def _width(self) -> int:
        return sum(len(at) for at in self._places)


class ReportEvidence:
    """Evidence from the canaries' own reports: a score for each coin, and the measured noise.

    A canary's coin is a secret bit that decides the sign of its updates. The larger a score, the
    likelier the coin shows 1. `moved` is the length of a canary's update after clipping. `told` is
    True if any report so far has revealed something about an update. Noise is measured in

    - `noise`: single reports,
    - `lag`: differences between a canary's reports in two successive rounds,
    - `echo`: differences between a canary's report in a round and its report in the first round,
    - `pairs`: differences between two canaries' reports in one round.
    """

    def __init__(
        self,
        directions: Directions,
        included: Bools,
        moved: float,
        dimension: int,
        choices: Sequence[Choice],
    ) -> None:
        self._directions, self._signs = directions, np.where(included, 1.0, -1.0)
        self._moved, count = moved, len(included)
        self.scores, self.told = np.zeros(count), False
        self._places = _spread(dimension, _KEPT // 8 // count)
        # One entry fewer than the dimension: the direction that was sent is left out.
        self.noise, self.lag = MeasuredNoise(dimension - 1), MeasuredNoise(len(self._places) - 1)
        self.echo = MeasuredNoise(len(self._places) - 1)
        self.pairs = MeasuredNoise(max(1, len(self._places) - 2))
        self.tally = ChoiceTally(choices, count)
        self._found, self._shared = np.zeros(count), np.zeros(0)
        self._rests: dict[int, Float64s] = {}
        self._last, self._last_turn = np.zeros((0, len(self._places))), 1
        self._first = np.zeros((0, len(self._places)))

    def read(self, number: int, reading: Reading, unit: Float64s, update: Update) -> None:
        """Record the evidence in this round's report of canary `number`.

        `reading` is the attacker's estimate of the update, from the report. The canary sent
        `update` if its coin shows 1, and -`update` otherwise. `unit` is the direction of `update`,
        a vector of length 1.
        """
        if reading.empty:
            return
        self.told = True
        weighed = reading.weight * reading.estimate
        if reading.truths is not None:
            self.tally.read(number, reading.truths(self._sent(number, update)))
        if reading.truths is None and reading.scaled:
            # Project out the direction that was sent, so that a failing clip is not mistaken for
            # noise.
            rest = reading.estimate - (reading.estimate @ unit) * unit
            self.noise.add(float(rest @ rest))
            self._rests[number] = rest[self._places]
            if number % 2 and number - 1 in self._rests:
                difference = (rest[self._places] - self._rests[number - 1]) / (2 * self._moved)
                self.pairs.add(float(difference @ difference))
            self._shared = weighed + (self._shared if len(self._shared) else 0.0)
            self._found[number] = weighed @ unit
        elif reading.log_likelihood is None:
            self.scores[number] += weighed @ unit
        else:
            said = reading.log_likelihood(update) - reading.log_likelihood(-update)
            self.scores[number] += np.clip(np.nan_to_num(said), -_MOST_SCORE, _MOST_SCORE)

    def close(self, turn: int) -> None:
        """Add a round's evidence to the scores and the measured noise, after its last report.

        `turn` (1 or -1) is the factor of all canaries' updates in this round.
        """
        others = len(self.scores) - 1
        if len(self._shared) and others:
            along = turn * self._directions.along(self._shared)
            self._found -= (along - self._found) / others
        self.scores += self._found
        self._found, self._shared = np.zeros(len(self.scores)), np.zeros(0)
        self._compare(turn)
        self.tally.close()

    def _compare(self, turn: int) -> None:
        rests = [rest for _, rest in sorted(self._rests.items())]
        self._rests = {}
        if rests and not len(self._first):
            self._first = np.stack(rests)
        elif len(rests) == len(self._first) > 0:
            for rest, first in zip(rests, self._first, strict=True):
                difference = (rest - first) / (2 * self._moved * LEAST_STEP)
                self.echo.add(float(difference @ difference))
        if len(rests) == len(self._last) > 0:
            step = 2 * self._moved * abs(turn - self._last_turn)
            for rest, before in zip(rests, self._last, strict=True):
                if step:
                    difference = (rest - before) / step
                    self.lag.add(float(difference @ difference))
            rests = []
        self._last = np.stack(rests) if rests else self._last[:0]
        self._last_turn = turn

    def _sent(self, number: int, update: Update) -> Update:
        return update if self._signs[number] > 0 else -update

    def state(self) -> Message:
        return {
            "scores": self.scores.copy(),  # the next round changes them while a thread saves these
            "told": self.told,
            "rests": self._last,
            "first": self._first,
            "turn": self._last_turn,
            **self.tally.state(),
            **prefixed("noise", self.noise.state()),
            **prefixed("lag", self.lag.state()),
            **prefixed("echo", self.echo.state()),
            **prefixed("pairs", self.pairs.state()),
        }

    def restore(self, state: Message) -> None:
        count = len(self.scores)
        self.scores = finite(state, "scores", (count,))
        self.told = take(state, "told", bool)
        self._last = finite(state, "rests", (None, len(self._places)))
        self._first = finite(state, "first", (None, len(self._places)))
        if not {len(self._last), len(self._first)} <= {0, count}:
            raise ValueError("field rests or first holds no reports of the canaries")
        self._last_turn = 1 if take(state, "turn", int) > 0 else -1
        self.tally.restore(state, count)
        self.noise.restore(within("noise", state))
        self.lag.restore(within("lag", state))
        self.echo.restore(within("echo", state))
        self.pairs.restore(within("pairs", state))


def finite(state: Message, name: str, shape: tuple[int | None, ...]) -> Float64s:
    """Return a copy of the array `name` in `state`. Raises `ValueError` unless it is finite.

    `shape` is the array's required shape. A None in it allows any size.
    """
    array: Array = take_array(state, name, np.float64, shape)
    if not np.isfinite(array).all():
        raise ValueError(f"field {name} holds NaN or infinity")
    return array.copy()


def _spread(count: int, most: int) -> Array:
    kept = max(1, min(count, most))
    return np.arange(kept) * count // kept
