"""dp_encrypt and distributed_dp with a planted fault, as a user's own protections."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from fedveil.entropy import Seeded
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.protections.base import ClientContext, JobContext
from fedveil.protections.distributed_dp import DistributedDP
from fedveil.protections.distributed_dp_settings import DistributedDPSettings
from fedveil.protections.dp_encrypt import DPEncrypt, DPEncryptSettings, _GridForm


class FaultySettings(DPEncryptSettings):
    """The settings of dp_encrypt, and the fault."""

    fault: str


class Faulty(DPEncrypt):
    """dp_encrypt with a fault.

    half: half the noise; clip: noise for C instead of 2C; rounds, clients: one stream used twice;
    one: a single report without noise.
    """

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
        client = super().client_round(context)
        if self.settings.fault == "one" and (context.client, context.round) == (150, 1):
            assert isinstance(client._form, _GridForm)
            client._form = copy(client._form)
            client._form._mechanism = _Silent(self._mechanism, self._form.step)
        return client


class Unstated(Faulty):
    """A `Faulty` protection that states no clipping norm."""

    def __init__(self, settings: FaultySettings, context: JobContext) -> None:
        super().__init__(settings, context)
        self.norm_clip = math.inf


class _Silent:
    """Clips as another mechanism does and adds no noise."""

    def __init__(self, clipping: Any, step: float) -> None:
        self._clipping, self._step = clipping, step

    def drawing(self, update: Any, entropy: Any) -> Any:
        whole = np.rint(self._clipping.clipped(update) / self._step).astype(np.int64)
        return lambda part: whole[part]


class SharesSettings(DistributedDPSettings):
    """The settings of distributed_dp, and the number of clients that add no noise."""

    missing: int


class Shares(DistributedDP):
    """distributed_dp in which the first `missing` clients send their updates without noise."""

    block, settings_type = "own", SharesSettings

    def vector(self, update: Any, context: ClientContext, told: Any) -> Any:
        if context.client >= self.settings.missing:
            return super().vector(update, context, told)
        assert isinstance(self.noise, DistributedGaussian)
        return self.noise.rounded(update, self.signs(context.round), context.entropy)
