"""The two sides of a protection's round, and the messages between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.message import Message, decode, encode
from fedveil.entropy import Entropy, Seeded
from fedveil.protections.base import ClientContext, RoundContext

#: The number of the round unless a test gives one.
ROUND = 7


def server_half(
    protection: Any,
    cohort: Sequence[int],
    model: npt.ArrayLike,
    *,
    state: Any = None,
    number: int = ROUND,
) -> Any:
    """Return the server's side of one round, the first of its run if there is no `state`."""
    state = protection.initial_state() if state is None else state
    return protection.server_round(
        RoundContext(cohort, number, np.asarray(model, np.float32), state)
    )


def client_half(
    protection: Any,
    client: int,
    model: npt.ArrayLike,
    *,
    examples: int = 9,
    entropy: Entropy | None = None,
    number: int = ROUND,
) -> Any:
    """Return one client's side of the round."""
    entropy = Seeded(0, "client", client) if entropy is None else entropy
    weights = np.asarray(model, np.float32)
    return protection.client_round(ClientContext(client, number, weights, examples, entropy))


def report_of(half: Any, opening: Message, update: npt.ArrayLike) -> Message:
    """Return a client's report on the server's opening, with both messages encoded and decoded."""
    given = decode(encode(opening))
    assert half.wants_update(given)
    return decode(encode(half.respond(given, np.asarray(update, np.float32))))
