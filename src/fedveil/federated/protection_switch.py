"""The switch in a job, and the parameters of its positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from fedveil.protections.dp_encrypt import DPEncryptSettings
from fedveil.protections.pw_encrypt import PWEncryptSettings
from fedveil.protections.rr_oue import UnarySettings
from fedveil.protections.signds import SignDSSettings
from fedveil.settings.base import Choice


class ProtectionSettings(Choice):
    """The switch, and the parameters of its positions; the unused blocks wait."""

    BLOCKS: ClassVar[Mapping[str, str | None]] = {
        "not_encrypt": None,
        "dp_encrypt": "dp_encrypt",
        "pw_encrypt": "pw_encrypt",
        "signds": "signds",
        "rr": "unary",
        "oue": "unary",
    }
    #: Positions whose guarantee needs clients that count equally.
    EQUAL: ClassVar[tuple[str, ...]] = ("dp_encrypt", "signds", "rr", "oue")

    name: Literal["not_encrypt", "dp_encrypt", "pw_encrypt", "signds", "rr", "oue"] = Field(
        "not_encrypt", description="the position of the switch"
    )
    dp_encrypt: DPEncryptSettings = Field(
        default_factory=DPEncryptSettings, description="parameters of dp_encrypt"
    )
    signds: SignDSSettings = Field(
        default_factory=SignDSSettings, description="parameters of signds"
    )
    pw_encrypt: PWEncryptSettings = Field(
        default_factory=PWEncryptSettings, description="parameters of pw_encrypt"
    )
    unary: UnarySettings = Field(
        default_factory=UnarySettings, description="parameters of rr and oue"
    )
