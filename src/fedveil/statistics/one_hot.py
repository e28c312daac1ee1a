"""rr and oue for frequencies: a perturbed one-hot code from every client, and exact estimates."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np

from fedveil.base.array_types import Float64s, Int64s, Uint8s
from fedveil.base.message import Message, encoded_bytes, only_fields, take_array
from fedveil.base.validate import integer, within
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue, MessageInvalid
from fedveil.mechanisms.exact.biased_bits import double_above_q
from fedveil.mechanisms.exact.binomial import Binomial
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    JobContext,
    Protection,
    RoundContext,
    Spending,
    State,
    Update,
)
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.rounds.outcomes import ClientId

_MAX_EPS = 700.0


class OneHot:
    """Perturbs a one-hot code of `cells` bits, or the zero code of a client that has no cell.

    Output: independent bits. A 1 stays 1 with probability p, and a 0 becomes 1 with probability q:

        rr:  p = 1 - q,  q = 1 / (e^(eps / 2) + 1)
        oue: p = 1/2,    q = 1 / (e^eps + 1)
        a single bit, both: p = 1 - q,  q = 1 / (e^eps + 1)  (Warner's randomized response)

    q is rounded up to a double. With these numbers the distribution is exact.

    Privacy: eps for the whole code, pure, replace-one. Two codes differ in two bits or, if one is
    zero, in one. A pair of bits has the likelihood ratio p (1 - q) / (q (1 - p)), which is e^eps
    for both kinds. A single bit has at most max(p / q, (1 - q) / (1 - p)), which is smaller in a
    longer code, and e^eps in a code of one bit.

    Estimate of the share f of clients in a cell, from n reports: (frequency - q) / (p - q). It is
    unbiased, and its variance for fixed data is

        [f p (1 - p) + (1 - f) q (1 - q)] / (n (p - q)²).
    """

    def __init__(self, kind: Literal["rr", "oue"], eps: float, cells: int) -> None:
        self.kind, self.cells = kind, integer("cells", cells, 1)
        self.eps = within("eps", eps, 0, _MAX_EPS, open_low=True)
        q = double_above_q(eps / 2 if kind == "rr" and cells > 1 else eps)
        if q >= 0.5:
            raise InvalidValue(f"epsilon = {eps!r} is too small for {kind}: q would be 1/2")
        self.p, self.q = (1 - q if kind == "rr" or cells == 1 else 0.5), q
        self.loss = PrivacyLoss(self.eps)

    def perturb(self, code: Uint8s, entropy: Entropy) -> Uint8s:
        """Return the perturbed bits of a code of zeros and at most a single one."""
        bits = entropy.bernoulli(self.q, self.cells)
        if len(own := np.flatnonzero(code)):
            bits[own] = entropy.bernoulli(self.p, len(own))
        return bits.astype(np.uint8)

    def ones(self, counts: Int64s, clients: int, entropy: Entropy) -> Int64s:
        """Draw, for each cell, the number of `clients` reports in which its bit is 1.

        `counts` are the clients in each cell. The number is Binomial(count, p) + Binomial(clients -
        count, q), independently for each cell: the distribution of the sum of single reports, whose
        bits are independent. For simulations only.
        """
        counts = counts.astype(np.int64)
        truths = Binomial(Fraction(self.p)).draw_each(counts, entropy)
        return truths + Binomial(Fraction(self.q)).draw_each(clients - counts, entropy)

    def shares(self, ones: Int64s, reports: int) -> Float64s:
        """Return the estimated share of clients in each cell."""
        estimated: Float64s = (ones / reports - self.q) / (self.p - self.q)
        return estimated

    def variance(self, share: Float64s, reports: int) -> Float64s:
        """Return the variance of the estimated share of cells that have the true share `share`."""
        f = np.clip(share, 0, 1)
        spread: Float64s = f * self.p * (1 - self.p) + (1 - f) * self.q * (1 - self.q)
        return spread / (reports * (self.p - self.q) ** 2)

    @property
    def influence(self) -> float:
        """The most by which one forged report can move a cell's estimated count.

        Every bit of a forged report may be chosen. It moves the count by at most 1 / (p - q).
        """
        return 1 / (self.p - self.q)


class Frequencies(Protection):
    """Every client sends the perturbed one-hot code of its cell. The aggregate: every cell's share.

    The update is the code itself, as numbers 0 and 1. Privacy: that of `OneHot`.
    """

    phases = ("report",)
    perturbs: ClassVar[bool] = True
    block = None

    def __init__(self, kind: Literal["rr", "oue"], eps: float, context: JobContext) -> None:
        super().__init__(None, context)
        self.name = kind  # type: ignore[misc]  # both kinds share this class
        self.law = OneHot(kind, eps, context.dimension)

    def spending(self, state: State) -> Sequence[Spending]:
        return [Spending(self.law.loss)]

    def server_round(self, context: RoundContext) -> FrequencyRound:
        return FrequencyRound(context, self.law)

    def client_round(self, context: ClientContext) -> FrequencyClient:
        return FrequencyClient(context, self.law)


class FrequencyRound(OneReportRound):
    """Counts the reports in which each bit is 1."""

    sums = ("_ones",)

    def __init__(self, context: RoundContext, law: OneHot) -> None:
        super().__init__(context)
        self._law = law
        self._size = -(-law.cells // 8)
        self._ones = np.zeros(law.cells, np.int64)

    @property
    def longest(self) -> int:
        blank = np.empty(self._size, np.uint8)
        return encoded_bytes({"round": self._context.round, "bits": blank})

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "round", "bits")
        packed = take_array(message, "bits", "uint8", (self._size,))
        bits = np.unpackbits(packed, bitorder="little")
        if bits[self._law.cells :].any():
            raise MessageInvalid("field bits has bits after its last cell")
        self._ones += bits[: self._law.cells]

    def _merge_sums(self, other: FrequencyRound) -> None:
        self._ones += other._ones

    def _aggregate(self) -> Aggregate:
        return Aggregate(self._law.shares(self._ones, self.reports), self.reports)


class FrequencyClient(OneReportClient):
    def __init__(self, context: ClientContext, law: OneHot) -> None:
        super().__init__(context)
        self._law = law

    def _report(self, opening: Message, update: Update) -> Message:
        code = np.zeros(len(update), np.uint8)
        if update.any():  # a code has a single one, whatever the update holds
            code[int(update.argmax())] = 1
        bits = np.packbits(self._law.perturb(code, self._context.entropy), bitorder="little")
        return {"round": self._context.round, "bits": bits}
