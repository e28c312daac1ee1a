"""The phases of a round and what their messages hold.

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

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.errors import MessageInvalid
from fedveil.message import Message, take, take_array
from fedveil.secagg.keys import SEAL_BYTES
from fedveil.secagg.shamir import SHARE_BYTES

Phase: TypeAlias = Literal["advertise", "share", "masked", "consistency", "unmask"]
Fields: TypeAlias = dict[Phase, tuple[str, ...]]

#: Phase -> the fields of the server's message, and of the client's answer.
REQUEST: Fields = {
    "advertise": (),
    "share": ("clients", "cipher_keys", "mask_keys"),
    "masked": ("senders", "sealed"),
    "consistency": ("survivors",),
    "unmask": ("survivors", "dropped"),
}
ANSWER: Fields = {
    "advertise": ("cipher_key", "mask_key"),
    "share": ("sealed", "tags"),
    "masked": ("vector", "refused"),
    "consistency": ("signature",),
    "unmask": ("shares",),
}
#: With active security.
SIGNED_REQUEST: Fields = {
    **REQUEST,
    "share": (*REQUEST["share"], "signatures"),
    "unmask": (*REQUEST["unmask"], "signers", "signatures"),
}
SIGNED_ANSWER: Fields = {**ANSWER, "advertise": (*ANSWER["advertise"], "signature")}

#: A client deals every member a share of its mask's seed and one of its mask key.
SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES

PHASES: tuple[Phase, ...] = tuple(REQUEST)


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


def take_bytes(message: Message, name: str, size: int) -> bytes:
    """So many bytes in the field `name` of an untrusted message."""
    value: bytes = take(message, name, bytes)
    if len(value) != size:
        raise MessageInvalid(f"field {name} has the wrong length")
    return value


def take_rows(message: Message, name: str, count: int, size: int) -> list[bytes]:
    """So many strings of so many bytes in the field `name` of an untrusted message."""
    return [row.tobytes() for row in take_array(message, name, "uint8", (count, size))]


def as_rows(rows: Sequence[bytes], size: int) -> npt.NDArray[np.uint8]:
    """Strings of so many bytes each as a field."""
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), size)
