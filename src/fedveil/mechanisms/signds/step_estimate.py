"""MagRR: estimates the size of the clients' updates from one perturbed bit of each client."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedveil.base.validate import choice, integer, positive, within
from fedveil.errors import InvalidValue
from fedveil.mechanisms.randomized_response import BinaryRandomizedResponse

#: The range of the estimate.
LEAST, MOST = 2.0**-126, 2.0**127
_PHASES = ("growth", "shrink")
#: The bits are ignored if fewer than 1 / _MIN_SHARE of the participants send one.
_MIN_SHARE = 20
#: With `regrow`, growth starts again after this many rounds in a row with mostly large updates.
_REGROW_ROUNDS = 5


class MagnitudeEstimator:
    """The server's estimate of the size of the clients' updates, from one bit of each client.

    A client's bit is 1 if its update is small (see `bit`), and is protected by randomised response.
    After a round, the server estimates from the bits if most updates are small:

        phase     most are small                 otherwise
        growth    the phase becomes `shrink`     the estimate is multiplied by `growth`
        shrink    the estimate is halved         nothing changes

    With `regrow`, the phase `growth` starts again after five rounds in a row without a change in
    the phase `shrink`. The attribute `zeros` counts these rounds. The state consists of `estimate`,
    `phase` and `zeros`. The estimate is limited to the range of normal float32 numbers.

    Source: MindSpore Federated's document on SignDS, "MagRR".

        >>> from fedveil.mechanisms import MagnitudeEstimator
        >>> server = MagnitudeEstimator(initial=0.25, growth=3.0)
        >>> server.update_counts(ones=2, reporters=9, eps=4.0)  # most are larger
        >>> server.estimate, server.phase
        (0.75, 'growth')
    """

    def __init__(
        self,
        initial: float = math.exp(-5),
        growth: float = 2.0,
        *,
        regrow: bool = False,
        phase: str = "growth",
        zeros: int = 0,
    ) -> None:
        self.estimate = within("initial", initial, LEAST, MOST)
        self.growth = positive("growth", growth)
        if self.growth <= 1:
            raise InvalidValue(f"growth = {growth!r} is outside (1, inf)")
        self.regrow = regrow
        self.phase = choice("phase", phase, _PHASES)
        self.zeros = integer("zeros", zeros, 0)

    def bit(self, magnitude: float) -> int:
        """Return a client's bit before it is perturbed: 1 if `magnitude` is below a bound, else 0.

        `magnitude` is the size of the client's update. The bound is the estimate or, in the phase
        `growth`, twice the estimate.
        """
        if not magnitude >= 0:
            raise InvalidValue(f"magnitude = {magnitude!r} is outside [0, inf]")
        return int(magnitude < (2 if self.phase == "growth" else 1) * self.estimate)

    def update(self, reported_bits: npt.ArrayLike, eps: float) -> None:
        """Update `estimate` and `phase` from the clients' bits in one round.

        Randomised response with the epsilon `eps` has perturbed the bits.
        """
        bits = np.asarray(reported_bits)
        if not np.isin(bits, (0, 1)).all():
            raise InvalidValue("reported_bits holds other values than 0 and 1")
        self.update_counts(int(np.count_nonzero(bits)), bits.size, eps)

    def update_counts(self, ones: int, reporters: int, eps: float) -> None:
        """Update `estimate` and `phase` from one round, in which `reporters` clients sent a bit.

        `ones` of these bits are 1, after randomised response with the epsilon `eps`. If `reporters`
        is 0, nothing changes.
        """
        if integer("reporters", reporters, 0) == 0:
            return
        truly_one = BinaryRandomizedResponse(eps).estimate_ones(ones, reporters)
        majority = truly_one > reporters / 2
        if self.phase == "growth":
            if majority:
                self.phase = "shrink"
            else:
                self.estimate = min(self.estimate * self.growth, MOST)
        elif majority:
            self.zeros = 0
            self.estimate = max(self.estimate / 2, LEAST)
        else:
            self.zeros += 1
            if self.regrow and self.zeros == _REGROW_ROUNDS:
                self.zeros = 0
                self.phase = "growth"

    @staticmethod
    def enough(reporters: int, participants: int) -> bool:
        """Return True if `reporters` (clients that sent a bit) are 5% of `participants` or more."""
        return _MIN_SHARE * reporters >= participants

    def global_step(self, sign_global_lr: float, reporters: int, participants: int) -> float:
        """Return the server's step size for a round, 2 * estimate * participants.

        `participants` is the number of clients in the round, and `reporters` the number of those
        that sent a bit. If these are fewer than 5%, the configured step size `sign_global_lr` is
        returned instead.
        """
        if not self.enough(reporters, integer("participants", participants, 1)):
            return positive("sign_global_lr", sign_global_lr)
        return 2 * self.estimate * participants
