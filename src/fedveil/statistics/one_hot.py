"""The mechanisms rr and oue for frequencies: perturbed one-hot codes, and unbiased estimates."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar, Literal

import numpy as np

from fedveil.base.array_types import Float64s, Int64s, Uint8s
from fedveil.base.message import Message, encoded_bytes, only_fields, take_array
from fedveil.base.packing import pack, packed_size, unpack
from fedveil.base.validate import integer, within
from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld, InvalidValue, MessageInvalid
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
    """Perturbs a one-hot code, which has one bit for each of `cells` cells (counted categories).

    The bit of an input's own cell is 1, and all others are 0. Without a cell, the code is zero.

    Output: independent bits. A 1 stays 1 with probability p, and a 0 becomes 1 with probability q:

        rr:  p = 1 - q,  q = 1 / (e^(eps / 2) + 1)
        oue: p = 1/2,    q = 1 / (e^eps + 1)
        a single bit, both: p = 1 - q,  q = 1 / (e^eps + 1)  (Warner's randomized response)

    q is rounded up to a double. The distribution is exact for the rounded q.

    Privacy: pure epsilon eps for the whole code, under replace-one. Two different codes differ in
    two bits, or in one bit if one of them is zero. A pair of bits has the likelihood ratio p (1 -
    q) / (q (1 - p)), which is e^eps for both kinds. A single bit has at most the ratio max(p / q,
    (1 - q) / (1 - p)). This is e^eps in a code of one bit, and smaller in longer codes.

    The share f of clients in a cell is estimated from n reports as (frequency - q) / (p - q). The
    estimate is unbiased. Its variance for fixed data is

        [f p (1 - p) + (1 - f) q (1 - q)] / (n (p - q)²).
    """

    def __init__(self, kind: Literal["rr", "oue"], eps: float, cells: int) -> None:
        self.kind, self.cells = kind, integer("cells", cells, 1)
        self.eps = within("eps", eps, 0, _MAX_EPS, open_low=True)
        q = double_above_q(eps, bits=2 if kind == "rr" and cells > 1 else 1)
        if q >= 0.5:
            raise InvalidValue(f"epsilon = {eps!r} is too small for {kind}: q would be 1/2")
        #: The probability 1 - p that a 1 is sent as 0. A double represents a small probability
        #: exactly, but not its complement. So p is only used to estimate.
        self.lost = q if kind == "rr" or cells == 1 else 0.5
        self.p, self.q = 1 - self.lost, q
        self.loss = PrivacyLoss(self.eps)

    def perturb(self, code: Uint8s, entropy: Entropy) -> Uint8s:
        """Return the perturbed bits of `code`, which has at most one 1."""
        bits = entropy.bernoulli(self.q, self.cells)
        if len(own := np.flatnonzero(code)):
            bits[own] = ~entropy.bernoulli(self.lost, len(own))
        return bits.astype(np.uint8)

    def ones(self, counts: Int64s, codes: int, entropy: Entropy) -> Int64s:
        """Draw, for each cell i, the number of perturbed codes whose bit i is 1.

        Before perturbation, bit i is 1 in `counts[i]` of `codes` codes. A 1 stays 1 with
        probability p, and a 0 becomes 1 with probability q. The numbers are independent, and each
        has its exact distribution Binomial(counts[i], p) + Binomial(codes - counts[i], q).
        """
        counts = counts.astype(np.int64)
        truths = counts - Binomial(Fraction(self.lost)).draw_each(counts, entropy)
        return truths + Binomial(Fraction(self.q)).draw_each(codes - counts, entropy)

    def shares(self, ones: Int64s, codes: int) -> Float64s:
        """Estimate, for each cell i, the share of codes whose bit i was 1 before perturbation.

        `ones[i]` is the number of perturbed codes whose bit i is 1, out of `codes` codes.
        """
        estimated: Float64s = (ones / codes - self.q) / (self.p - self.q)
        return estimated

    def variance(self, share: Float64s, codes: int) -> Float64s:
        """Return the variance of the share that `shares` estimates from `codes` codes.

        `share` is the true share of codes whose bit was 1.
        """
        f = np.clip(share, 0, 1)
        spread: Float64s = f * self.p * self.lost + (1 - f) * self.q * (1 - self.q)
        return spread / (codes * (self.p - self.q) ** 2)

    @property
    def influence(self) -> float:
        """The largest amount by which one forged code can change a cell's estimated count."""
        return 1 / (self.p - self.q)


class Frequencies(Protection):
    """Estimates the share of rows in each cell, from one-hot codes with a bit for each cell.

    Each row of a client gives one code. The client's update is the sum of its codes, and its report
    is the sum of `rows` perturbed codes. If the client has fewer than `rows` rows, zero codes are
    added, so the report does not reveal the number of rows. Privacy: each code has the loss of
    `OneHot`.
    """

    phases = ("report",)
    perturbs: ClassVar[bool] = True
    block = None

    def __init__(
        self, kind: Literal["rr", "oue"], eps: float, context: JobContext, rows: int = 1
    ) -> None:
        super().__init__(None, context)
        self.name = kind  # type: ignore[misc]  # both kinds share this class
        self.rows = rows
        self.law = OneHot(kind, eps, context.dimension)

    def spending(self, state: State) -> Sequence[Spending]:
        return [Spending(self.law.loss)]

    def server_round(self, context: RoundContext) -> FrequencyRound:
        return FrequencyRound(context, self)

    def client_round(self, context: ClientContext) -> FrequencyClient:
        return FrequencyClient(context, self)


class FrequencyRound(OneReportRound):
    """The server's side of a round. Adds up each cell's bits in all perturbed codes."""

    sums = ("_ones",)

    def __init__(self, context: RoundContext, protection: Frequencies) -> None:
        super().__init__(context)
        self._law, self._rows = protection.law, protection.rows
        self._width = self._rows.bit_length()
        self._ones = np.zeros(self._law.cells, np.int64)

    @property
    def longest(self) -> int:
        blank = np.empty(packed_size(self._law.cells, self._width), np.uint8)
        return encoded_bytes({"round": self._context.round, "bits": blank})

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "round", "bits")
        cells = self._law.cells
        packed = take_array(message, "bits", "uint8", (packed_size(cells, self._width),))
        ones = np.empty(cells, np.int32)
        if not unpack(packed, 0, self._rows, self._width, ones):
            raise MessageInvalid(f"field bits is no sum of {self._rows} codes of {cells} bits")
        self._ones += ones

    def _merge_sums(self, other: FrequencyRound) -> None:
        self._ones += other._ones

    def _aggregate(self) -> Aggregate:
        return Aggregate(self._law.shares(self._ones, self.reports * self._rows), self.reports)


class FrequencyClient(OneReportClient):
    def __init__(self, context: ClientContext, protection: Frequencies) -> None:
        super().__init__(context)
        self._law, self._rows = protection.law, protection.rows

    def _report(self, opening: Message, update: Update) -> Message:
        counts = update.astype(np.int64)
        if counts.min() < 0 or counts.sum() > self._rows:
            raise ClientWithheld(f"the update is no sum of {self._rows} codes")
        entropy = self._context.entropy
        if self._rows == 1:
            ones = self._law.perturb(counts.astype(np.uint8), entropy).astype(np.int64)
        else:
            ones = self._law.ones(counts, self._rows, entropy)
        return {"round": self._context.round, "bits": pack(ones, 0, self._rows.bit_length())}
