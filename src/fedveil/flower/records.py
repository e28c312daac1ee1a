"""Encodes a fedveil message in Flower's records, and decodes it.

A message is sent as its bytes, in one ConfigRecord. The records contain nothing else. So nothing
leaves a client unnoticed, and the length of the bytes is the upload size in all tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ConfigRecord, RecordDict

from fedveil.base.message import Message, Value, check_carried, decode, encode, take
from fedveil.errors import MessageInvalid
from fedveil.protections.base import Protection

#: The record of a protection's message.
MESSAGE = "fedveil"
#: The records of an engine's own fields: the addressee, and the fields common to all clients.
#: Flower stores an object once, since it finds it by the digest of its content.
ADDRESS, COMMON = "fedveil.address", "fedveil.common"
_FIELD = "encoded"


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
    """Return the records of a message to `client`.

    They also contain the fields `common` to all clients, and the client's `own` fields.
    """
    records = encoded_records(message)
    records[ADDRESS] = ConfigRecord({_FIELD: encode({"client": client, **(own or {})})})
    records[COMMON] = common
    return records


def from_records(records: RecordDict) -> dict[str, Value]:
    """Decode records that contain one message and nothing else. Raises `MessageInvalid`."""
    return decode(encoded_message(records))


def from_addressed_records(records: RecordDict) -> tuple[int, dict[str, Value], dict[str, Value]]:
    """Decode the records of `addressed_records`: client number, message and other fields."""
    address, message, common = map(decode, _encoded(records, ADDRESS, MESSAGE, COMMON))
    client = take(address, "client", int)
    own = {name: value for name, value in address.items() if name != "client"}
    if twice := own.keys() & common.keys():
        raise MessageInvalid(f"field {min(twice)} is there twice")
    return client, message, {**common, **own}


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
    return ", ".join(sorted(map(repr, names))) or "nothing"
