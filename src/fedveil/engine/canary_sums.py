"""Evidence about the canaries from each round's sum, as the protection releases it.

A protection may rotate the sum differently in every round (`Protection.domain`), and adds noise
after the rotation. If a client uses the same noise in two rounds, the noise cancels in the
difference of the two sums as released. It does not cancel if the rotations are undone first.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Bools, Float64s
from fedveil.base.message import Message, Value, prefixed, take, within
from fedveil.base.validate import integer
from fedveil.engine.canary_directions import Directions
from fedveil.engine.canary_evidence import LEAST_STEP, finite
from fedveil.privacy.noise_audit import MeasuredNoise
from fedveil.protections.base import Aggregate, Protection
from fedveil.protections.reading import Domain

#: A difference of sums is not measured if a client changes it by less than this multiple of an
#: update's length.
_LEAST_MOVE = 1e-3


class SumEvidence:
    """Evidence from the rounds' sums: two scores for each canary's coin, and the measured noise.

    A coin is a secret bit that decides the sign of a canary's updates. `included` is True for the
    coins that show 1, and `moved` is the smallest length of a canary's update after clipping. In
    some rounds, all canaries reverse their updates. The `turn` of such a round is -1, that of other
    rounds 1.

    The larger a score, the likelier the coin shows 1. Both scores add up components along the
    canary's direction, each multiplied by its round's `turn`:

    - `scores`: the components of all sums.
    - `turned`: the components of the differences between two successive sums. It stays 0 unless
      every round rotates its sum differently.

    These fields measure the noise, each in another vector:

    - `noise`: the sum without its components along the canaries' directions.
    - `spare`: the entries that a rotation adds to the sum as padding. They are 0 in every update.
    - `lag`: the difference between two successive sums as released, without the canaries' updates.
    - `calm`: the same difference, but after each sum's rotation is undone. Equal updates cancel.
    - `echo`: the difference between a sum and the first sum, otherwise like `lag`.
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
        self.echo, self._first = MeasuredNoise(domain.length), np.zeros(0)
        self.moves = domain.moves
        self._last, self._round, self._turn = np.zeros(0), 0, 1

    def see(self, aggregate: Aggregate, round: int, turn: int) -> None:
        """Add a round's sum to the evidence. Canaries multiplied their updates by `turn` (±1)."""
        released, domain = self._protection.released(aggregate), self._protection.domain(round)
        decoded = domain.decode(released)
        total, spare = decoded[: self._dimension], decoded[self._dimension :]
        along = self._directions.along(total)
        self.scores += turn * along
        self.noise.add(max(0.0, float(total @ total - along @ along)))
        if len(spare):
            self.spare.add(float(spare @ spare))
        self._compare_with_first(released, domain, turn)
        if len(self._last):
            self._compare(released, domain, turn)
            self._last = np.zeros(0)
        else:
            self._last, self._round, self._turn = released, round, turn

    def _compare_with_first(self, released: Float64s, domain: Domain, turn: int) -> None:
        sent = self._directions.combined(self._moved * self._signs)
        rest = released - turn * domain.encode(sent)
        if len(self._first):
            self._measure(self.echo, rest - self._first, LEAST_STEP)
        else:
            self._first = rest

    def _compare(self, released: Float64s, domain: Domain, turn: int) -> None:
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
        """Add the squared length of `difference`, divided by `step` * c, to the measured `noise`.

        `difference` is the difference of two rounds' sums. c is the distance by which a client
        moves one sum if it reverses its updates. It can then move `difference` by `step` * c. If
        `step` is almost 0, nothing is added.
        """
        if step > _LEAST_MOVE:
            scaled = difference / (2 * self._moved * step)
            noise.add(float(scaled @ scaled))

    def state(self) -> Message:
        own: dict[str, Value] = {"scores": self.scores, "turned": self.turned, "last": self._last}
        own["first"] = self._first
        for name in _NOISES:
            own |= prefixed(name, getattr(self, name).state())
        return {**own, "round": self._round, "turn": self._turn}

    def restore(self, state: Message) -> None:
        shape = (len(self.scores),)
        self.scores, self.turned = finite(state, "scores", shape), finite(state, "turned", shape)
        self._last = finite(state, "last", (None,))
        self._first = finite(state, "first", (None,))
        if not {len(self._last), len(self._first)} <= {0, self.lag.entries}:
            raise ValueError("field last or first holds no sum of a round")
        self._round = integer("round", take(state, "round", int), 0)
        self._turn = 1 if take(state, "turn", int) > 0 else -1
        for name in _NOISES:
            getattr(self, name).restore(within(name, state))


_NOISES = ("noise", "spare", "lag", "echo", "calm")
