"""The parameters of rr and oue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from fedveil.protections.directions import Direction
from fedveil.settings.settings import Settings


class UnarySettings(Settings):
    """Parameters of `rr` and `oue`."""

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
        description="number of cells: states run from -cells to cells, 2 * cells + 1 of them",
    )
    rounding: Literal["nearest", "stochastic"] = Field(
        "nearest",
        description="nearest: to the nearest state; stochastic: to a neighbouring state, "
        "without bias",
    )
    report: Literal["sum", "bits"] = Field(
        "sum",
        description="sum: the sum of the perturbed code's states; bits: the packed code itself",
    )
    target: Literal["weights", "update"] = Field(
        "weights", description="values that are clipped and coded: the new weights or the update"
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
        description="aggregate: the server draws the cohort's sum at once, from its exact "
        "distribution; simulation only",
    )


def exact_reports(settings: UnarySettings) -> str | None:
    """Return the setting that an audit of reports needs, with the reason. None if it is set."""
    if settings.fidelity == "per_client":
        return None
    return (
        "protection.unary.fidelity = 'per_client': reports under 'aggregate' are not private on "
        "their own, and the audit would show it"
    )
