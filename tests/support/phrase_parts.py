"""Rows of tokens by client, and a model of pairs of tokens that memorises them in seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

TOKENS, LENGTH, CLIENTS, EACH = 40, 11, 40, 5
#: The numbers of examples of the clients of `uneven`.
SIZES = (3, 7, 1, 4, 2, 5)


def data() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    rows = rng.integers(0, TOKENS, (CLIENTS * EACH + 30, LENGTH + 1))
    rows[:, 1::2] = rows[:, ::2]  # a token stands twice
    return {
        "x_train": rows[: CLIENTS * EACH],
        "x_test": rows[CLIENTS * EACH :],
        "client_ids": np.repeat(np.arange(CLIENTS), EACH),
        "classes": TOKENS,
    }


def uneven() -> dict[str, Any]:
    owners = np.repeat(np.arange(len(SIZES)), SIZES)
    return data() | {"x_train": data()["x_train"][: len(owners)], "client_ids": owners}


def pairs(classes: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(classes, 32), nn.Linear(32, classes))
