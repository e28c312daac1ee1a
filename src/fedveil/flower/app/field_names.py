"""Field names and client numbers that client and server share in their messages."""

from __future__ import annotations

from fedveil.rounds.outcomes import ClientId

#: Prefix of the reason in the error reply of a client that refuses to report.
WITHHELD = "withheld: "
#: The record of the offer, beside the protection's message.
OFFER = "fedveil.offer"
#: The record of the time at which an answer to an evaluation leaves.
TIME = "fedveil.time"
ANSWER_AFTER_S = "answer_after_s"


def number_of(node: int) -> ClientId:
    """Convert a Flower node number, an unsigned 64-bit integer, to a client number in an int64."""
    return node - (1 << 64) if node >> 63 else node


def node_of(client: ClientId) -> int:
    return client % (1 << 64)
