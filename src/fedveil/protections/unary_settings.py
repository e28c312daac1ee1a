"""The parameters of rr and oue, and a check if an audit can use reports under these parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from fedveil.protections.directions import Direction
from fedveil.settings.settings import Settings


class UnarySettings(Settings):
    """Parameters of `rr` and `oue`, such as epsilon, rounding, and the content of a report."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "eps": "loss",
        "cells": "none",
        "rounding": "none",
        "report": "own",
        "target": "none",
        "clip": "none",
        "adaptive": "loss",
        "total_eps": "loss",
        "fidelity": "loss",
    }

    eps: float = Field(
        4.8, gt=0, description="epsilon: a parameter costs 2 * eps under rr, and eps under oue"
    )
    cells: int = Field(
        50,
        ge=1,
        le=4096,
        description="resolution: a value is rounded to one of 2 * cells + 1 states, from -cells to "
        "cells",
    )
    rounding: Literal["nearest", "stochastic"] = Field(
        "nearest",
        description="nearest: to the nearest state; stochastic: to a neighbouring state, "
        "without bias",
    )
    report: Literal["sum", "bits"] = Field(
        "sum",
        description="the content of a report. sum: the sum of the states in the perturbed code. "
        "bits: the perturbed code itself",
    )
    target: Literal["weights", "update"] = Field(
        "weights",
        description="the values that are perturbed. weights: the new weights. update: the update",
    )
    clip: float = Field(1.0, gt=0, description="values are clipped to [-clip, clip]")
    adaptive: bool = Field(
        False,
        description="if true, the next round's epsilon is eps divided by the similarity of the "
        "last two models",
    )
    total_eps: float | None = Field(
        None, gt=0, description="the run stops before a client's total loss would exceed this"
    )
    fidelity: Literal["per_client", "aggregate"] = Field(
        "per_client",
        description="per_client: every client makes its report. aggregate: the sum of all reports "
        "is drawn from its exact distribution (simulation only)",
    )


def unfit_for_audit(settings: UnarySettings) -> str | None:
    """Return None if an audit can use the reports, else the setting it needs and the reason.

    An audit needs reports that clients have made, not only their sum (`fidelity: per_client`).
    """
    if settings.fidelity == "per_client":
        return None
    return (
        "protection.unary.fidelity = 'per_client': reports under 'aggregate' are not private on "
        "their own, and the audit would show it"
    )
