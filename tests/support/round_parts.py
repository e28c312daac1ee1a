"""The two halves of a protection's round, and what travels between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.message import Message, decode, encode
from fedveil.entropy import Entropy, Seeded
from fedveil.protections.base import ClientContext, RoundContext

#: The round that is played where a test does not say which.
ROUND = 7


def server_half(
    protection: Any,
    cohort: Sequence[int],
    model: npt.ArrayLike,
    *,
    state: Any = None,
    number: int = ROUND,
) -> Any:
    """The server's half of one round, of a run that begins with it where no state is given."""
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
    """One client's half of the round."""
    entropy = Seeded(0, "client", client) if entropy is None else entropy
    weights = np.asarray(model, np.float32)
    return protection.client_round(ClientContext(client, number, weights, examples, entropy))


def report_of(half: Any, opening: Message, update: npt.ArrayLike) -> Message:
    """What a client sends to a server whose opening it was given: both over the wire."""
    given = decode(encode(opening))
    assert half.wants_update(given)
    return decode(encode(half.respond(given, np.asarray(update, np.float32))))
