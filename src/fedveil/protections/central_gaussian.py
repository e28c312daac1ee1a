"""central_gaussian: clients clip their updates, and a trusted server adds noise to the sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedveil.base import reused_memory
from fedveil.base.array_types import Float64s, Int32s, Int64s, into_floats
from fedveil.base.message import Message, encoded_bytes, only_fields
from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld, InvalidValue, MessageInvalid
from fedveil.mechanisms.central_noise import CentralNoise, CentralSum
from fedveil.mechanisms.quantile_clip import QuantileClip
from fedveil.privacy.audit import Case
from fedveil.privacy.gaussian_curve import analytic_sigma, ratio_for
from fedveil.privacy.grid_sensitivity import LARGEST
from fedveil.privacy.loss import exactly
from fedveil.protections.advice import Cohort
from fedveil.protections.audited import Outcome
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    JobContext,
    RoundContext,
    Spending,
    State,
    Update,
)
from fedveil.protections.clip_norm import AdaptiveClipSettings, Clipped, Clipping, clip_follows
from fedveil.protections.cost_key import CostKey
from fedveil.protections.directions import Direction
from fedveil.protections.grid_report import GridReport
from fedveil.protections.noise_rule import check_noised_sum, one_noise
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from fedveil.rounds.outcomes import ClientId

_MULTIPLIER = 1.0


class CentralGaussianSettings(AdaptiveClipSettings):
    """Parameters of `central_gaussian`: the clip, and the noise that a trusted server adds."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "clip": "none",
        "noise_multiplier": "loss",
        "target_epsilon": "loss",
    }

    clip: float = Field(1.0, gt=0, description="each update is clipped to this L2 norm")
    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="standard deviation of the noise in a round's sum, divided by the "
        "sensitivity 2 * clip. null: computed from target_epsilon, or "
        f"{_MULTIPLIER:g} without it",
    )
    target_epsilon: float | None = Field(
        None,
        gt=0,
        description="epsilon of the whole run at privacy.delta, in place of noise_multiplier. For "
        "a client in every round, against everyone except the server",
    )

    def ratio(self, delta: float, rounds: int) -> float:
        """Return the standard deviation of a round's noise as a multiple of the sensitivity.

        If `target_epsilon` is set, returns the smallest multiple with which `rounds` rounds cost at
        most `target_epsilon` at `delta`. Otherwise returns `noise_multiplier` or its default.
        """
        if self.target_epsilon is not None:
            return ratio_for(self.target_epsilon, delta, rounds)
        return _MULTIPLIER if self.noise_multiplier is None else self.noise_multiplier


def _trusts(settings: CentralGaussianSettings, cohort: Cohort) -> str | None:
    return (
        f"clip = {settings.clip!r}: the server reads every client's clipped update and adds the "
        "noise to their sum itself, so epsilon holds against everyone except the server"
    )


