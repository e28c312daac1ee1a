"""The phases of a round and what they say: the one table of the protocol.

    phase        the server sends                      a client answers
    advertise    round                                 two public keys (signed)
    share        its neighbourhood's keys              its secrets' shares, sealed, and their tags
    masked       the shares that are meant for it      its masked vector; what it could not open
    consistency  who is in the sum                     that list, signed (active_security only)
    unmask       who is in the sum and who is not      one share of each: of the mask seed of
                 (and the signatures)                  who is, of the mask key of who is not

Every message also carries `phase` and `round`. A neighbourhood is a client and its neighbours in
the masking graph, in ascending order; arrays with a row for each member keep that order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from fedveil.errors import MessageInvalid
from fedveil.message import Message, only_fields, take
from fedveil.secagg.keys import SEAL_BYTES
from fedveil.secagg.shamir import SHARE_BYTES

Phase: TypeAlias = Literal["advertise", "share", "masked", "consistency", "unmask"]

#: Phase -> the fields of the server's message, and of the client's answer.
REQUEST: dict[Phase, tuple[str, ...]] = {
    "advertise": (),
    "share": ("clients", "cipher_keys", "mask_keys"),
    "masked": ("senders", "sealed"),
    "consistency": ("survivors",),
    "unmask": ("survivors", "dropped"),
}
ANSWER: dict[Phase, tuple[str, ...]] = {
    "advertise": ("cipher_key", "mask_key"),
    "share": ("sealed", "tags"),
    "masked": ("vector", "refused"),
    "consistency": ("signature",),
    "unmask": ("shares",),
}
#: What active security adds to them.
SIGNED_REQUEST: dict[Phase, tuple[str, ...]] = {
    "share": ("signatures",),
    "unmask": ("signers", "signatures"),
}
SIGNED_ANSWER: dict[Phase, tuple[str, ...]] = {"advertise": ("signature",)}

#: A client deals every member a share of its mask's seed and one of its mask key.
SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES

PHASES: tuple[Phase, ...] = tuple(REQUEST)
#: The phase in which what a client sends depends on its vector.
TRAINS: Phase = "masked"


def flow(active_security: bool) -> tuple[Phase, ...]:
    """The phases of a round, in their order: every legal transition is from one to the next."""
    return tuple(p for p in PHASES if active_security or p != "consistency")


def check_fields(
    message: Message,
    phase: Phase,
    fields: Mapping[Phase, tuple[str, ...]],
    signed: Mapping[Phase, tuple[str, ...]] | None,
) -> None:
    """Refuse a message of `phase` that holds other fields than the table says."""
    more = (signed or {}).get(phase, ())
    only_fields(message, "phase", "round", *fields[phase], *more)


def take_ids(message: Message, name: str) -> list[int]:
    """The client numbers in the field `name` of an untrusted message, ascending."""
    array: np.ndarray = take(message, name, np.ndarray)
    if array.dtype != np.int64 or array.ndim != 1:
        raise MessageInvalid(f"field {name} is missing or malformed")
    ids: list[int] = array.tolist()
    if any(one >= other for one, other in pairwise(ids)):
        raise MessageInvalid(f"field {name} is out of order or repeats a client")
    return ids


def as_ids(clients: Sequence[int]) -> np.ndarray:
    """Client numbers as a field."""
    return np.array(clients, np.int64)
