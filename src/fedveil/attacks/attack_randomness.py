"""The attacker's random numbers. They are seeded, so that an attack can be repeated."""

from __future__ import annotations

import torch

from fedveil.entropy import Seeded


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a torch generator seeded by `seed` and by `path`, the words that name its purpose."""
    return torch.Generator().manual_seed(Seeded(seed, "attack", *path).integer(1 << 63))
