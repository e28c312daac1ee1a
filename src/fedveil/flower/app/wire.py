"""What both sides know about the messages between them."""

from __future__ import annotations

from fedveil.message import Message
from fedveil.protections.base import ClientId
from fedveil.secagg.phases import PHASES, Phase

#: How the reason of a client that refuses to report begins, in its error reply.
WITHHELD = "withheld: "
#: The record of the offer, beside that of the protection's message.
OFFER = "fedveil.offer"


def number_of(node: int) -> ClientId:
    """Flower's number of a client, 64 bits without a sign, as one that fits an int64."""
    return node - (1 << 64) if node >> 63 else node


def node_of(client: ClientId) -> int:
    """Flower's number of a client."""
    return client % (1 << 64)


def phase_of(words: Message) -> Phase | None:
    """Which phase a protection's message opens; None where a lone report is asked for."""
    return next((phase for phase in PHASES if phase == words.get("phase")), None)


def wants_training(words: Message) -> bool:
    """Whether the answer to a protection's message is a report on the update."""
    return phase_of(words) in (None, "masked")
