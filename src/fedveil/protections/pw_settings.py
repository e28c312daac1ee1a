"""The parameters of pw_encrypt beyond those of secure aggregation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from fedveil.mechanisms.central_noise import CentralNoise
from fedveil.protections.advice import Cohort
from fedveil.protections.directions import Direction
from fedveil.protections.secure_sum_settings import SecureSumSettings

_DELTA, _NORM_CLIP = 1e-5, 1.0


class PWEncryptSettings(SecureSumSettings):
    """Parameters of `pw_encrypt`."""

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
    central_delta: float = Field(
        _DELTA, gt=0, lt=1, description="delta that belongs to central_eps"
    )
    central_norm_clip: float = Field(
        _NORM_CLIP,
        gt=0,
        description="L2 norm to which each client clips its update under central_eps",
    )

    def central_noise(self, step: float, dimension: int) -> CentralNoise | None:
        """Return the server's noise for a sum of vectors with this `step`, or None for no noise."""
        if self.central_eps is None:
            return None
        delta, clip = self.central_delta, self.central_norm_clip
        return CentralNoise(self.central_eps, delta, clip, step, dimension)


def central_fits(settings: PWEncryptSettings, cohort: Cohort) -> str | None:
    """Under pw_encrypt, `central_delta` and `central_norm_clip` need `central_eps`, and the norm is
    at most `clip`, the bound of every entry."""
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
