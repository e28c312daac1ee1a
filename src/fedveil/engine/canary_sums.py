"""Evidence in the sums of rounds, in the domain in which a protection releases them.

A protection may release a sum that is rotated anew in every round (`Protection.domain`). Its noise
is added there, so that noise which comes a second time cancels there and nowhere else.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.arrays import Bools, Float64s
from fedveil.base.message import Message, Value, take
from fedveil.base.validate import integer
from fedveil.engine.canary_directions import Directions
from fedveil.engine.canary_reports import finite, prefixed, within
from fedveil.privacy.noise_audit import MeasuredNoise
from fedveil.protections.base import Aggregate, Protection
from fedveil.protections.reading import Domain

#: The smallest part of its own length by which a client must move a difference that is measured.
_LEAST_MOVE = 1e-3


class SumEvidence:
    """Scores of canaries by aggregates, larger where a coin is likelier 1, and the noise in them.

    `scores`: how far the sums lie on the side of each canary's direction. `turned`: the same of the
    differences between rounds, where their domain moves. `noise`: beside what canaries sent.
    `spare`: in entries that no update reaches. `lag`: in differences of two rounds as they were
    released. `calm`: in differences of decoded rounds, in which slow learning cancels, too.
    """

    def __init__(
        self, directions: Directions, included: Bools, moved: float, protection: Protection
    ) -> None:
        self._directions, self._protection, self._moved = directions, protection, moved
        self._signs = np.where(included, 1.0, -1.0)
        self._dimension, domain = protection.dimension, protection.domain(1)
        self.scores, self.turned = np.zeros(len(included)), np.zeros(len(included))
        self.noise = MeasuredNoise(self._dimension - len(included))
        self.spare = MeasuredNoise(domain.length - self._dimension)
        self.lag, self.calm = MeasuredNoise(domain.length), MeasuredNoise(self._dimension)
        self.moves = domain.moves
        self._last, self._round, self._turn = np.zeros(0), 0, 1

    def see(self, aggregate: Aggregate, round: int, turn: int) -> None:
        """Take a round's outcome; `turn` is how the canaries' directions are turned in it."""
        released, domain = self._protection.released(aggregate), self._protection.domain(round)
        decoded = domain.decode(released)
        total, spare = decoded[: self._dimension], decoded[self._dimension :]
        along = self._directions.along(total)
        self.scores += turn * along
        self.noise.add(max(0.0, float(total @ total - along @ along)))
        if len(spare):
            self.spare.add(float(spare @ spare))
        if len(self._last):
            self._compare(released, domain, turn)
            self._last = np.zeros(0)
        else:
            self._last, self._round, self._turn = released, round, turn

    def _compare(self, released: Float64s, domain: Domain, turn: int) -> None:
        """Measure the difference of this round and the one before, as they were released."""
        before, d = self._protection.domain(self._round), self._dimension
        if domain.moves:
            difference = released - self._last
            now, then = domain.decode(difference)[:d], before.decode(difference)[:d]
            self.turned += turn * self._directions.along(now)
            self.turned -= self._turn * self._directions.along(then)
        sent = self._directions.combined(self._moved * self._signs)
        rest = released - turn * domain.encode(sent)
        last = self._last - self._turn * before.encode(sent)
        one = self._directions.vector(0)
        step = turn * domain.encode(one) - self._turn * before.encode(one)
        self._measure(self.lag, rest - last, float(np.sqrt(step @ step)))
        if domain.moves:
            calm = domain.decode(rest)[:d] - before.decode(last)[:d]
            self._measure(self.calm, calm, abs(turn - self._turn))

    def _measure(self, noise: MeasuredNoise, difference: Float64s, step: float) -> None:
        """Add a difference in units of how far one client moves it."""
        if step > _LEAST_MOVE:
            scaled = difference / (2 * self._moved * step)
            noise.add(float(scaled @ scaled))

    def state(self) -> Message:
        """For a checkpoint."""
        own: dict[str, Value] = {"scores": self.scores, "turned": self.turned, "last": self._last}
        for name in _NOISES:
            own |= prefixed(name, getattr(self, name).state())
        return {**own, "round": self._round, "turn": self._turn}

    def restore(self, state: Message) -> None:
        """Go on from `state`, which anything may be."""
        shape = (len(self.scores),)
        self.scores, self.turned = finite(state, "scores", shape), finite(state, "turned", shape)
        self._last = finite(state, "last", (None,))
        if len(self._last) not in (0, self.lag.entries):
            raise ValueError("field last holds no sum of a round")
        self._round = integer("round", take(state, "round", int), 0)
        self._turn = 1 if take(state, "turn", int) > 0 else -1
        for name in _NOISES:
            getattr(self, name).restore(within(name, state))


_NOISES = ("noise", "spare", "lag", "calm")
