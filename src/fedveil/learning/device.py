"""Checks torch devices and seeds their generators."""

from __future__ import annotations

import torch

from fedveil.errors import JobError


def check_device(key: str, name: str) -> None:
    """Raise `JobError` if torch lacks the device `name`, the value of the job's `key`."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise JobError([f"{key} = {name} cannot be used here: {reason}"]) from None


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed torch's generators of the CPU and `device`, and of no other device, for dropout."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
