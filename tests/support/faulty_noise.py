"""dp_encrypt with a planted fault, as a protection of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedveil.entropy import Seeded
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.protections.base import ClientContext, JobContext
from fedveil.protections.dp_encrypt import DPEncrypt, DPEncryptSettings, _GridForm


class FaultySettings(DPEncryptSettings):
    """dp_encrypt's, and which fault."""

    fault: str


class Faulty(DPEncrypt):
    """half: half the noise; clip: noise for C in place of 2C; rounds, clients: one stream twice."""

    block, settings_type = "own", FaultySettings

    def __init__(self, settings: FaultySettings, context: JobContext) -> None:
        super().__init__(settings, context)
        given = (settings.dp_eps, settings.dp_delta, settings.dp_norm_clip)
        mechanism = GaussianMechanism(*given)
        if settings.fault == "half":
            mechanism.sigma /= 2
        if settings.fault == "clip":
            mechanism.sigma = analytic_sigma(*given)
        self._form = _GridForm(
            mechanism, self.dimension, mechanism.grid(self.dimension).step, mechanism.clip
        )

    def client_round(self, context: ClientContext) -> Any:
        named = {"rounds": context.client, "clients": context.round}
        if self.settings.fault in named:
            stream = Seeded(self.context.seed, "twice", named[self.settings.fault])
            context = replace(context, entropy=stream)
        return super().client_round(context)
