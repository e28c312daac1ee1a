"""Binary randomised response: one bit, sent truthfully or flipped."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array
from fedveil.base.lazy import special
from fedveil.base.validate import integer, number, within
from fedveil.entropy import Entropy, source
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.real_probabilities import MAX_EXPONENT, ExactDraw
from fedveil.privacy.loss import PrivacyLoss


class BinaryRandomizedResponse:
    """Reports a bit truthfully with probability P = e^eps / (1 + e^eps), and flipped otherwise.

    Output: each bit b independently becomes b' with Pr[b' = b] = P. Draws are exact for the real
    number P, which no float equals.

    Privacy: eps per bit at delta = 0, if the bit is replaced. The likelihoods of an output under
    the two bits differ by exactly the factor e^eps.

    Source: the probability P in MindSpore Federated's document on SignDS, "local differential
    privacy: random response".

        >>> import numpy as np
        >>> from fedveil.entropy import Seeded
        >>> from fedveil.mechanisms import BinaryRandomizedResponse
        >>> response = BinaryRandomizedResponse(eps=2.0)
        >>> reported = response.perturb(np.ones(5000, bool), Seeded(0))
        >>> round(response.keep_probability, 3)
        0.881
        >>> bool(abs(reported.mean() - 0.881) < 0.02)
        True
    """

    def __init__(self, eps: float) -> None:
        self.eps = within("eps", eps, 0, MAX_EXPONENT, open_low=True)
        self.loss = PrivacyLoss(self.eps, per="bit")
        self._lie = ExactDraw(self.eps, _lie_floors)

    @property
    def keep_probability(self) -> float:
        """Return the probability P that a bit is reported truthfully, rounded to a float."""
        return float(special().expit(self.eps))

    def perturb(self, bits: npt.ArrayLike, entropy: Entropy) -> Array:
        """Return `bits` (booleans, or 0 and 1), each kept or flipped at random."""
        truth = np.asarray(bits)
        if truth.dtype.kind not in "biu" or not ((truth == 0) | (truth == 1)).all():
            raise InvalidValue("bits holds other values than truth values, or integers 0 and 1")
        lies = self._lie.draw(truth.size, source(entropy)).reshape(truth.shape) == 0
        return np.asarray(truth ^ lies.astype(truth.dtype))

    def log_probability(self, told: bool, truth: bool) -> float:
        """Return ln Pr[the bit `told` is reported | the true bit is `truth`]."""
        lie = 0.0 if told == truth else self.eps
        return -lie - math.log1p(math.exp(-self.eps))

    def estimate_ones(self, count: float, n: int) -> float:
        """Return an unbiased estimate of the number of true bits that are 1.

        n bits were reported, and `count` of them as 1.
        """
        # The formula is centred at n/2, where count and estimate are equal. So rounding never moves
        # an estimate to the other side of n/2.
        count, n = number("count", count), integer("n", n, 0)
        # 2P - 1 = tanh(eps/2), which stays accurate when P rounds to 1/2.
        return n / 2 + (count - n / 2) / math.tanh(self.eps / 2)


def _lie_floors(e: Fraction, bits: int) -> list[int]:
    return [(e.denominator << bits) // (e.denominator + e.numerator)]
