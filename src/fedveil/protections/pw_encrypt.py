"""pw_encrypt: secure aggregation with pairwise masks. Clients may drop out.

The server learns the weighted mean of the survivors' updates, and nothing else about them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedveil.base.array_types import Signed, parts
from fedveil.base.message import Message
from fedveil.base.validate import finite_vector
from fedveil.errors import ClientWithheld, FedveilWarning, InvalidValue
from fedveil.mechanisms.central_noise import CentralNoise
from fedveil.privacy.audit import Case
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.advice import Cohort, Stronger
from fedveil.protections.base import ClientContext, JobContext, Spending, State, Update
from fedveil.protections.directions import Direction
from fedveil.protections.mindspore_names import Dialect
from fedveil.protections.secure_sum import ImpossibleSum, SecureSum
from fedveil.protections.secure_sum_settings import (
    SecureSumSettings,
    graph_fits,
    most_must_sign,
    shareable,
    threshold_reachable,
    threshold_safe,
)
from fedveil.secagg.fixed_point import FixedPoint
from fedveil.secagg.masked_vector import MadeInParts, Vector
from fedveil.secagg.masking import Ring

_DELTA, _NORM_CLIP = 1e-5, 1.0


class PWEncryptSettings(SecureSumSettings):
    """Parameters of `pw_encrypt`: the clip, the fixed-point numbers, and the server's noise."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "clip": "none",
        "entry_bits": "none",
        "max_examples": "none",
        "central_eps": "loss",
        "central_delta": "loss",
        "central_norm_clip": "none",
    }

    clip: float = Field(
        8.0,
        gt=0,
        description="largest magnitude of an update's entry. Larger entries are clipped to it",
    )
    entry_bits: int = Field(
        20, ge=2, le=24, description="bits per entry as a fixed-point number, including the sign"
    )
    max_examples: int = Field(
        65_535,
        ge=1,
        le=1 << 20,
        description="largest weight of a client under `server.weighting: by_size`. A client "
        "with more examples sends no report",
    )
    central_eps: float | None = Field(
        None,
        gt=0,
        description="epsilon of a round's mean, by noise that the server adds to the sum. It holds "
        "against everyone except the server. null: no noise",
    )
    central_delta: float = Field(_DELTA, gt=0, lt=1, description="the delta of central_eps")
    central_norm_clip: float = Field(
        _NORM_CLIP,
        gt=0,
        description="under central_eps, each client clips its update to this L2 norm",
    )

    def central_noise(
        self, step: float, dimension: int, apart: float | None
    ) -> CentralNoise | None:
        """Return the noise that the server adds to sums in multiples of `step`.

        The sums have `dimension` entries. `apart` is an upper bound on the L2 distance of any two
        updates. Returns None if `central_eps` is not set.
        """
        if self.central_eps is None:
            return None
        delta, clip = self.central_delta, self.central_norm_clip
        return CentralNoise(self.central_eps, delta, clip, step, dimension, apart)


def central_fits(settings: PWEncryptSettings, cohort: Cohort) -> str | None:
    """Under pw_encrypt, `central_delta` and `central_norm_clip` need `central_eps`, and
    `central_norm_clip` is at most `clip`, the bound of every entry.

    Returns an error message, or None if the settings follow this rule.
    """
    clip = settings.central_norm_clip
    if settings.central_eps is None:
        for name, default in (("central_delta", _DELTA), ("central_norm_clip", _NORM_CLIP)):
            if getattr(settings, name) != default:
                return f"{name} = {getattr(settings, name)!r} needs central_eps"
    elif clip > settings.clip:
        return (
            f"central_norm_clip = {clip!r} is above clip = {settings.clip!r}, the bound of every "
            "entry"
        )
    return None


def central_trusts(settings: PWEncryptSettings, cohort: Cohort) -> str | None:
    if settings.central_eps is None:
        return None
    return (
        f"central_eps = {settings.central_eps!r}: the server sees the sum and adds the noise "
        "itself, so epsilon holds against everyone except the server"
    )