class CentralGaussian(Clipped):
    """Every client sends its clipped update without noise. The server adds noise to the sum.

    Clients have equal weights. A report consists of whole multiples of a step, and the server
    checks in exact arithmetic that its norm is at most the clip. So the sum is exact, and a client
    that lies cannot weaken the guarantee of the others.

    Privacy: the guarantee of `CentralNoise` for a client's whole update in one round, replace-one,
    against everyone who sees only the noisy mean and what is computed from it. Nothing is
    guaranteed against the server, or against anyone who reads a report in transit: both see the
    clipped update. With secret cohorts (`JobContext.poisson`), a round releases the noisy sum
    divided by the expected number of clients, even if no client reported. Against everyone who
    receives only the models, the secret sampling of clients then amplifies the guarantee.

    A job that computes statistics may protect single examples (`JobContext.unit`). An update is
    then a sum with one bounded vector for each example, and is not clipped itself (`CentralSum`).
    The server only limits every entry to 2^24 steps, so a client that lies can move each entry of
    the round's sum by that much.

    With `clip_quantile`, the clip follows a quantile of the updates' norms (`QuantileClip`). Each
    update is then followed by a bit that says whether it was shortened. The guarantee is for update
    and bit together.
    """

    name = block = "central_gaussian"
    takes_variates = True
    settings_type = CentralGaussianSettings
    settings: CentralGaussianSettings
    perturbs = False
    amplified = True
    gaussian_noise = "sum"
    cost_parameter = CostKey("noise_multiplier", falls=True, instead=("target_epsilon",))
    rules = (one_noise, clip_follows)
    advice = (_trusts,)

    def __init__(self, settings: CentralGaussianSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        check_noised_sum(self.name, context)
        ratio = settings.ratio(context.delta, context.rounds)
        self.clipping = clip = Clipping(settings, settings.clip, ratio, context)
        size = clip.norm, clip.length
        self.noise: CentralNoise
        if context.unit == "example":
            self.noise, most = CentralSum(ratio, context.delta, *size), LARGEST
        else:
            entry = math.inf if clip.moving is None else clip.moving.half
            self.noise = CentralNoise.of_ratio(ratio, context.delta, *size, context.apart, entry)
            if clip.moving is not None:
                clip.moving.round_bits(self.noise.step)
            most = math.isqrt(self.noise.limit)  # in steps, no entry of a clipped update is larger
        self.norm_clip = clip.longest
        self.form = GridReport(self.noise.step, most, clip.length, np.int32)

    @classmethod
    def rests_on_server(cls, settings: CentralGaussianSettings) -> bool:
        return True

    @classmethod
    def for_rounds(cls, settings: CentralGaussianSettings) -> str | None:
        target = settings.target_epsilon
        return None if target is None else f"target_epsilon = {exactly(target)}"

    @classmethod
    def unfit_for_apps(cls, settings: CentralGaussianSettings) -> str | None:
        if settings.target_epsilon is None:
            return None
        return (
            f"target_epsilon = {settings.target_epsilon!r} is for a whole run, and an app does "
            "not state its number of rounds: set noise_multiplier instead"
        )

    @staticmethod
    def audit_cases(eps: float) -> Iterator[Case]:
        """Yield audit cases with epsilons of about `eps`, with a fixed and with a moving clip.

        In each case, the mechanism adds noise to one clipped update.
        """
        noise = CentralNoise.of_ratio(analytic_sigma(eps, 1e-3, 1.0), 1e-3, 1.0, dimension=2)
        update = np.array([4.0, 0.0])
        yield Case("central gaussian, an update", noise.noised, update, -update, noise.loss)
        ratio = analytic_sigma(eps, 1e-3, 1.0)
        moving = QuantileClip(1.0, ratio, dimension=2, clients=4, bit_noise=1.5 * ratio)
        both = CentralNoise.of_ratio(ratio, 1e-3, moving.norm, moving.length)

        def released(update: Update, entropy: Entropy) -> Int64s:
            return both.noised(moving.joint(update, 0.5), entropy)

        at_clip, beyond = np.array([0.5, 0.0]), np.array([-1.0, 0.0])
        yield Case("an update and whether it was shortened", released, at_clip, beyond, both.loss)

    def spending(self, state: State) -> Sequence[Spending]:
        return [Spending(self.noise.loss)]

    def carried(self, update: Update, told: Message) -> Update:
        joint = self.noise.clipped(self.clipping.joint(update, told))
        return self.clipping.carried(joint.astype(np.float64) * self.noise.step, told)

    def server_round(self, context: RoundContext) -> CentralGaussianServerRound:
        return CentralGaussianServerRound(self, context)

    def client_round(self, context: ClientContext) -> CentralGaussianClientRound:
        return CentralGaussianClientRound(self, context)

    def reading(self, context: RoundContext, report: Message) -> Reading:
        """Return an exact `Reading`: the server sees the client's clipped update in `report`."""
        multiples, clip, told = self.read(report), self.clipping, context.state
        estimate = clip.parted(multiples.astype(np.float64) * self.noise.step, told)

        def log_likelihood(update: Update) -> float:
            same = np.array_equal(self.noise.clipped(clip.joint(update, told)), multiples)
            return 0.0 if same else -math.inf

        return Reading(estimate, np.ones_like(estimate), log_likelihood=log_likelihood)

    def released(self, aggregate: Outcome) -> Float64s:
        job = self.context
        summed = job.clients_per_round if job.poisson else aggregate.reports
        return summed * aggregate.update.astype(np.float64)

    def read(self, report: Message) -> Int32s:
        """Return the clipped update in an untrusted report, as multiples of the step.

        With a moving clip, the clip bit follows the update. Raises `MessageInvalid` as `check`
        does.
        """
        self.check(report)
        return self.form.read(report)

    def check(self, report: Message) -> None:
        """Raise `MessageInvalid` if a report has an invalid field or an update beyond the clip."""
        if not self.noise.within(self.form.read_parts(report)):
            raise MessageInvalid("field multiples is longer than the clip")
        moving = self.clipping.moving
        if moving is not None and abs(self.form.read_last(report)) * self.noise.step > moving.half:
            raise MessageInvalid("field multiples holds a clip bit beyond its range")


class CentralGaussianServerRound(OneReportRound):
    """Adds up clipped updates exactly, as vectors of whole numbers (multiples of a grid's step)."""

    sums = ("_sum",)

    def __init__(self, protection: CentralGaussian, context: RoundContext) -> None:
        super().__init__(context)
        self._protection = protection
        self._sum = reused_memory.zeros(protection.clipping.length, np.int64)
        # With secret cohorts, even the existence of a report is a secret.
        self.may_be_empty = protection.context.poisson

    def opening(self) -> Message:
        return {**super().opening(), **self._protection.clipping.words(self._context.state)}

    @property
    def longest(self) -> int:
        return encoded_bytes({"round": self._context.round, **self._protection.form.blank()})

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "round", *self._protection.form.fields)
        self._protection.check(message)
        self._protection.form.add(message, self._sum)

    def _merge_sums(self, other: CentralGaussianServerRound) -> None:
        self._sum += other._sum

    def _aggregate(self) -> Aggregate:
        protection, job = self._protection, self._protection.context
        protection.noise.add_to(self._sum, protection.noise_entropy(self._context.round))
        divisor = job.clients_per_round if job.poisson else self.reports
        mean = into_floats(self._sum, protection.noise.step, divisor)
        aggregate = protection.clipping.aggregate(mean, self.reports, self._context.state)
        return replace(aggregate, divisor=divisor)


class CentralGaussianClientRound(OneReportClient):
    """Sends the clipped update. Raises `ClientWithheld` if an entry of it is not finite.

    The caller then reports an update of zero instead (`always_answers`).
    """

    def __init__(self, protection: CentralGaussian, context: ClientContext) -> None:
        super().__init__(context)
        self._protection = protection

    def _report(self, opening: Message, update: Update) -> Message:
        protection = self._protection
        try:
            joint = protection.clipping.joint(update, opening)
            report = protection.form.written_parts(protection.noise.clipping(joint))
        except (InvalidValue, MessageInvalid) as error:
            raise ClientWithheld(str(error)) from None
        return {"round": self._context.round, **report}
