"""distributed_dp: noise in shares under secure aggregation, so that nobody need be trusted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedveil.base.arrays import Float64s, Int8s, Signed
from fedveil.base.message import Message
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import ClientWithheld, InvalidValue, MessageInvalid
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian, DistributedSum, NoiseShares
from fedveil.mechanisms.hadamard import random_signs, rotate, unrotate
from fedveil.mechanisms.quantile_clip import QuantileClip
from fedveil.privacy.audit import Case
from fedveil.privacy.gaussian_curve import epsilon_for, ratio_for
from fedveil.privacy.loss import Gaussian, Per, PrivacyLoss
from fedveil.privacy.sampled_gaussian import least_ratio, sampled_loss
from fedveil.protections.adaptive_clip import AdaptiveClipSettings, Clipped, Clipping, clip_follows
from fedveil.protections.audited import Outcome
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    Cohort,
    JobContext,
    Spending,
    State,
    Update,
    Whose,
)
from fedveil.protections.cost_key import CostKey
from fedveil.protections.directions import Direction
from fedveil.protections.noise_rule import check_noised_sum, one_noise
from fedveil.protections.reading import Domain
from fedveil.protections.secure_sum import ImpossibleSum, SecureSum
from fedveil.protections.secure_sum_settings import (
    SecureSumSettings,
    graph_fits,
    shareable,
    threshold_reachable,
    threshold_safe,
)
from fedveil.secagg.masking import Ring

#: What a run costs where nothing else is said.
_TARGET = 8.0
#: The sums that an audit tries.
_FOUR: Any = {"shares": 4, "clients": 4, "entry_bits": 12}


class DistributedDPSettings(SecureSumSettings, AdaptiveClipSettings):
    """Parameters of `distributed_dp`."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "clip": "none",
        "noise_multiplier": "loss",
        "target_epsilon": "loss",
        "bits": "none",
        "rotation": "none",
        "dropout_tolerance": "smaller",
        "assume_honest": "larger",
    }

    clip: float = Field(1.0, gt=0, description="L2 norm that each client clips its update to")
    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="standard deviation of the noise in a round's sum over its sensitivity, which "
        "is 2 * clip; null: the least that reaches target_epsilon",
    )
    target_epsilon: float | None = Field(
        None,
        gt=0,
        description="epsilon of the whole run, for a client in every round, at privacy.delta; null "
        f"without noise_multiplier: {_TARGET:g}",
    )
    bits: int = Field(
        8,
        ge=4,
        le=24,
        description="bits of an entry of a client's rotated update as a fixed-point number; what "
        "is sent has more, for the noise and the sum",
    )
    rotation: bool = Field(
        True,
        description="spread an update over its entries before it is rounded; under "
        "`privacy.unit: example` sums are not rotated",
    )
    dropout_tolerance: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="share of a round's clients that may drop out: the others' noise alone is "
        "enough, and with fewer the round is void",
    )
    assume_honest: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of a round's clients that add their noise and keep it to themselves: "
        "theirs alone is enough",
    )

    @property
    def target(self) -> float:
        """What a run costs where no multiplier is given."""
        return _TARGET if self.target_epsilon is None else self.target_epsilon

    def least_survivors(self, clients: int) -> int:
        """How many of so many clients a round's sum has at least."""
        sharing = self.sharing_clients(clients)
        return max(1, sharing - math.floor(_as_written(self.dropout_tolerance) * sharing))

    def dishonest(self, clients: int) -> int:
        """How many of so many clients may be without noise of their own."""
        sharing = self.sharing_clients(clients)
        return math.floor((1 - _as_written(self.assume_honest)) * sharing)


def _as_written(share: float) -> Fraction:
    return Fraction(repr(share))


def _loss(noise: NoiseShares, shares: int, delta: float) -> PrivacyLoss:
    """Of the sum of so many shares."""
    ratio = noise.ratio(shares)
    return PrivacyLoss(epsilon_for(ratio, delta), delta, release=Gaussian(ratio))


def some_noise(settings: DistributedDPSettings, cohort: Cohort) -> str | None:
    """Under distributed_dp the clients that may drop out or be dishonest leave one with noise."""
    if cohort.per_round is None:
        return None
    n = cohort.per_round
    if settings.least_survivors(n) > settings.dishonest(n):
        return None
    return (
        f"dropout_tolerance = {settings.dropout_tolerance!r} and assume_honest = "
        f"{settings.assume_honest!r} leave none of {settings.sharing_clients(n)} clients whose "
        f"noise can be counted on"
    )


