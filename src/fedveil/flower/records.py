"""Encodes a fedveil message in Flower's records, and decodes it.

A message is sent as its bytes, in one ConfigRecord, and the records contain nothing else. So
nothing leaves a client unnoticed. The number of these bytes is the upload size in a run's record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedveil.base.message import (
    Message,
    Value,
    check_carried,
    decode,
    encode,
    quoted,
    take,
    take_array,
)
from fedveil.errors import MessageInvalid
from fedveil.protections.base import Protection

#: The record of a protection's message.
MESSAGE = "fedveil"
#: The records of an engine's own fields: the addressee, and the fields common to all clients.
#: Flower finds objects by the digest of their content, so it stores equal records only once.
ADDRESS, COMMON = "fedveil.address", "fedveil.common"
_FIELD = "encoded"
#: In a message to several clients: the field with the index of a client's message, and the pattern
#: of the fields' names, which are client numbers.
_PLACE = "message"
_CLIENT = re.compile(r"0|[1-9][0-9]{0,8}")
#: The client's number, the message, and the engine's common and own fields.
Addressed: TypeAlias = tuple[int, dict[str, Value], dict[str, Value]]
_CLIENTS = "clients"
#: The largest number of names that an error about an unknown message lists.
_MOST_LISTED = 5


def to_records(message: Message) -> RecordDict:
    return encoded_records(encode(message))


def encoded_records(message: bytes) -> RecordDict:
    return RecordDict({MESSAGE: ConfigRecord({_FIELD: message})})


def common_record(common: Message) -> ConfigRecord:
    """Encode the fields for all clients as a record, which all messages share."""
    return ConfigRecord({_FIELD: encode(common)})


def addressed_records(
    client: int, message: bytes, common: ConfigRecord, own: Message | None = None
) -> RecordDict:
    """Return the records of a message to one client, whose number is `client`.

    `message` is the encoded message. `common` has the fields for all clients, and `own` the fields
    that only this client gets.
    """
    records = encoded_records(message)
    records[ADDRESS] = ConfigRecord({_FIELD: encode({"client": client, **(own or {})})})
    records[COMMON] = common
    return records


def bundled_records(
    messages: Mapping[int, bytes], common: ConfigRecord, own: Mapping[int, Message]
) -> RecordDict:
    """Return the records for a node with several clients, from each client's encoded message.

    `common` has the fields for all clients, and `own` the fields that only one client gets, by
    client. Equal messages are included only once.
    """
    places = {message: at for at, message in enumerate(dict.fromkeys(messages.values()))}
    address = {str(c): encode({**own[c], _PLACE: places[m]}) for c, m in messages.items()}
    records = to_records({str(at): message for message, at in places.items()})
    records[ADDRESS] = ConfigRecord({_FIELD: encode(address)})
    records[COMMON] = common
    return records


def from_records(records: RecordDict) -> dict[str, Value]:
    """Decode the message in `records`. Raises `MessageInvalid` for any other content."""
    return decode(encoded_message(records))


def from_addressed_records(records: RecordDict) -> Addressed:
    """Decode `addressed_records`: the client's number, its message, and all other fields."""
    address, message, common = map(decode, _encoded(records, ADDRESS, MESSAGE, COMMON))
    client = take(address, "client", int)
    return client, message, _with_own(common, address, "client")


def from_bundled_records(records: RecordDict) -> Iterator[Addressed]:
    """Decode `bundled_records`. Yields each client's number, its message and all other fields."""
    addresses, messages, common = map(decode, _encoded(records, ADDRESS, MESSAGE, COMMON))
    for name in addresses:
        if not _CLIENT.fullmatch(name):
            raise MessageInvalid("an address is no client's number")
        own = decode(take(addresses, name, bytes))
        message = decode(take(messages, str(take(own, _PLACE, int)), bytes))
        yield int(name), message, _with_own(common, own, _PLACE)


def naming(clients: Sequence[int]) -> RecordDict:
    """Encode the client numbers `clients` as a message. `named_clients` decodes it."""
    return to_records({_CLIENTS: np.array(clients, np.int64)})


def named_clients(records: RecordDict) -> list[int]:
    named: list[int] = take_array(from_records(records), _CLIENTS, np.int64, (None,)).tolist()
    return named


def _with_own(common: Message, own: Message, without: str) -> dict[str, Value]:
    fields = {name: value for name, value in own.items() if name != without}
    if twice := fields.keys() & common.keys():
        raise MessageInvalid(f"field {quoted(min(twice))} is there twice")
    return {**common, **fields}


def encoded_message(records: RecordDict) -> bytes:
    """Return the encoded message in `records`. Raises `MessageInvalid` for any other content."""
    return _encoded(records, MESSAGE)[0]


def check_report(protection: Protection) -> None:
    """Raise an error if the protection's reports are too long for Flower to carry."""
    what = f"a report under protection.name = {protection.name} of {protection.dimension:,} numbers"
    check_carried(what, protection.longest_report())


def _encoded(records: RecordDict, *names: str) -> list[bytes]:
    if set(records) != set(names):
        raise MessageInvalid(
            f"a message holds the records {_listed(records)}, a message of fedveil holds "
            f"{_listed(dict.fromkeys(names))} alone"
        )
    return [_field(name, records[name]) for name in names]


def _field(name: str, record: object) -> bytes:
    if not isinstance(record, ConfigRecord):
        raise MessageInvalid(f"the record {name} is a {type(record).__name__}, not a ConfigRecord")
    if set(record) != {_FIELD}:
        raise MessageInvalid(
            f"the record {name} holds {_listed(record)}, a message of fedveil holds {_FIELD} alone"
        )
    value = record[_FIELD]
    if not isinstance(value, bytes):
        raise MessageInvalid(f"the record {name} holds a {type(value).__name__}, not bytes")
    return value


def _listed(names: Mapping[str, object]) -> str:
    shown = sorted(map(quoted, islice(names, _MOST_LISTED)))
    more = [f"{len(names) - _MOST_LISTED:,} more"] if len(names) > _MOST_LISTED else []
    return ", ".join([*shown, *more]) or "nothing"
