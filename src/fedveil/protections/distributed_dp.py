"""distributed_dp: clients add shares of noise, and nobody sees an update or sum without noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s, Int8s, Signed
from fedveil.base.message import Message
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import ClientWithheld, InvalidValue, MessageInvalid
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian, DistributedSum, NoiseShares
from fedveil.mechanisms.gaussian import sum_of_squares
from fedveil.mechanisms.hadamard import random_signs, rotate, unrotate
from fedveil.mechanisms.quantile_clip import QuantileClip
from fedveil.privacy.audit import Case
from fedveil.privacy.gaussian_curve import epsilon_for, ratio_for
from fedveil.privacy.loss import Gaussian, Per, PrivacyLoss, exactly
from fedveil.privacy.sampled_gaussian import least_ratio, sampled_loss
from fedveil.protections.advice import Cohort
from fedveil.protections.audited import Outcome
from fedveil.protections.base import Aggregate, ClientContext, JobContext, Spending, State, Update
from fedveil.protections.clip_norm import Clipped, Clipping, clip_follows
from fedveil.protections.cost_key import CostKey
from fedveil.protections.description import Whose
from fedveil.protections.distributed_dp_settings import (
    DistributedDPSettings,
    no_node_exceeds,
    none_unmasked,
    some_noise,
)
from fedveil.protections.noise_rule import check_noised_sum, one_noise
from fedveil.protections.reading import Domain
from fedveil.protections.secure_sum import ImpossibleSum, SecureSum
from fedveil.protections.secure_sum_settings import (
    SecureSumSettings,
    graph_fits,
    most_must_sign,
    shareable,
    threshold_reachable,
    threshold_safe,
)
from fedveil.secagg.masking import Ring

#: The sums that an audit tries.
_FOUR: Any = {"shares": 4, "clients": 4, "entry_bits": 12}


def _loss(noise: NoiseShares, shares: int, delta: float) -> PrivacyLoss:
    ratio = noise.ratio(shares)
    return PrivacyLoss(epsilon_for(ratio, delta), delta, release=Gaussian(ratio))


class DistributedDP(Clipped, SecureSum):
    """The server sees only the sum of the clients' vectors, which contain shares of noise.

    A client's vector is its clipped update with a share of noise (`DistributedGaussian.share`). The
    vector is rotated with signs that are derived from the job's seed and the round. A client whose
    update is unusable sends an update of zero with its share of noise. Clients have equal weights.

    Privacy: `Gaussian(ratio)` for a client's whole update in one round, replace-one, against
    everyone who sees the sum, including the server. The fraction 1 - `assume_honest` of the cohort
    is assumed to be dishonest, and to add no noise. A round's loss is first stated for the worst
    permitted case: the fewest permitted clients survive, and all dishonest clients are among them.
    For this case, ratio is `noise_multiplier`, or is computed from `target_epsilon`. After the
    round, ratio is computed from the actual number of survivors. The guarantee relies on secure
    aggregation and, without `active_security`, on a server that follows the protocol. It is public
    whose vectors are in a sum, so sampling of clients does not amplify the guarantee.

    Secret turns (`JobContext.turn_rate` q below 1): each client decides in secret, with probability
    q, to add its update. Otherwise it adds an update of zero. It always adds its share of noise.
    Then sampling amplifies the guarantee to `SampledGaussian(ratio, q)`, also against the server.
    Every client trains in every round, so the time of an answer does not reveal the decision. The
    mean divides by the expected number, q * survivors.

    Under `privacy.unit: example`, a client samples a batch of its examples in secret. Its update is
    a sum of one vector for each example of the batch, with a norm of at most `clip`
    (`DistributedSum`). The guarantee is then for one example. The sampling amplifies it
    (`SampledGaussian`), also against the server, because only the client knows the batch.

    With `clip_quantile`, the clip follows a quantile of the updates' norms (`QuantileClip`). Each
    update is then followed by a bit that says whether it was shortened. The guarantee covers update
    and bit together, for any clip that the server sends.

    Source: Kairouz, Liu and Steinke, The distributed discrete Gaussian mechanism for federated
    learning with secure aggregation, 2021. A sum of discrete Gaussians of variance 16 or more is a
    discrete Gaussian to within a factor e^±η, η = 1e-61, so the sum has the Gaussian's own
    guarantee.
    """

    name = block = "distributed_dp"
    takes_variates = True
    settings_type = DistributedDPSettings
    settings: DistributedDPSettings
    perturbs = secret_turns = True
    gaussian_noise = "sum"
    loop = sum_of_squares
    cost_parameter = CostKey("noise_multiplier", falls=True, instead=("target_epsilon",))
    rules = (
        shareable, threshold_reachable, most_must_sign, graph_fits, one_noise, some_noise,
        none_unmasked, no_node_exceeds, clip_follows,
    )  # fmt: skip
    advice = (threshold_safe,)

    def __init__(self, settings: DistributedDPSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        check_noised_sum(self.name, context)
        clients = context.clients_per_round
        for rule in (one_noise, some_noise, none_unmasked):
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
            common |= {"entry_bits": settings.bits, "rotation": settings.rotation}
            self.noise = DistributedGaussian(
                clipping.norm, self._ratio(), **common, apart=context.apart
            )
        self.length, self.ring = self.noise.length, Ring(self.noise.bits)
        self._signs: tuple[int, Int8s | None] = (-1, None)

    def _ratio(self) -> float:
        settings, context, target = self.settings, self.context, self.settings.target
        if settings.noise_multiplier is not None:
            return settings.noise_multiplier
        if context.unit == "example" or self._rate < 1:
            return least_ratio(target, context.delta, self._rate, context.rounds)
        return ratio_for(target, context.delta, context.rounds)

    @classmethod
    def for_rounds(cls, settings: Any) -> str | None:
        if settings.noise_multiplier is not None:
            return None
        return f"target_epsilon = {exactly(settings.target)}"

    @property
    def _rate(self) -> float:
        """The probability that the protected client or example is in a round's sum."""
        context = self.context
        return context.sampling_rate if context.unit == "example" else context.turn_rate

    @classmethod
    def units(cls, settings: Any) -> Sequence[Whose]:
        return ("client",) if settings.clip_quantile is not None else ("client", "example")

    def words(self, state: State) -> Message:
        return self.clipping.words(state)

    @property
    def least_survivors(self) -> int:
        """The smallest number of survivors whose shares of noise are enough for the guarantee."""
        return self._least

    @classmethod
    def unfit_for_apps(cls, settings: SecureSumSettings) -> str | None:
        assert isinstance(settings, DistributedDPSettings)
        if settings.noise_multiplier is None:
            return (
                "noise_multiplier is not given: an app's number of rounds is unknown in "
                "advance, so target_epsilon cannot be computed for it"
            )
        return super().unfit_for_apps(settings)

    def spending(self, state: State) -> Sequence[Spending]:
        """Return the loss of a round with the smallest permitted number of survivors."""
        return self.spent(state, self._least)

    def spent(self, state: State, reports: int) -> Sequence[Spending]:
        most, context = self.noise.clients, self.context  # only clients that share secrets report
        shares = min(reports, most) - self._dishonest
        loss = _loss(self.noise, shares, context.delta)
        if context.unit == "example" or self._rate < 1:
            per: Per = "example" if context.unit == "example" else "update"
            ratio = self.noise.ratio(shares)
            loss = sampled_loss(loss.epsilon, context.delta, ratio, self._rate, per)
        return [Spending(loss)]

    @staticmethod
    def audit_cases(eps: float) -> Iterator[Case]:
        """Yield audit cases with epsilons of about `eps`.

        Each output is a noisy sum of one update and three updates of zero.
        """
        multiplier = ratio_for(eps, 1e-3, 1)
        staying = DistributedGaussian(1.0, multiplier, **_FOUR, dimension=2)
        signs, zero = np.array([1, -1], np.int8), np.zeros(2, np.float32)

        def released(update: Update, entropy: Entropy) -> Signed:
            others = (staying.share(zero, signs, entropy) for _ in range(3))
            return sum(others, staying.share(update, signs, entropy))

        update = np.array([1.0, 0.0], np.float32)
        opposite = 4 * update, -4 * update  # longer than the clip, to test it
        yield Case("noise in shares, an update", released, *opposite, _loss(staying, 4, 1e-3))
        law = QuantileClip(1.0, multiplier, dimension=2, clients=4, bit_noise=1.5 * multiplier)
        moving = DistributedGaussian(law.norm, multiplier, **_FOUR, dimension=law.length)
        four = np.array([1, -1, 1, 1], np.int8)

        def with_bits(update: Update, entropy: Entropy) -> Signed:
            others = (moving.share(law.joint(zero, 0.5), four, entropy) for _ in range(3))
            return sum(others, moving.share(law.joint(update, 0.5), four, entropy))

        at_clip, beyond, name = update / 2, -update, "noise in shares, an update and if shortened"
        yield Case(name, with_bits, at_clip, beyond, _loss(moving, 4, 1e-3))

    def vector(self, update: Update, context: ClientContext, told: Message) -> Signed:
        try:
            joint, signs = self.clipping.joint(update, told), self.signs(context.round)
            if not self._takes_its_turn(context):
                joint = np.zeros_like(joint)
            return self.noise.share(joint, signs, context.entropy.stream("share of the sum"))
        except (InvalidValue, MessageInvalid) as error:
            raise ClientWithheld(str(error)) from None

    def carried(self, update: Update, told: Message) -> Update:
        if not isinstance(self.noise, DistributedGaussian):  # examples are clipped in training
            return update
        return self.clipping.carried(self.noise.clipped(self.clipping.joint(update, told)), told)

    def _takes_its_turn(self, context: ClientContext) -> bool:
        """Return True if this client adds its update to the sum. Only the client knows this."""
        rate = self.context.turn_rate
        return rate == 1 or bool(context.entropy.stream("turn").bernoulli(rate, 1)[0])

    def mean(
        self, total: npt.NDArray[np.int64], survivors: int, round: int
    ) -> npt.NDArray[np.float64]:
        """Return the mean update of a round from `total`, the noisy sum of the survivors' vectors.

        The divisor is the expected number of updates in the sum. With secret turns, it is below
        `survivors`, because each survivor decides in secret, at random, if it adds its update.
        Raises `ImpossibleSum` if an entry of the sum is out of range.
        """
        if self.noise.out_of_reach(total):
            raise ImpossibleSum(
                f"an entry of the sum of {survivors} clients exceeds the range of clipped "
                "updates and their noise"
            )
        mean = self.noise.mean(total, survivors, self.signs(round))
        if (rate := self.context.turn_rate) < 1:
            mean /= rate
        return mean

    def outcome_of(self, mean: npt.NDArray[np.float64], survivors: int, state: State) -> Aggregate:
        return self.clipping.aggregate(mean, survivors, state)

    def signs(self, round: int) -> Int8s | None:
        """Return the public signs of a round's rotation, or None if there is no rotation."""
        rotates = self.settings.rotation and self.context.unit == "client"
        known, signs = self._signs
        if rotates and known != round:
            signs = None
            self._signs = (-1, None)  # so that the new signs reuse the memory of the old ones
            entropy = Seeded(self.context.seed, "rotation", round)
            signs = random_signs(self.length, entropy)
            self._signs = (round, signs)
        return signs

    def domain(self, round: int) -> Domain:
        """Return the vector space in which the round's sum is released.

        This is the space of rotated vectors. If vectors are not rotated, or if the clip changes
        between rounds, it is the space of updates.
        """
        signs, noise = self.signs(round), self.noise
        if signs is None or self.clipping.moving is not None:
            return super().domain(round)
        assert isinstance(noise, DistributedGaussian)

        def encode(update: Float64s) -> Float64s:
            return rotate(update, signs, noise.block).astype(np.float64)

        def decode(released: Float64s) -> Float64s:
            values = released.copy()
            unrotate(values, signs, noise.block)
            return values

        return Domain(self.length, encode, decode, moves=True)

    def released(self, aggregate: Outcome) -> Float64s:
        """Return the noisy sum of a round, in the same units as updates.

        This is `aggregate.released` times the step, which is still rotated if vectors are rotated.
        If that field is None, or if the clip changes between rounds, it is the mean update times
        the number of reports.
        """
        if aggregate.released is None or self.clipping.moving is not None:
            return super().released(aggregate)
        return aggregate.released.astype(np.float64) * self.noise.step
