"""Which devices torch has here."""

from __future__ import annotations

import torch

from fedveil.errors import JobError


def check_device(key: str, name: str) -> None:
    """Refuse a device that torch does not have here; `key` is where the job names it."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise JobError([f"{key} = {name} cannot be used here: {reason}"]) from None
