"""central_gaussian: clients clip, a trusted server sees every update and noises their sum.

A comparison, named as one: what noise costs where the server is believed to add it, and to keep to
itself what it reads before. Its noise is that of one release for a whole cohort, where
`dp_encrypt` has one a client.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedveil.base.arrays import Float64s, Int32s, Int64s, into_floats
from fedveil.base.message import Message, encoded_bytes, only_fields
from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld, InvalidValue, MessageInvalid
from fedveil.mechanisms.central_noise import CentralNoise
from fedveil.mechanisms.quantile_clip import QuantileClip
from fedveil.privacy.audit import Case
from fedveil.privacy.gaussian_curve import analytic_sigma, ratio_for
from fedveil.protections.adaptive_clip import AdaptiveClipSettings, Clipped, Clipping, clip_follows
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
from fedveil.protections.cost_key import CostKey
from fedveil.protections.directions import Direction
from fedveil.protections.grid_report import GridReport
from fedveil.protections.noise_rule import check_noised_sum, one_noise
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from fedveil.rounds.outcomes import ClientId

_MULTIPLIER = 1.0


class CentralGaussianSettings(AdaptiveClipSettings):
    """Parameters of `central_gaussian`, which trusts the server."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "clip": "none",
        "noise_multiplier": "loss",
        "target_epsilon": "loss",
    }

    clip: float = Field(1.0, gt=0, description="L2 norm that an update is clipped to")
    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="sigma of the noise on a round's sum, over 2 * clip, which is how far one "
        f"client moves it; null: what target_epsilon asks for, or {_MULTIPLIER:g} without it",
    )
    target_epsilon: float | None = Field(
        None,
        gt=0,
        description="in place of noise_multiplier: epsilon of the whole run at privacy.delta, for "
        "a client that is drawn in every round, against everybody but the server",
    )

    def ratio(self, delta: float, rounds: int) -> float:
        """The noise of a round as a multiple of the sensitivity."""
        if self.target_epsilon is not None:
            return ratio_for(self.target_epsilon, delta, rounds)
        return _MULTIPLIER if self.noise_multiplier is None else self.noise_multiplier


def _trusts(settings: CentralGaussianSettings, cohort: Cohort) -> str | None:
    return (
        f"clip = {settings.clip!r}: the server reads every client's clipped update and adds the "
        f"noise to their sum itself, so that epsilon holds against everybody else, and not "
        f"against the server"
    )


