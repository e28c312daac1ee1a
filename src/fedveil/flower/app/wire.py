"""What both sides know about the messages between them."""

from __future__ import annotations

from fedveil.rounds.answers import ClientId

#: How the reason of a client that refuses to report begins, in its error reply.
WITHHELD = "withheld: "
#: The record of the offer, beside that of the protection's message.
OFFER = "fedveil.offer"
#: The record of the time at which an answer to an evaluation leaves.
TIME = "fedveil.time"
ANSWER_AFTER_S = "answer_after_s"


def number_of(node: int) -> ClientId:
    """Flower's number of a client, 64 bits without a sign, as one that fits an int64."""
    return node - (1 << 64) if node >> 63 else node


def node_of(client: ClientId) -> int:
    """Flower's number of a client."""
    return client % (1 << 64)
