"""An attacker's own randomness. It is seeded and repeats, since it protects nobody."""

from __future__ import annotations

import torch

from fedveil.entropy import Seeded


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a torch generator seeded by `seed` and by the purpose that `path` names."""
    return torch.Generator().manual_seed(Seeded(seed, "attack", *path).integer(1 << 63))
