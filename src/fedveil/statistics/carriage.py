"""Turns clients' vectors into updates for a protection, and the aggregate into a sum with noise."""

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

#: Two possible joint vectors of a client are at most `_APART` from each other and at most `_CLIP`
#: long. Under `unit: row`, two rows are at most `_APART` apart, and the clipping norm is half of
#: it.
_APART, _CLIP = 2.0, math.sqrt(2.0)
#: Bits per entry under distributed_dp: the minimum, the maximum, and the share of the noise
#: variance that rounding may add.
_LEAST_BITS, _MOST_BITS, _ROUNDING = 16, 24, 0.005
#: The smallest number of clients that can share secrets.
_LEAST_SHARING = 3
#: Rounding to float32 moves vectors apart by less than this share.
_FLOAT32 = 2.0**-17


@dataclass(frozen=True)
class Participants:
    """The number of clients that a question asks, and the keys with which they sign messages.

    `simulated` is False in a deployment. `roster` has the public signing key of every client.
    `identity` is the private key of the client that runs this code, or None on the server.
    """

    clients: int
    simulated: bool = True
    roster: Mapping[ClientId, bytes] = field(default_factory=dict)
    identity: Secret | None = None


def digest(file: QuestionFile) -> bytes:
    """Return a digest of the question file, which identifies the question in messages and files."""
    return hashlib.sha256(file.to_yaml().encode()).digest()


def make_protection(
    file: QuestionFile, dimension: int, rounds: int, who: Participants
) -> Protection:
    """Return the protection for joint vectors of `dimension` entries in `rounds` rounds.

    A joint vector has a client's vectors for all questions, one after another. All rounds together
    cost `file.epsilon` at `file.delta`. Under rr and oue each client takes part in only one round,
    so each round costs the whole epsilon. `who` describes the clients. Raises `JobError` if there
    are too few of them for secure aggregation, or if a rule of the protection forbids this number
    of clients with its settings.
    """
    context = JobContext(
        weighting="equal",
        dimension=2 * dimension if file.protection.name == "not_encrypt" else dimension,
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
        apart=_APART if file.unit == "client" and not file.local else None,
    )
    if file.local:
        assert file.epsilon is not None, "the question file has checked it"
        kind: Literal["rr", "oue"] = "rr" if file.protection.name == "rr" else "oue"
        return Frequencies(kind, file.epsilon, context, file.codes)
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
    epsilon, delta = file.epsilon, file.delta
    clip = _APART / 2 if file.unit == "row" else _CLIP
    if epsilon is None:
        return {"clip": clip} if file.protection.name == "pw_encrypt" else {}
    ratio = ratio_for(epsilon, delta, rounds)
    match file.protection.name:
        case "dp_encrypt":
            eps = epsilon_for(ratio, delta)
            return {"dp_eps": eps, "dp_delta": delta, "dp_norm_clip": clip}
        case "pw_encrypt":
            eps = epsilon_for(ratio, delta)
            central = {"central_eps": eps, "central_delta": delta, "central_norm_clip": clip}
            return {"clip": clip, **central}
        case "distributed_dp":
            bits = _bits(dimension, clients, ratio)
            return {"clip": clip, "target_epsilon": epsilon, "bits": bits}
    return {"clip": clip, "target_epsilon": epsilon}


def _bits(dimension: int, clients: int, ratio: float) -> int:
    """Return the number of bits per entry of a report under distributed_dp.

    It is the smallest from 16 to 24 with which rounding adds at most 0.5% to the noise's variance,
    or 24 if none does. `dimension` is the number of entries, `clients` the number of reports in a
    sum, and `ratio` the noise's standard deviation divided by the sensitivity.
    """
    allowed = _ROUNDING * (_APART * ratio) ** 2
    for bits in range(_LEAST_BITS, _MOST_BITS):
        step = 8 * _CLIP / (2 ** (bits - 1) * math.sqrt(dimension))
        if clients * step**2 / 4 <= allowed:
            return bits
    return _MOST_BITS