class PWEncrypt(SecureSum):
    """Secure aggregation. The aggregate is the exact weighted mean of the rounded updates.

    A client's vector is its weight (its number of examples, or 1) times its update in whole
    numbers, followed by the weight. The survivors' vectors are summed modulo 2^bits. bits is large
    enough for a whole cohort with the largest weights.

    Privacy: the sum is not differentially private (epsilon is infinite), and nothing but the sum is
    revealed. If `central_eps` is set, clients clip their updates to a norm and have equal weights,
    and the server adds noise to the sum before anyone reads it. This guarantees (central_eps,
    central_delta) for a client's whole update in one round, replace-one, against everyone who sees
    only the mean and what is computed from it. It holds if the server follows the protocol and
    every client clips. Sampling of clients does not amplify it.
    """

    name = block = "pw_encrypt"
    takes_variates = True
    settings_type = PWEncryptSettings
    settings: PWEncryptSettings
    gaussian_noise = "sum"
    cost_parameter = noise_key = "central_eps"
    hides = "Masks hide single updates from {}; the sum has no noise."
    stronger = Stronger(
        "distributed_dp",
        "add noise to the sum",
        "with noise split among the clients; a sum without noise guarantees nothing",
    )
    rules = (shareable, threshold_reachable, most_must_sign, graph_fits, central_fits)
    advice = (threshold_safe, central_trusts)
    dialect = Dialect(
        aliases={"share_client_ratio": "share_secrets_ratio"},
        one_server="one server holds the sum of masks",
        uploads_as_they_are=True,
        refused={
            "STABLE_PW_ENCRYPT": "keeps one set of pairwise keys for all rounds and is not "
            "supported"
        },
    )

    def __init__(self, settings: PWEncryptSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        self.fixed = FixedPoint(settings.clip, settings.entry_bits)
        self.largest_weight = settings.max_examples if context.weighting == "by_size" else 1
        largest = self.fixed.largest * self.largest_weight
        central = self.central = settings.central_noise(
            self.fixed.step, context.dimension, context.apart
        )
        if self.central is not None and context.weighting != "equal":
            raise InvalidValue("central_eps needs server.weighting = equal")
        beyond, self.norm_clip = (0, math.inf) if central is None else (central.reach, central.clip)
        self.length = context.dimension + 1
        self.ring = Ring.for_sum(context.clients_per_round, largest, beyond)

    @classmethod
    def rests_on_server(cls, settings: PWEncryptSettings) -> bool:
        return settings.central_eps is not None

    def spending(self, state: State) -> Sequence[Spending]:
        bare = PrivacyLoss(math.inf, per="update")
        return [Spending(bare if self.central is None else self.central.loss)]

    @staticmethod
    def audit_cases(eps: float) -> Iterator[Case]:
        central = CentralNoise(eps, 1e-3, clip=1.0, step=2.0**-16, dimension=2)
        update = np.array([4.0, 0.0])
        yield Case("central noise, an update", central.noised, update, -update, central.loss)

    def carried(self, update: Update, told: Message) -> Update:
        if self.central is not None:
            clipped = self.central.clipped(update) * self.central.step
            return clipped.astype(np.float32)
        return np.clip(update, -self.fixed.clip, self.fixed.clip)

    def vector(self, update: Update, context: ClientContext, told: Message) -> Vector:
        if self.central is not None:
            return np.append(self.central.clipped(update), 1)
        weight = context.examples if self.context.weighting == "by_size" else 1
        if weight > self.largest_weight:
            raise ClientWithheld(
                f"the client has more than protection.pw_encrypt.max_examples = "
                f"{self.largest_weight} examples"
            )
        update = finite_vector("update", update)
        if self.fixed.clips(update):
            warnings.warn(
                f"some entries exceed protection.pw_encrypt.clip = {self.fixed.clip:g} and are "
                "clipped to it",
                FedveilWarning,
                stacklevel=2,
            )

        def numbers(some: slice) -> Iterator[Signed]:
            entropy = context.entropy.stream("rounding", some.start)
            for part in parts(some.stop, some.start):
                made, entries = np.ones(part.stop - part.start, np.int64), update[part]
                self.fixed.quantise(entries, entropy, made[: len(entries)])
                made *= weight  # at the end of the vector, this is the weight itself
                yield made

        return MadeInParts(self.length, numbers)

    def mean(
        self, total: npt.NDArray[np.int64], survivors: int, round: int
    ) -> npt.NDArray[np.float64]:
        """Return the weighted mean of the updates, in [-clip, clip].

        `total` is the sum of the survivors' vectors: the weighted sum of their updates, followed by
        the sum of their weights. With `central_eps`, noise is added first. Raises `ImpossibleSum`
        if the sum of the weights or another entry is out of range.
        """
        weight = int(total[-1])
        if not survivors <= weight <= survivors * self.largest_weight:
            raise ImpossibleSum(f"the weights of {survivors} clients cannot have the sum {weight}")
        numbers, most = total[:-1], self.fixed.largest * weight
        if self.central is not None:
            numbers = np.clip(self._noised(numbers, self.central, round), -most, most)
        elif max(int(numbers.max()), -int(numbers.min())) > most:
            raise ImpossibleSum(f"an entry of the sum of {survivors} clients exceeds their clip")
        mean = self.fixed.restore(numbers)
        mean /= weight
        return mean

    def _noised(
        self, total: npt.NDArray[np.int64], central: CentralNoise, round: int
    ) -> npt.NDArray[np.int64]:
        """Return a copy of the sum `total` to which the server's noise for the round is added.

        Entries that leave the ring's range wrap around. There is no error, because an error would
        reveal something about the sum without noise.
        """
        numbers = total.copy()
        central.add_to(numbers, self.noise_entropy(round))
        return self.ring.signed(self.ring.elements(numbers))
