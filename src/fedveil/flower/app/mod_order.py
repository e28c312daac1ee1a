"""Which mods of a `ClientApp` stand outside the one that is at work, by Flower's own call chain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp

#: Every mod is called from a frame of this code, in which it has this name.
_LINK, _MOD = make_ffn(lambda message, context: message, [lambda *chain: chain[0]]).__code__, "_mod"


def mod_outside() -> str | None:
    """Why no answer is given, where another mod stands outside the one that asks this.

    It would get the report in place of the arrays, so that its clipping or noise is lost in
    silence, and what it adds leaves the client after the protection, uncounted.
    """
    at_work, *outside = [*_mods()] or [None]
    if not outside:
        return None
    return (
        f"{_name(outside[-1])} stands before {_name(at_work)} among the client app's mods and "
        f"would see and change the report in place of the arrays: "
        f"ClientApp(mods=[{_name(at_work)}(...), ...]), and no other mod before it"
    )


def _mods() -> Iterator[Any]:
    """The mods that are being called for this message, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not ClientApp.__call__.__code__:
        if frame.f_code is _LINK:
            yield frame.f_locals[_MOD]
        frame = frame.f_back


def _name(mod: Any) -> str:
    return getattr(mod, "__name__", type(mod).__name__)
