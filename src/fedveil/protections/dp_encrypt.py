"""dp_encrypt: Gaussian local differential privacy of the clipped update."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedveil.protections.base import Settings


class DPEncryptSettings(Settings):
    """Parameters of `dp_encrypt`."""

    dp_eps: float = Field(50.0, gt=0, description="epsilon of one report")
    dp_delta: float = Field(0.01, gt=0, lt=1, description="delta of one report; 1/clients is usual")
    dp_norm_clip: float = Field(1.0, gt=0, description="L2 norm that an update is clipped to")
    noise: Literal["discrete", "continuous"] = Field(
        "discrete",
        description="discrete Gaussian on a fine grid, or the floating-point one of other systems",
    )
