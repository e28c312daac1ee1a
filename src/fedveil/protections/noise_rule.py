"""Rules for the settings of protections that add Gaussian noise to a sum of updates.

One setting determines the noise, all clients have equal weights, and delta is above 0.
"""

from __future__ import annotations

from typing import Protocol

from fedveil.errors import InvalidValue
from fedveil.protections.advice import Cohort
from fedveil.protections.base import JobContext


class NoiseSettings(Protocol):
    """Settings that determine the noise: a multiplier, or the target epsilon of the whole run."""

    @property
    def noise_multiplier(self) -> float | None: ...

    @property
    def target_epsilon(self) -> float | None: ...


def one_noise(settings: NoiseSettings, cohort: Cohort) -> str | None:
    """Under distributed_dp and central_gaussian, `noise_multiplier` and `target_epsilon` must not
    both be set.

    Returns an error message, or None if the settings follow this rule.
    """
    if settings.noise_multiplier is None or settings.target_epsilon is None:
        return None
    return (
        f"noise_multiplier = {settings.noise_multiplier!r} and target_epsilon = "
        f"{settings.target_epsilon!r} both determine the noise: set only one of them"
    )


def check_noised_sum(name: str, context: JobContext) -> None:
    """Raise `InvalidValue` unless clients have equal weights and delta is above 0.

    `context` has the weighting of clients and the delta. `name` names the protection in the error.
    """
    if context.weighting != "equal":
        raise InvalidValue(f"{name} needs server.weighting = equal")
    if context.delta == 0:
        raise InvalidValue(
            f"privacy.delta = 0 leaves {name} without an epsilon: Gaussian noise needs a delta "
            "above 0"
        )
