"""dp_encrypt: Gaussian local differential privacy of the clipped update."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedveil.errors import ClientWithheld, InvalidValue, MessageInvalid
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.message import Message, Value
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    ClientId,
    JobContext,
    OneReportRound,
    RoundContext,
    Settings,
    Spending,
    State,
    Update,
    only_fields,
    take,
    take_array,
)
from fedveil.protections.exact_sum import MAX_MAGNITUDE, ExactSum

#: A report's values lie within clip + so many sigma. Of discrete noise, one in 10^23 would not.
_REACH_SIGMAS = 10


class DPEncryptSettings(Settings):
    """Parameters of `dp_encrypt`."""

    dp_eps: float = Field(50.0, gt=0, description="epsilon of one report")
    dp_delta: float = Field(0.01, gt=0, lt=1, description="delta of one report; 1/clients is usual")
    dp_norm_clip: float = Field(1.0, gt=0, description="L2 norm that an update is clipped to")
    noise: Literal["discrete", "continuous"] = Field(
        "discrete",
        description="discrete Gaussian on a fine grid, or the floating-point one of other systems",
    )


class DPEncrypt:
    """Every client sends its clipped update plus Gaussian noise; the aggregate is the mean.

    A report holds the noised update. The source sends old weights + noised update; the server
    knows the old weights, so that either says what the other says. Clients count equally: how
    many examples one has is not sent, as it is not protected.

    Privacy: (dp_eps, dp_delta) for a client's whole update in one report, replace-one, against
    whoever reads it, as `GaussianMechanism` states.
    """

    def __init__(self, settings: DPEncryptSettings, dimension: int) -> None:
        self._mechanism = GaussianMechanism(
            settings.dp_eps, settings.dp_delta, settings.dp_norm_clip, settings.noise
        )
        mechanism = self._mechanism
        self._form: _GridForm | _FloatForm
        if settings.noise == "discrete":
            self._form = _GridForm.of(mechanism, dimension)
        else:
            self._form = _FloatForm(mechanism.clip + _REACH_SIGMAS * mechanism.sigma)
