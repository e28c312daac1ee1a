"""Fits a protection to the vectors of a plan: its settings, its grid, and the noise in its sums."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedveil.base.array_types import Float32s, Float64s
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue, JobError
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.mechanisms.unclipped_sum import GaussianSum
from fedveil.privacy.gaussian_curve import epsilon_for, ratio_for
from fedveil.privacy.grid_sensitivity import LARGEST, MOST, as_update, clip_within, grid_step
from fedveil.protections.advice import Cohort
from fedveil.protections.base import JobContext, Protection
from fedveil.protections.catalog import build
from fedveil.protections.central_gaussian import CentralGaussian
from fedveil.protections.distributed_dp import DistributedDP
from fedveil.protections.dp_encrypt import DPEncrypt
from fedveil.protections.pw_encrypt import PWEncrypt
from fedveil.protections.secure_sum import SecureSum
from fedveil.rounds.outcomes import ClientId
from fedveil.secagg.secret import Secret
from fedveil.statistics.one_hot import Frequencies
from fedveil.statistics.question import QuestionFile

#: Joint vectors have a norm of at most 1, which is the clip of every protection.
_CLIP = 1.0
#: Bits per entry under distributed_dp: the fewest to try, the most, and the share of the noise's
#: variance that rounding may add.
_LEAST_BITS, _MOST_BITS, _ROUNDING = 16, 24, 0.005
#: Fewer clients cannot share secrets.
_LEAST_SHARING = 3
#: float32 may lengthen a vector by this share.
_FLOAT32 = 2.0**-20


@dataclass(frozen=True)
class Participants:
    """The clients of a question, and the keys of a deployment. `simulated` is False there."""

    clients: int
    simulated: bool = True
    roster: Mapping[ClientId, bytes] = field(default_factory=dict)
    identity: Secret | None = None


def digest(file: QuestionFile) -> bytes:
    """Return a digest of the whole question file, to which messages are bound."""
    return hashlib.sha256(file.to_yaml().encode()).digest()


def make_protection(
    file: QuestionFile, dimension: int, rounds: int, who: Participants
) -> Protection:
    """Return the protection for joint vectors of `dimension` entries in `rounds` rounds.

    All rounds together cost file.epsilon at file.delta. Under rr and oue a client takes part in
    one round, so that each round costs the whole epsilon.
    """
    context = JobContext(
        weighting="equal",
        dimension=dimension,
        clients_per_round=who.clients,
        rounds=rounds,
        simulated=who.simulated,
        job=digest(file),
        seed=file.seed,
        seeded=file.randomness == "seeded",
        delta=file.delta,
        roster=who.roster,
        identity=who.identity,
        masks=file.masks or not who.simulated,
        unit="example" if file.unit == "row" else "client",
    )
    if file.local:
        assert file.epsilon is not None, "the question file has checked it"
        kind: Literal["rr", "oue"] = "rr" if file.protection.name == "rr" else "oue"
        return Frequencies(kind, file.epsilon, context)
    given = file.protection.settings.model_dump(exclude_unset=True)
    kind_of = file.position
    settings = kind_of.settings_type(**{**given, **_computed(file, dimension, rounds, who.clients)})
    if issubclass(kind_of, SecureSum) and who.clients < _LEAST_SHARING:
        raise JobError(
            [
                f"{who.clients} clients are too few for {file.protection.name}: secure aggregation "
                f"needs at least {_LEAST_SHARING}"
            ]
        )
    for rule in kind_of.rules:
        if (problem := rule(settings, Cohort(who.clients, who.clients))) is not None:
            raise JobError([f"protection.{kind_of.block}.{problem}"])
    return build(file.protection.name, settings, context)


def _computed(file: QuestionFile, dimension: int, rounds: int, clients: int) -> dict[str, Any]:
    """Return the settings that follow from the question: the clip, and noise for its epsilon."""
    epsilon, delta = file.epsilon, file.delta
    if epsilon is None:
        return {"clip": _CLIP} if file.protection.name == "pw_encrypt" else {}
    ratio = ratio_for(epsilon, delta, rounds)
    match file.protection.name:
        case "dp_encrypt":
            eps = epsilon_for(ratio, delta)
            return {"dp_eps": eps, "dp_delta": delta, "dp_norm_clip": _CLIP}
        case "pw_encrypt":
            eps = epsilon_for(ratio, delta)
            central = {"central_eps": eps, "central_delta": delta, "central_norm_clip": _CLIP}
            return {"clip": _CLIP, **central}
        case "distributed_dp":
            bits = _bits(dimension, clients, ratio)
            return {"clip": _CLIP, "target_epsilon": epsilon, "bits": bits}
    return {"clip": _CLIP, "target_epsilon": epsilon}


def _bits(dimension: int, clients: int, ratio: float) -> int:
    """Return the bits per entry with which rounding adds little to the noise of `clients` shares.

    A step is 8 / (2^(bits - 1) √dimension), and rounding adds up to step² / 4 for each client.
    """
    allowed = _ROUNDING * (2 * ratio * _CLIP) ** 2
    for bits in range(_LEAST_BITS, _MOST_BITS):
        step = 8 * _CLIP / (2 ** (bits - 1) * math.sqrt(dimension))
        if clients * step**2 / 4 <= allowed:
            return bits
    return _MOST_BITS


class Carriage:
    """Moves joint vectors through a protection, and states the noise of their sum.

    Some protections round a vector towards zero on a grid. A sum of many vectors would then be
    biased. So a vector is first rounded at random on that grid, without bias, and shortened by at
    most one step per entry so that rounding cannot lengthen it beyond the clip.
    """

    def __init__(self, protection: Protection) -> None:
        self.protection = protection
        self._exact = isinstance(protection, Frequencies) or protection.name == "not_encrypt"
        self._by_row = protection.context.unit == "example"
        self._step = 0.0 if self._by_row else _grid_of(protection)
        shortened = 1 - math.sqrt(protection.dimension) * self._step - _FLOAT32
        self._scale = clip_within(_CLIP, protection.dimension) if self._by_row else shortened
        if self._scale <= 0.5:
            raise InvalidValue(
                f"a vector of {protection.dimension:,} entries is too fine for the steps of "
                f"{protection.name}: ask for fewer cells"
            )

    @property
    def most_rows(self) -> int | None:
        """Return the largest number of a client's rows that a report can carry under `unit: row`.

        Returns None if there is no such limit. The limit keeps an entry of the sum within 2^24
        steps. It is at most 2^18 rows, for which the sensitivity is proved.
        """
        if self._exact or not self._by_row:
            return None
        return min(MOST, int(LARGEST * grid_step(_CLIP, self.protection.dimension)))

    def update(self, vector: Float64s, entropy: Entropy) -> Float32s:
        """Return a client's joint vector as the update that its half of the protection takes."""
        if self._exact:
            return vector.astype(np.float32)
        scaled = vector * self._scale
        if self._by_row:
            return as_update(scaled, _CLIP)
        if self._step:
            uniform = (entropy.words(len(scaled)) >> np.uint64(11)) * 2.0**-53
            scaled = np.floor(scaled / self._step + uniform) * self._step
        return scaled.astype(np.float32)

    def total(self, mean: Float64s, reports: int) -> Float64s:
        """Return the sum of the clients' joint vectors from the aggregate, their mean."""
        if not self._exact:
            return mean * (reports / self._scale)
        summed = mean * reports
        whole = np.rint(summed)  # which the division by the reports has moved by a rounding
        return np.where(np.isclose(summed, whole, rtol=1e-14, atol=0), whole, summed)

    def variance(self, mean: Float64s, reports: int) -> Float64s:
        """Return the variance of the noise in each entry of `total`, rounding included."""
        if isinstance(self.protection, Frequencies):
            return self.protection.law.variance(mean, reports) * reports**2
        if self._exact:
            return np.zeros(len(mean))
        noise = _noise_variance(self.protection, reports) + reports * self._step**2 / 4
        return np.full(len(mean), noise / self._scale**2)

    def influence(self) -> float:
        """Return how far one forged report can move the total, in the joint vector's norm.

        It is infinite under secure aggregation, which hides single vectors: a forged one may be any
        element of the ring. central_gaussian refuses a vector beyond the clip, and dp_encrypt an
        entry beyond the clip and ten deviations of its noise.
        """
        match self.protection:
            case Frequencies() as local:
                return local.law.influence * math.sqrt(local.dimension)
            case CentralGaussian():
                return 2 * _CLIP / self._scale
            case DPEncrypt() if not self._by_row:
                entry = _CLIP + 10 * _gaussian(self.protection).sigma
                return (_CLIP + entry * math.sqrt(self.protection.dimension)) / self._scale
        return math.inf


