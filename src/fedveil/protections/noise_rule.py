"""The noise of a sum is said in one of two ways: a multiplier, or what a run is to cost."""

from __future__ import annotations

from typing import Protocol

from fedveil.protections.base import Cohort


class NoiseSettings(Protocol):
    """Parameters that say it in both ways."""

    @property
    def noise_multiplier(self) -> float | None: ...

    @property
    def target_epsilon(self) -> float | None: ...


def one_noise(settings: NoiseSettings, cohort: Cohort) -> str | None:
    """Under distributed_dp and central_gaussian `noise_multiplier` and `target_epsilon` are not set
    both."""
    if settings.noise_multiplier is None or settings.target_epsilon is None:
        return None
    return (
        f"noise_multiplier = {settings.noise_multiplier!r} and target_epsilon = "
        f"{settings.target_epsilon!r} both say how much noise there is: set one of them"
    )
