"""Checks torch devices and seeds their generators."""

from __future__ import annotations

import torch

from fedveil.errors import JobError


def check_device(key: str, name: str) -> None:
    """Raise `JobError` if torch cannot use the device `name`. `key` is the job's key for it."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise JobError([f"{key} = {name} cannot be used here: {reason}"]) from None


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's random generators of the CPU and of `device`, for dropout."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
