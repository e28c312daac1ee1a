"""The phases of a round, and the fields of their messages.

Every message also has the fields `phase` and `round`. The members of a neighbourhood are a client
and its neighbours in the masking graph. In an array with a row for each member, the rows are in the
ascending order of the members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from fedveil.base.array_types import Uint8s
from fedveil.base.message import Message, Value, encoded_bytes, take, take_array
from fedveil.base.packing import packed_size
from fedveil.errors import MessageInvalid
from fedveil.secagg.keys import KEY_BYTES, SEAL_BYTES, SIGNATURE_BYTES
from fedveil.secagg.shamir import MAX_POINTS, SHARE_BYTES
from fedveil.secagg.share_tags import TAG_BYTES
from fedveil.secagg.terms import Terms

Phase: TypeAlias = Literal["advertise", "share", "masked", "consistency", "unmask"]
#: Phase -> the fields of the server's message, and of a client's answer.
Fields: TypeAlias = dict[Phase, tuple[tuple[str, ...], tuple[str, ...]]]

FIELDS: Fields = {
    # Two public keys.
    "advertise": ((), ("cipher_key", "mask_key")),
    # The neighbourhood's keys; encrypted shares of the client's two secrets, and their tags.
    "share": (("clients", "cipher_keys", "mask_keys"), ("sealed", "tags")),
    # Encrypted shares for the client, and their tags; its masked vector, and the dealers of invalid
    # shares.
    "masked": (("senders", "sealed", "tags"), ("vector", "refused")),
    # The clients in the sum; a signature of that list (active security only).
    "consistency": (("survivors",), ("signature",)),
    # The clients in the sum and the others; a share of each client's seed or of its key.
    "unmask": (("survivors", "dropped"), ("shares",)),
}
#: With active security.
SIGNED_FIELDS: Fields = {
    **FIELDS,
    "advertise": ((), ("cipher_key", "mask_key", "signature")),
    "share": (("clients", "cipher_keys", "mask_keys", "signatures"), ("sealed", "tags")),
    "unmask": (("survivors", "dropped", "signers", "signatures"), ("shares",)),
}

#: A client deals every member a share of its mask's seed and one of its mask key.
SEALED_BYTES = 2 * SHARE_BYTES + SEAL_BYTES

#: An answer's field -> an example of the greatest length, given the neighbourhood's size.
_LONGEST: Mapping[str, Callable[[Terms, int], Value]] = {
    "cipher_key": lambda terms, members: bytes(KEY_BYTES),
    "mask_key": lambda terms, members: bytes(KEY_BYTES),
    "signature": lambda terms, members: bytes(SIGNATURE_BYTES),
    "sealed": lambda terms, members: np.empty((members, SEALED_BYTES), np.uint8),
    "tags": lambda terms, members: np.empty((2 * members, TAG_BYTES), np.uint8),
    "vector": lambda terms, members: np.empty(packed_size(terms.length, terms.bits), np.uint8),
    "refused": lambda terms, members: as_ids(range(members - 1)),
    "shares": lambda terms, members: np.empty((members, SHARE_BYTES), np.uint8),
}

PHASES: tuple[Phase, ...] = tuple(FIELDS)
#: The phase in which a client's message depends on its vector.
TRAINS: Phase = "masked"


def longest_answer(phase: Phase, terms: Terms, members: int) -> int:
    """Return the number of bytes of the longest answer that an honest client sends in `phase`.

    `terms` are the round's terms, and `members` is the number of clients in a neighbourhood.
    """
    names = (SIGNED_FIELDS if terms.active_security else FIELDS)[phase][1]
    answer = {name: _LONGEST[name](terms, members) for name in names}
    return encoded_bytes({"phase": phase, "round": terms.round, **answer})


def take_ids(message: Message, name: str, most: int = MAX_POINTS) -> list[int]:
    """Read client numbers from the field `name` of an untrusted message.

    Raises `MessageInvalid` if they are not in ascending order, or if there are more than `most`.
    """
    array: np.ndarray = take(message, name, np.ndarray)
    if array.dtype != np.int64 or array.ndim != 1:
        raise MessageInvalid(f"field {name} is missing or malformed")
    if len(array) > most:
        raise MessageInvalid(f"field {name} names {len(array)} clients, {most} are the most")
    if (array[1:] <= array[:-1]).any():
        raise MessageInvalid(f"field {name} is out of order or repeats a client")
    ids: list[int] = array.tolist()
    return ids


def as_ids(clients: Sequence[int]) -> np.ndarray:
    return np.array(clients, np.int64)


def take_bytes(message: Message, name: str, size: int) -> bytes:
    """Read a byte string from the field `name` of an untrusted message.

    Raises `MessageInvalid` if it does not have exactly `size` bytes.
    """
    value: bytes = take(message, name, bytes)
    if len(value) != size:
        raise MessageInvalid(f"field {name} has the wrong length")
    return value


def as_rows(rows: Sequence[bytes], size: int) -> Uint8s:
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), size)


def take_rows(message: Message, name: str, count: int, size: int) -> list[bytes]:
    """Read a list of byte strings from the field `name` of an untrusted message.

    Raises `MessageInvalid` unless it has exactly `count` strings of `size` bytes each.
    """
    return [row.tobytes() for row in take_array(message, name, "uint8", (count, size))]


def take_table(message: Message, ids: str, name: str, size: int) -> dict[int, bytes]:
    """Read a mapping of clients to byte strings from two fields of an untrusted message.

    The field `ids` has the clients in ascending order, and the field `name` their strings of `size`
    bytes. Raises `MessageInvalid` if a field has another form.
    """
    clients = take_ids(message, ids)
    return dict(zip(clients, take_rows(message, name, len(clients), size), strict=True))


def as_table(ids: str, name: str, table: Mapping[int, bytes], size: int) -> dict[str, Value]:
    """Return `table`, a mapping of clients to strings of `size` bytes, as two message fields.

    The field `ids` has the clients, and the field `name` their strings.
    """
    clients = sorted(table)
    return {ids: as_ids(clients), name: as_rows([table[c] for c in clients], size)}
