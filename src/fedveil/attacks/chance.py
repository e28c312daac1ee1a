"""An attacker's own randomness: it repeats, since nothing of it protects anybody."""

from __future__ import annotations

import torch

from fedveil.entropy import Seeded


def generator(seed: int, *path: int | str) -> torch.Generator:
    """A torch generator for the purpose that `path` names."""
    return torch.Generator().manual_seed(Seeded(seed, "attack", *path).integer(1 << 63))