class Carriage:
    """Encodes clients' joint vectors as updates, and decodes their aggregate to a sum with noise.

    A joint vector has a client's vectors for all questions, one after another. The protection's
    noise is made for joint vectors whose largest distance is 2. Rounding could make the distance
    larger, so `update` first scales a vector down a little.

    Some protections round every entry towards zero, to a grid, which would bias the sum. For these,
    `update` itself rounds the scaled vector to the same grid, at random and without bias.
    """

    def __init__(self, protection: Protection) -> None:
        self.protection = protection
        self._plain = protection.name == "not_encrypt"
        self._exact = self._plain or isinstance(protection, Frequencies)
        self._by_row = protection.context.unit == "example"
        self._step = 0.0 if self._by_row else _grid_of(protection)
        shortened = 1 - math.sqrt(protection.dimension) * self._step - _FLOAT32
        self._scale = clip_within(_APART / 2, protection.dimension) if self._by_row else shortened
        if self._scale <= 0.5:
            raise InvalidValue(
                f"a vector of {protection.dimension:,} entries is too fine for the steps of "
                f"{protection.name}: ask for fewer cells"
            )

    def most_rows(self, largest: float) -> int | None:
        """Return the largest number of rows whose sum a report can hold, or None for no limit.

        Only `unit: row` has a limit: a report's entry is at most 2^24 grid steps, and the
        sensitivity is proved only up to 2^18 rows. `largest` is the largest entry that one row adds
        to the client's vector.
        """
        if self._exact or not self._by_row:
            return None
        return min(MOST, int(self._most_entry / largest))

    @property
    def _most_entry(self) -> float:
        return LARGEST * grid_step(_APART / 2, self.protection.dimension)

    def update(self, vector: Float64s, entropy: Entropy) -> Float32s:
        """Return the update for a client's joint vector. The protection turns it into a report.

        The joint vector `vector` has the client's vectors for all questions, one after another.
        `entropy` draws the random rounding.
        """
        if self._plain:
            upper = vector.astype(np.float32)
            return np.concatenate([upper, (vector - upper).astype(np.float32)])
        scaled = vector * self._scale
        if self._by_row:
            return as_update(scaled, _APART / 2)
        if self._step:
            uniform = (entropy.words(len(scaled)) >> np.uint64(11)) * 2.0**-53
            whole = np.floor(scaled / self._step + uniform)
            # Adds a quarter of a step, because the protection rounds towards zero.
            scaled = (whole + np.copysign(0.25, whole)) * self._step
        return scaled.astype(np.float32)

    def total(self, mean: Float64s, reports: int) -> Float64s:
        """Return the sum of the joint vectors of `reports` clients, with the protection's noise.

        A joint vector has a client's vectors for all questions, one after another. `mean` is the
        protection's aggregate of the reports.
        """
        if not self._exact:
            return mean * (reports / self._scale)
        whole_mean = mean.reshape(2, -1).sum(0) if self._plain else mean
        summed = whole_mean * self._codes(reports)
        whole = np.rint(summed)  # undoes the rounding error of the division by `reports`
        return np.where(np.isclose(summed, whole, rtol=1e-14, atol=0), whole, summed)

    def variance(self, mean: Float64s, reports: int) -> Float64s:
        """Return the variance of the noise in each entry of the sum of `reports` joint vectors.

        `mean` is the protection's aggregate of the reports. `total` returns the sum itself.
        """
        if isinstance(self.protection, Frequencies):
            codes = self._codes(reports)
            return self.protection.law.variance(mean, codes) * codes**2
        if self._plain:
            return np.zeros(len(mean) // 2)
        noise = _noise_variance(self.protection, reports) + reports * self._step**2 / 4
        return np.full(len(mean), noise / self._scale**2)

    def _codes(self, reports: int) -> int:
        """Return how many vectors are added up in the sum of `reports` reports.

        Under rr and oue, a report is a sum of `protection.rows` one-hot codes. Otherwise it is one
        vector.
        """
        return reports * getattr(self.protection, "rows", 1)

    def influence(self) -> float:
        """Return the largest L2 distance by which one forged report can move the clients' sum.

        central_gaussian refuses vectors longer than the clipping norm. Under `unit: row`, where
        entries are whole multiples of a grid step, it refuses entries above 2^24 steps. dp_encrypt
        refuses entries larger than the clipping norm plus ten standard deviations of its noise.
        Under rr and oue, a report can only hold one-hot codes. The distance is infinite under
        secure aggregation, under not_encrypt, and under dp_encrypt with `unit: row`.
        """
        match self.protection:
            case CentralGaussian() if self._by_row:
                return 2 * self._most_entry * math.sqrt(self.protection.dimension) / self._scale
            case Frequencies() as local:
                return local.rows * local.law.influence * math.sqrt(local.dimension)
            case CentralGaussian():
                return 2 * _CLIP / self._scale
            case DPEncrypt() if not self._by_row:
                entry = _CLIP + 10 * _gaussian(self.protection).sigma
                return (_CLIP + entry * math.sqrt(self.protection.dimension)) / self._scale
        return math.inf


def _grid_of(protection: Protection) -> float:
    """Return the step of the grid to which `protection` rounds towards zero (0: no grid)."""
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
    return GaussianMechanism(
        settings.dp_eps, settings.dp_delta, settings.dp_norm_clip, apart=protection.context.apart
    )


def _noise_variance(protection: Protection, reports: int) -> float:
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
            chosen = settings.dp_eps, settings.dp_delta, settings.dp_norm_clip
            return reports * GaussianSum(*chosen, dimension=protection.dimension).sigma ** 2
        case DPEncrypt():
            return reports * _gaussian(protection).sigma ** 2
    return 0.0
