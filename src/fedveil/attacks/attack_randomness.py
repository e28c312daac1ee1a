"""The attacker's random numbers, which are seeded so that an attack can be repeated."""

from __future__ import annotations

import torch

from fedveil.entropy import Seeded


def generator(seed: int, *path: int | str) -> torch.Generator:
    """Return a torch generator for one purpose. Equal arguments give equal random numbers.

    `seed` is the job's seed. `path` names the purpose by texts and numbers, such as "gradient",
    "cohort", 3.
    """
    return torch.Generator().manual_seed(Seeded(seed, "attack", *path).integer(1 << 63))
