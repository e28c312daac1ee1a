"""Detects mods that run before fedveil's mod, from the call chain of Flower's `ClientApp`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp

#: The code of the frames from which Flower calls the mods, and the local variable with the mod.
_LINK, _MOD = make_ffn(lambda message, context: message, [lambda *chain: chain[0]]).__code__, "_mod"


def mod_outside() -> str | None:
    """Return an error sentence if another mod runs before the calling mod, otherwise None.

    An earlier mod would receive the report instead of the arrays. Anything that it adds to the
    reply would be sent unprotected and uncharged.
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
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not ClientApp.__call__.__code__:
        if frame.f_code is _LINK:
            yield frame.f_locals[_MOD]
        frame = frame.f_back


def _name(mod: Any) -> str:
    return getattr(mod, "__name__", type(mod).__name__)
