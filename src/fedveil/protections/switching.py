"""Lists the settings that switch a job from one protection to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedveil.protections.base import Protection
from fedveil.protections.catalog import POSITIONS
from fedveil.settings.settings import Settings


def switched(job: Mapping[str, Any], position: str) -> list[str]:
    """Return the "key=value" settings that switch `job` to the protection named `position`."""
    changes = {"protection": position} if job["protection"]["name"] != position else {}
    if job["server"]["weighting"] == "by_size":
        changes["server.weighting"] = "equal"
    if job["server"]["aggregation"] not in POSITIONS[position].combinations:
        changes["server.aggregation"] = "mean"
    settings = [f"{key}={value}" for key, value in changes.items()]
    return settings + _in_common(job["protection"], POSITIONS[position])


def _in_common(switch: Mapping[str, Any], other: type[Protection]) -> list[str]:
    """Return texts "key=value" that copy a job's settings to the block of the protection `other`.

    `switch` is the job's block `protection`. A setting is copied if it differs from its default and
    if `other` has it too. Returns [] if both protections use the same block, because nothing has to
    be copied then.
    """
    chosen = POSITIONS.get(switch["name"], Protection)
    if chosen.block == other.block:
        return []
    values = switch.get(chosen.block or "", {})
    return [
        f"protection.{other.block}.{key}={str(values[key]).lower()}"
        for key, field in chosen.settings_type.model_fields.items()
        if key in _inherited(chosen, other) and values.get(key, field.default) != field.default
    ]


def _inherited(one: type[Protection], other: type[Protection]) -> set[str]:
    kinds = [kind for kind in one.settings_type.__mro__ if issubclass(kind, Settings)]
    return set(next(k for k in kinds if issubclass(other.settings_type, k)).model_fields)
