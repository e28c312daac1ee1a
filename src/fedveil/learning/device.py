"""Which devices torch has here, and what is drawn on one."""

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


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed what dropout draws from; `torch.manual_seed` would also note every other device."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