def _grid_of(protection: Protection) -> float:
    """Return the step of the grid on which the protection rounds towards zero, or 0."""
    match protection:
        case CentralGaussian():
            return protection.noise.step
        case PWEncrypt(central=central) if central is not None:
            return central.step
        case DPEncrypt():
            return _gaussian(protection).grid(protection.dimension).step
    return 0.0


def _gaussian(protection: Protection) -> GaussianMechanism:
    settings = protection.settings
    return GaussianMechanism(settings.dp_eps, settings.dp_delta, settings.dp_norm_clip)


def _noise_variance(protection: Protection, reports: int) -> float:
    """Return the variance of an entry of the sum of `reports` reports' noise, in updates' units."""
    match protection:
        case CentralGaussian():
            return protection.noise.sigma**2
        case PWEncrypt(central=central):
            noise = 0.0 if central is None else central.sigma**2
            return noise + (reports * protection.fixed.step**2 / 4 if central is None else 0.0)
        case DistributedDP():
            step = protection.noise.step
            return reports * step**2 * (protection.noise.share_variance + 0.25)
        case DPEncrypt(settings=settings) if protection.context.unit == "example":
            chosen = settings.dp_eps, settings.dp_delta, _CLIP
            return reports * GaussianSum(*chosen, dimension=protection.dimension).sigma ** 2
        case DPEncrypt():
            return reports * _gaussian(protection).sigma ** 2
    return 0.0
