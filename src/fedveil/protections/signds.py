"""signds: sign dimension select with magnitude randomised response."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedveil.protections.base import Settings


class SignDSSettings(Settings):
    """Parameters of `signds`."""

    sign_k: float = Field(
        0.01, gt=0, le=0.25, description="share of the dimensions that forms the top-k set"
    )
    sign_eps: float = Field(
        100.0, gt=0, le=100, description="epsilon of the selected dimensions of one report"
    )
    sign_thr_ratio: float = Field(
        0.6, ge=0.5, le=1, description="least expected share of top-k dimensions among the selected"
    )
    sign_global_lr: float = Field(
        1.0, gt=0, description="global step where the magnitude is not estimated"
    )
    sign_dim_out: int = Field(
        0, ge=0, le=50, description="number of selected dimensions; 0 takes the best one"
    )
    sign_mag_eps: float | None = Field(
        None,
        gt=0,
        le=100,
        description="epsilon of the magnitude bit; sign_eps where it is left out",
    )
    magnitude: Literal["estimated", "fixed"] = Field(
        "estimated", description="fixed uses sign_global_lr alone and sends no magnitude bit"
    )
    regrow: bool = Field(
        False, description="let the estimate grow again after five rounds in a row below r"
    )
