"""A fedveil message in Flower's records, and back.

A message travels as the bytes of its one encoding in a ConfigRecord of its own; nothing else may
stand beside it, so that nothing leaves a client unnoticed and the length of those bytes is what
every table calls upload bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ConfigRecord, RecordDict

from fedveil.errors import MessageInvalid
from fedveil.message import Message, Value, check_carried, decode, encode, only_fields, take
from fedveil.protections.base import Protection

#: The record of a protection's message.
MESSAGE = "fedveil"
#: The records of what an engine says beside it: to whom, and what is the same for all clients, so
#: that Flower, which finds an object by the digest of its content, stores it once.
ADDRESS, COMMON = "fedveil.address", "fedveil.common"
_FIELD = "encoded"


def to_records(message: Message) -> RecordDict:
    """`message` as records."""
    return encoded_records(encode(message))


def encoded_records(message: bytes) -> RecordDict:
    """The records of the message with this encoding."""
    return RecordDict({MESSAGE: ConfigRecord({_FIELD: message})})


def common_record(common: Message) -> ConfigRecord:
    """What an engine says to all clients alike; one object serves all of their messages."""
    return ConfigRecord({_FIELD: encode(common)})


def addressed_records(client: int, message: bytes, common: ConfigRecord) -> RecordDict:
    """An engine's records for `client`: the message with this encoding, and what all are told."""
    records = encoded_records(message)
    records[ADDRESS] = ConfigRecord({_FIELD: encode({"client": client})})
    records[COMMON] = common
    return records


def from_records(records: RecordDict) -> dict[str, Value]:
    """The message in records that hold one and nothing else; raises `MessageInvalid`."""
    return decode(encoded_message(records))


def from_addressed_records(records: RecordDict) -> tuple[int, dict[str, Value], dict[str, Value]]:
    """For whom it is, the message, and what all are told; raises `MessageInvalid`."""
    address, message, common = map(decode, _encoded(records, ADDRESS, MESSAGE, COMMON))
    only_fields(address, "client")
    return take(address, "client", int), message, common


def encoded_message(records: RecordDict) -> bytes:
    """The encoding in records that hold one message and nothing else; raises `MessageInvalid`."""
    return _encoded(records, MESSAGE)[0]


def check_report(protection: Protection) -> None:
    """Refuse reports that no record carries: Flower cuts arrays, and nothing else."""
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