class DistributedDP(Clipped, SecureSum):
    """The server sees the sum of the clients' vectors and of their shares of noise, and no more.

    A client's vector is its clipped update as `DistributedGaussian.share` says, rotated by signs
    that follow from the job's seed and the round. A client that cannot use its update sends its
    share of noise around zero. Clients count equally.

    Privacy: `Gaussian(ratio)` for a client's whole update in one round, replace-one, against
    everybody who sees the sum, the server itself included: with ratio = noise_multiplier for the
    fewest survivors that a sum may have, of which the share 1 - assume_honest of the cohort is
    taken off, and with that of the survivors that there were once the round is over. It rests on
    secure aggregation: without `active_security` on a server that follows the protocol. Whose
    vector is in the sum is told, and no sampling is counted in its favour.

    Unless clients draw their own turns (`JobContext.turn_rate` q below 1): each adds its update
    with probability q, drawn in secret, and otherwise its share of noise around zero, so that what
    is promised is `SampledGaussian(ratio, q)`, against the server too. Every client trains in
    every round, and answers alike, so that its time does not tell its turn. The mean is over
    the q * survivors that are expected.

    Under `privacy.unit: example` the update is a client's sum over its secretly sampled batch, to
    which each example adds a norm of at most `clip` (`DistributedSum`), and the same is promised
    for one example, with the amplification by that sampling (`SampledGaussian`): it counts against
    the server too, as nobody but the client knows whose turn it was.

    With `clip_quantile` the update is in units of a clip that moves, and a bit stands behind it
    that says whether it was shortened (`QuantileClip`): the same `Gaussian(ratio)` for both
    together, whatever clip a client is told.

    Source: Kairouz, Liu and Steinke, The distributed discrete Gaussian mechanism for federated
    learning with secure aggregation, 2021. Their discrete Gaussian, and not Skellam noise, which
    adds up exactly: the sum of shares of variance 16 or more is a discrete Gaussian to within e^±η,
    η = 1e-61, so that its statement is the Gaussian's own and composes exactly; the sampler is
    that of the other positions.
    """

    name = block = "distributed_dp"
    takes_variates = True
    settings_type = DistributedDPSettings
    settings: DistributedDPSettings
    perturbs = secret_turns = True
    cost_parameter = CostKey("noise_multiplier", falls=True, instead=("target_epsilon",))
    rules = (shareable, threshold_reachable, graph_fits, one_noise, some_noise, clip_follows)
    advice = (threshold_safe,)

    def __init__(self, settings: DistributedDPSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        check_noised_sum(self.name, context)
        clients = context.clients_per_round
        for rule in (one_noise, some_noise):
            if (problem := rule(settings, Cohort(None, clients))) is not None:
                raise InvalidValue(problem)
        self.clipping = clipping = Clipping(settings, settings.clip, self._ratio(), context)
        self.norm_clip = clipping.longest
        self._dishonest = settings.dishonest(clients)
        self._least = settings.least_survivors(clients)
        common: Any = {
            "shares": self._least - self._dishonest,
            "clients": settings.sharing_clients(clients),
            "dimension": clipping.length,
        }
        self.noise: DistributedGaussian | DistributedSum
        if context.unit == "example":
            self.noise = DistributedSum(settings.clip, self._ratio(), **common)
        else:
            bits, rotation = settings.bits, settings.rotation
            self.noise = DistributedGaussian(
                clipping.norm, self._ratio(), **common, entry_bits=bits, rotation=rotation
            )
        self.length, self.ring = self.noise.length, Ring(self.noise.bits)
        self._signs: tuple[int, Int8s | None] = (-1, None)

    def _ratio(self) -> float:
        """The noise multiplier."""
        settings, context, target = self.settings, self.context, self.settings.target
        if settings.noise_multiplier is not None:
            return settings.noise_multiplier
        if context.unit == "example" or self._rate < 1:
            return least_ratio(target, context.delta, self._rate, context.rounds)
        return ratio_for(target, context.delta, context.rounds)

    @classmethod
    def for_rounds(cls, settings: Any) -> str | None:
        """The target, where no multiplier stands in its place."""
        if settings.noise_multiplier is not None:
            return None
        return f"target_epsilon = {settings.target:g}"

    @property
    def _rate(self) -> float:
        """How likely what is protected is in a round's sum."""
        context = self.context
        return context.sampling_rate if context.unit == "example" else context.turn_rate

    @classmethod
    def units(cls, settings: Any) -> Sequence[Whose]:
        """Either; a clip that moves is of clients."""
        return ("client",) if settings.clip_quantile is not None else ("client", "example")

    def words(self, state: State) -> Message:
        """The clip, where it moves."""
        return self.clipping.words(state)

    @property
    def least_survivors(self) -> int:
        """Fewer would have too little noise between them."""
        return self._least

    @classmethod
    def unfit_for_apps(cls, settings: SecureSumSettings) -> str | None:
        """An app does not say how many rounds it has."""
        assert isinstance(settings, DistributedDPSettings)
        if settings.noise_multiplier is None:
            return (
                "noise_multiplier is not given: an app's number of rounds is not known before, so "
                "that no target_epsilon can be worked out for it"
            )
        return super().unfit_for_apps(settings)

    def spending(self, state: State) -> Sequence[Spending]:
        """What the sum of the fewest survivors releases."""
        return self.spent(state, self._least)

    def spent(self, state: State, reports: int) -> Sequence[Spending]:
        """What the sum of so many survivors has released."""
        shares, context = reports - self._dishonest, self.context
        loss = _loss(self.noise, shares, context.delta)
        if context.unit == "example" or self._rate < 1:
            per: Per = "example" if context.unit == "example" else "update"
            ratio = self.noise.ratio(shares)
            loss = sampled_loss(loss.epsilon, context.delta, ratio, self._rate, per)
        return [Spending(loss)]

    @staticmethod
    def audit_cases(eps: float) -> Iterator[Case]:
        """Sums of four shares, in which one update is tried: under a clip that stays, and one
        that moves."""
        multiplier = ratio_for(eps, 1e-3, 1)
        staying = DistributedGaussian(1.0, multiplier, **_FOUR, dimension=2)
        signs, zero = np.array([1, -1], np.int8), np.zeros(2, np.float32)

        def released(update: Update, entropy: Entropy) -> Signed:
            others = (staying.share(zero, signs, entropy) for _ in range(3))
            return sum(others, staying.share(update, signs, entropy))

        update = np.array([1.0, 0.0], np.float32)
        yield Case("noise in shares, an update", released, update, -update, _loss(staying, 4, 1e-3))
        law = QuantileClip(1.0, multiplier, dimension=2, clients=4, bit_noise=1.5 * multiplier)
        moving = DistributedGaussian(law.norm, multiplier, **_FOUR, dimension=law.length)
        four = np.array([1, -1, 1, 1], np.int8)

        def with_bits(update: Update, entropy: Entropy) -> Signed:
            others = (moving.share(law.joint(zero, 0.5), four, entropy) for _ in range(3))
            return sum(others, moving.share(law.joint(update, 0.5), four, entropy))

        at_clip, beyond, name = update / 2, -update, "noise in shares, an update and if shortened"
        yield Case(name, with_bits, at_clip, beyond, _loss(moving, 4, 1e-3))

    def vector(self, update: Update, context: ClientContext, told: Message) -> Signed:
        """The client's share of the sum."""
        try:
            joint, signs = self.clipping.joint(update, told), self.signs(context.round)
            if not self._takes_its_turn(context):
                joint = np.zeros_like(joint)
            return self.noise.share(joint, signs, context.entropy.stream("share of the sum"))
        except (InvalidValue, MessageInvalid) as error:
            raise ClientWithheld(str(error)) from None

    def _takes_its_turn(self, context: ClientContext) -> bool:
        """Whether the client's update is in the round's sum, which nobody else learns."""
        rate = self.context.turn_rate
        return rate == 1 or bool(context.entropy.stream("turn").bernoulli(rate, 1)[0])

    def mean(
        self, total: npt.NDArray[np.int64], survivors: int, round: int
    ) -> npt.NDArray[np.float64]:
        """The mean of the survivors' updates and their noise; of those whose turn is expected."""
        if self.noise.wrapped(total):
            raise ImpossibleSum(
                f"an entry of the sum of {survivors} clients is beyond what clipped updates and "
                f"their noise reach"
            )
        return self.noise.mean(total, survivors, self.signs(round)) / self.context.turn_rate

    def outcome_of(self, mean: npt.NDArray[np.float64], survivors: int, state: State) -> Aggregate:
        """The mean update, and the next clip where it moves."""
        return self.clipping.aggregate(mean, survivors, state)

    def signs(self, round: int) -> Int8s | None:
        """The signs of a round's rotation, which everybody knows; None without a rotation."""
        rotates = self.settings.rotation and self.context.unit == "client"
        if rotates and self._signs[0] != round:
            entropy = Seeded(self.context.seed, "rotation", round)
            self._signs = (round, random_signs(self.length, entropy))
        return self._signs[1]

    def domain(self, round: int) -> Domain:
        """The rotated vectors of the round, where the clip stays."""
        signs = self.signs(round)
        if signs is None or self.clipping.moving is not None:
            return super().domain(round)

        def encode(update: Float64s) -> Float64s:
            return rotate(update, signs).astype(np.float64)

        def decode(released: Float64s) -> Float64s:
            values = released.copy()
            unrotate(values, signs)
            return values

        return Domain(self.length, encode, decode, moves=True)

    def released(self, aggregate: Outcome) -> Float64s:
        """The sum as the server has it, in units of updates; where the clip moves, decoded."""
        if aggregate.released is None or self.clipping.moving is not None:
            return super().released(aggregate)
        return aggregate.released.astype(np.float64) * self.noise.step
