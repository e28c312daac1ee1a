"""The switch positions: one file each, and the table that finds them by name."""

from __future__ import annotations

import importlib
from typing import Any

from fedveil.errors import NotBuiltYet
from fedveil.protections.base import JobContext, Protection
from fedveil.settings.base import Settings

#: Name of the switch position -> the file that builds it, and what the file is told besides.
POSITIONS: dict[str, tuple[str, dict[str, str]]] = {
    "not_encrypt": ("not_encrypt", {}),
    "dp_encrypt": ("dp_encrypt", {}),
    "pw_encrypt": ("pw_encrypt", {}),
    "signds": ("signds", {}),
    "rr": ("rr_oue", {"kind": "rr"}),
    "oue": ("rr_oue", {"kind": "oue"}),
}


def is_built(name: str) -> bool:
    """Whether this version can run the switch position."""
    return hasattr(_module(name), "build")


def build(name: str, settings: Settings | None, context: JobContext) -> Protection:
    """The protection in the switch position `name`."""
    if not is_built(name):
        built = ", ".join(filter(is_built, POSITIONS))
        raise NotBuiltYet(f"protection.name = {name} is not built yet; this version has {built}")
    protection: Protection = _module(name).build(settings, context, **POSITIONS[name][1])
    return protection


def _module(name: str) -> Any:
    return importlib.import_module(f"fedveil.protections.{POSITIONS[name][0]}")
