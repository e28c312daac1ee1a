"""pw_encrypt: secure aggregation with pairwise masks that survives dropouts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedveil.protections.base import Settings


class PWEncryptSettings(Settings):
    """Parameters of `pw_encrypt`."""

    share_secrets_ratio: float = Field(
        1.0, gt=0, le=1, description="share of the clients of a round that must share secrets"
    )
    reconstruct_secrets_threshold: int = Field(
        34, ge=1, description="clients needed to reconstruct; below those that share secrets"
    )
    cipher_time_window: int = Field(
        300_000, gt=0, description="deadline of each phase in milliseconds"
    )
    neighbours: Literal["auto", "complete"] | int = Field(
        "auto", description="masking graph: complete, k neighbours each, or sparse for many clients"
    )
    active_security: bool = Field(
        False, description="add the signed consistency round against a lying server"
    )