class CentralGaussian(Clipped):
    """Every client sends its clipped update as it is; the aggregate is the mean of a noised sum.

    Clients count equally. A report is whole multiples of a step, no longer than the clip in exact
    arithmetic, which the server checks: so the sum is exact, and no client that lies takes from
    what the others are promised.

    Privacy: that of `CentralNoise` for a client's whole update in one round, replace-one, against
    whoever sees what comes of the mean. None against the server, nor against whoever reads a report
    on its way: they read the clipped update. Of secret cohorts (`JobContext.poisson`) what comes of
    a round is the noised sum over a constant, noise alone where nobody reported: the law that is
    amplified by the draw, for whoever only gets the models.

    With `clip_quantile` updates are in units of a clip that moves, each with a bit behind it that
    says whether it was shortened (`QuantileClip`): one release of both together.
    """

    name = block = "central_gaussian"
    takes_variates = True
    settings_type = CentralGaussianSettings
    settings: CentralGaussianSettings
    perturbs = False
    amplified = True
    cost_parameter = CostKey("noise_multiplier", falls=True, instead=("target_epsilon",))
    rules = (one_noise, clip_follows)
    advice = (_trusts,)

    def __init__(self, settings: CentralGaussianSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        check_noised_sum(self.name, context)
        ratio = settings.ratio(context.delta, context.rounds)
        self.clipping = clip = Clipping(settings, settings.clip, ratio, context)
        self.noise = CentralNoise.of_ratio(ratio, context.delta, clip.norm, clip.length)
        self.norm_clip = clip.longest
        # No entry of a clipped update is larger, in steps.
        most = math.isqrt(self.noise.limit)
        self.form = GridReport(self.noise.step, most, clip.length, np.int32)

    @classmethod
    def rests_on_server(cls, settings: CentralGaussianSettings) -> bool:
        """All of it does."""
        return True

    @classmethod
    def for_rounds(cls, settings: CentralGaussianSettings) -> str | None:
        """The target, where there is one."""
        target = settings.target_epsilon
        return None if target is None else f"target_epsilon = {target:g}"

    @classmethod
    def unfit_for_apps(cls, settings: CentralGaussianSettings) -> str | None:
        """What an app does not say."""
        if settings.target_epsilon is None:
            return None
        return (
            f"target_epsilon = {settings.target_epsilon!r} is of a whole run, and an app does not "
            f"say how many rounds it has: set noise_multiplier instead"
        )

    @staticmethod
    def audit_cases(eps: float) -> Iterator[Case]:
        """The noised sum, in which one update of the clipping norm is tried."""
        noise = CentralNoise.of_ratio(analytic_sigma(eps, 1e-3, 1.0), 1e-3, 1.0, dimension=2)
        update = np.array([1.0, 0.0])
        yield Case("central gaussian, an update", noise.noised, update, -update, noise.loss)
        ratio = analytic_sigma(eps, 1e-3, 1.0)
        moving = QuantileClip(1.0, ratio, dimension=2, clients=4, bit_noise=1.5 * ratio)
        both = CentralNoise.of_ratio(ratio, 1e-3, moving.norm, moving.length)

        def released(update: Update, entropy: Entropy) -> Int64s:
            return both.noised(moving.joint(update, 0.5), entropy)

        at_clip, beyond = np.array([0.5, 0.0]), np.array([-1.0, 0.0])
        yield Case("an update and whether it was shortened", released, at_clip, beyond, both.loss)

    def spending(self, state: State) -> Sequence[Spending]:
        """One release of the sum."""
        return [Spending(self.noise.loss)]

    def server_round(self, context: RoundContext) -> CentralGaussianServerRound:
        return CentralGaussianServerRound(self, context)

    def client_round(self, context: ClientContext) -> CentralGaussianClientRound:
        return CentralGaussianClientRound(self, context)

    def reading(self, context: RoundContext, report: Message) -> Reading:
        """The clipped update, as the server reads it."""
        multiples, clip, told = self.read(report), self.clipping, context.state
        estimate = clip.parted(multiples.astype(np.float64) * self.noise.step, told)

        def log_likelihood(update: Update) -> float:
            same = np.array_equal(self.noise.clipped(clip.joint(update, told)), multiples)
            return 0.0 if same else -math.inf

        return Reading(estimate, np.ones_like(estimate), log_likelihood=log_likelihood)

    def released(self, aggregate: Outcome) -> Float64s:
        """The noised sum. Of secret cohorts the mean is over what was expected."""
        job = self.context
        summed = job.clients_per_round if job.poisson else aggregate.reports
        return summed * aggregate.update.astype(np.float64)

    def read(self, report: Message) -> Int32s:
        """The clipped update in steps, of an untrusted report, checked completely."""
        multiples = self.form.read(report)
        if not self.noise.within(multiples):
            raise MessageInvalid("field multiples is longer than the clip")
        moving = self.clipping.moving
        if moving is not None and abs(int(multiples[-1])) * self.noise.step > moving.half:
            raise MessageInvalid("field multiples says more than a bit of the clip")
        return multiples


class CentralGaussianServerRound(OneReportRound):
    """The running sum of the clipped updates, in steps: exact, and the same in every order."""

    sums = ("_sum",)

    def __init__(self, protection: CentralGaussian, context: RoundContext) -> None:
        super().__init__(context)
        self._protection = protection
        self._sum = np.zeros(protection.clipping.length, np.int64)
        # Of secret cohorts, whether anybody reported is a secret too.
        self.may_be_empty = protection.context.poisson

    def opening(self) -> Message:
        """The round's number, and the clip where it moves."""
        return {**super().opening(), **self._protection.clipping.words(self._context.state)}

    @property
    def longest(self) -> int:
        return encoded_bytes({"round": self._context.round, **self._protection.form.blank()})

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "round", *self._protection.form.fields)
        self._sum += self._protection.read(message)

    def _merge_sums(self, other: CentralGaussianServerRound) -> None:
        self._sum += other._sum

    def _aggregate(self) -> Aggregate:
        """The mean of the noised sum: noised once.

        Where cohorts are secret, how many reported is: the sum is divided by what is expected.
        """
        protection, job = self._protection, self._protection.context
        protection.noise.add_to(self._sum, protection.noise_entropy(self._context.round))
        mean = into_floats(self._sum)
        mean *= protection.noise.step
        mean /= job.clients_per_round if job.poisson else self.reports
        return protection.clipping.aggregate(mean, self.reports, self._context.state)


class CentralGaussianClientRound(OneReportClient):
    """Sends the clipped update; refuses one that is not finite."""

    def __init__(self, protection: CentralGaussian, context: ClientContext) -> None:
        super().__init__(context)
        self._protection = protection

    def _report(self, opening: Message, update: Update) -> Message:
        protection = self._protection
        try:
            joint = protection.clipping.joint(update, opening)
            report = protection.form.written(protection.noise.clipped(joint))
        except (InvalidValue, MessageInvalid) as error:
            raise ClientWithheld(str(error)) from None
        return {"round": self._context.round, **report}
