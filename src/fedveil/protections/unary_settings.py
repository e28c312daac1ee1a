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

    eps: float = Field(4.8, gt=0, description="the source's epsilon, of one bit of the code")
    cells: int = Field(
        50, ge=1, le=4096, description="states run from -cells to cells: 2 * cells + 1 of them"
    )
    rounding: Literal["nearest", "stochastic"] = Field(
        "nearest", description="to the nearest state, or to a neighbouring one without bias"
    )
    report: Literal["sum", "bits"] = Field(
        "sum", description="the sum of the perturbed code's states, or the packed code itself"
    )
    target: Literal["weights", "update"] = Field(
        "weights", description="what is clipped and coded: the new weights or the update"
    )
    clip: float = Field(1.0, gt=0, description="values are clipped to [-clip, clip]")
    adaptive: bool = Field(
        False, description="epsilon of the next round is eps divided by the models' similarity"
    )
    total_eps: float | None = Field(
        None, gt=0, description="the run ends before a client's whole loss would pass this"
    )
    fidelity: Literal["per_client", "aggregate"] = Field(
        "per_client",
        description="aggregate draws the cohort's sum at once, exactly in law; simulation only",
    )


def exact_reports(settings: UnarySettings) -> str | None:
    """Return which setting an audit needs to read reports, or None."""
    if settings.fidelity == "per_client":
        return None
    return (
        "protection.unary.fidelity = 'per_client': a report under 'aggregate' is not private on "
        "its own, which the audit would find"
    )
