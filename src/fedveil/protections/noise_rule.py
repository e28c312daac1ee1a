"""What positions with Gaussian noise in a sum share: how it is said, and what it needs."""

from __future__ import annotations

from typing import Protocol

from fedveil.errors import InvalidValue
from fedveil.protections.advice import Cohort
from fedveil.protections.base import JobContext


class NoiseSettings(Protocol):
    """Parameters that say it as a multiplier and as what a run is to cost."""

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


def check_noised_sum(name: str, context: JobContext) -> None:
    """Raise `InvalidValue` where the sum's sensitivity, or its epsilon, would not be there."""
    if context.weighting != "equal":
        raise InvalidValue(f"{name} needs clients that count equally: weighting = equal")
    if context.delta == 0:
        raise InvalidValue(
            f"privacy.delta = 0 leaves {name} without an epsilon, which Gaussian noise has at a "
            f"delta above 0 alone"
        )
