"""Messages: flat mappings of names to arrays, bytes and scalars, with one binary encoding.

Tables of a run's results show the length of the encoding as "upload bytes", both in simulation and
over a network. The encoding is canonical (names sorted, shortest lengths, nothing after the end)
and contains only data. Decoding checks every length before it reads. Hostile bytes raise
`MessageInvalid` and have no other effect.

    message := b"\\xfe\\x01" field*
    field   := length(name) name kind payload
    kind    := b"i" zigzag varint            integer
             | b"f" float64, little endian   real number
             | b"?" one byte, 0 or 1         truth value
             | b"s" length utf-8             text
             | b"b" length bytes             bytes
             | b"a" dtype ndim dim* data     array, C order, little endian
    dtype   := one letter, see DTYPES;  lengths and dims are varints
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array
from fedveil.errors import MessageInvalid, MessageTooLong

Value: TypeAlias = int | float | bool | str | bytes | Array
Message: TypeAlias = Mapping[str, Value]

MAGIC = b"\xfe\x01"
DTYPES = {
    b"?": "|b1", b"b": "|i1", b"B": "|u1", b"h": "<i2", b"H": "<u2", b"i": "<i4", b"I": "<u4",
    b"q": "<i8", b"Q": "<u8", b"e": "<f2", b"f": "<f4", b"d": "<f8",
}  # fmt: skip
_LETTERS = {np.dtype(name): letter for letter, name in DTYPES.items()}
_MAX_DIMENSIONS = 8
_MAX_VARINT_BITS = 128
#: A field of a few bytes takes some hundred bytes of memory once it is decoded.
_MAX_FIELDS = 1 << 20
#: gRPC and protobuf count a message's bytes in 31 bits. The transport's own fields take some of
#: them.
MOST_CARRIED = (1 << 31) - (1 << 16)
#: The most characters or bytes of a peer's field that an error quotes.
_MOST_QUOTED = 60


def encode(message: Message, *, header: bytes = b"") -> bytes:
    """Return the canonical encoding of `message`, preceded by the transport's `header`."""
    return b"".join([header, *encoded_parts(message)])


def encoded_bytes(message: Message) -> int:
    """Return the length in bytes of the encoding of `message`, without building the encoding."""
    return sum(map(len, encoded_parts(message)))


def check_carried(what: str, size: int) -> None:
    """Raise `MessageTooLong` if `size` bytes do not fit into one message. `what` names the data."""
    if size > MOST_CARRIED:
        raise MessageTooLong(
            f"{what} is a message of {size:,} bytes, but a message between machines has at most "
            f"{MOST_CARRIED:,}"
        )


def encoded_parts(message: Message) -> list[bytes | memoryview]:
    """Return the encoding of `message` as a list of pieces. Large arrays are not copied."""
    if len(message) > _MAX_FIELDS:
        raise MessageInvalid(f"{len(message):,} fields do not fit a message")
    parts: list[bytes | memoryview] = [MAGIC]
    for name in sorted(message):
        raw = name.encode()
        parts += [_varint(len(raw)), raw, *_encode_value(name, message[name])]
    return parts


def decode(
    data: bytes | memoryview, longest: int | None = None, *, last: str | None = None
) -> dict[str, Value]:
    """Return the message that `data` encodes. Arrays are read-only. Aligned ones are not copied.

    Raises `MessageInvalid` for invalid data, and for data of more than `longest` bytes (None: no
    limit). The bytes after the field `last` are ignored.
    """
    if longest is not None and len(data) > longest:
        raise MessageInvalid(
            f"the message has {len(data)} bytes, but at most {longest} are allowed here"
        )
    reader = _Reader(memoryview(data).toreadonly().cast("B"))
    if reader.take(len(MAGIC)) != MAGIC:
        raise MessageInvalid("the bytes do not start like a message of this version")
    message: dict[str, Value] = {}
    previous = ""
    while reader.remaining and previous != last:
        name = reader.text(reader.varint())
        if message and name <= previous:
            raise MessageInvalid(f"the field {quoted(name)} is repeated or out of order")
        if len(message) == _MAX_FIELDS:
            raise MessageInvalid(f"the message has more than {_MAX_FIELDS:,} fields")
        message[name] = reader.value()
        previous = name
    return message


def take(message: Message, name: str, kind: type[Any]) -> Any:
    """Return a field of an untrusted message. Raises `MessageInvalid` unless its type is `kind`."""
    value = message.get(name)
    if value is None or type(value) is not kind:
        raise MessageInvalid(f"field {name} is missing or malformed")
    return value


def text_in(message: Message, name: str) -> str | None:
    """Return a field of an untrusted message if it is text, otherwise None.

    Use it to compare a field with a word, because an array cannot be compared with text.
    """
    value = message.get(name)
    return value if isinstance(value, str) else None


def int_in(message: Message, name: str) -> int | None:
    """Return a field of an untrusted message if it is a whole number, otherwise None."""
    value = message.get(name)
    return value if type(value) is int else None


def quoted(value: object) -> str:
    """Format a value from an untrusted message for an error or a log.

    The result is short, on one line, and has no control characters.
    """
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with the shape {value.shape}"
    if not isinstance(value, str | bytes) or len(value) <= _MOST_QUOTED:
        return repr(value)
    unit = "characters" if isinstance(value, str) else "bytes"
    return f"{value[:_MOST_QUOTED]!r}... ({len(value):,} {unit})"


def check_kind(message: Message, kind: str, sender: str = "it") -> None:
    """Raise `MessageInvalid` unless the field "kind" of an untrusted message is `kind`.

    The error begins with `sender`, a name for the party or machine that sent the message.
    """
    if text_in(message, "kind") != kind:
        found = quoted(message.get("kind"))
        raise MessageInvalid(f"{sender} sent {found} where {kind!r} was due")


def take_array(
    message: Message, name: str, dtype: npt.DTypeLike, shape: tuple[int | None, ...]
) -> Array:
    """Return the array `name` of an untrusted message.

    Raises `MessageInvalid` unless it has this dtype and shape. A None in `shape` allows any size.
    """
    value: Array = take(message, name, np.ndarray)
    if value.dtype != np.dtype(dtype):
        raise MessageInvalid(f"field {name} has the wrong type")
    if value.ndim != len(shape) or any(
        size not in (None, found) for size, found in zip(shape, value.shape, strict=True)
    ):
        raise MessageInvalid(f"field {name} has the wrong length")
    return value


def only_fields(message: Mapping[str, Value], *names: str) -> None:
    """Raise `MessageInvalid` unless an untrusted message has exactly the fields `names`."""
    if set(message) != set(names):
        raise MessageInvalid("fields are missing or unknown")


def _encode_value(name: str, value: Value) -> list[bytes | memoryview]:
    if isinstance(value, bool | np.bool_):
        return [b"?", b"\x01" if value else b"\x00"]
    if isinstance(value, int | np.integer):
        return [b"i", _varint(_zigzag(int(value)))]
    if isinstance(value, float | np.floating):
        return [b"f", struct.pack("<d", value)]
    if isinstance(value, str):
        raw = value.encode()
        return [b"s", _varint(len(raw)), raw]
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)  # an item of a memoryview may have several bytes
        return [b"b", _varint(len(raw)), raw]
    if isinstance(value, np.ndarray):
        letter = _LETTERS.get(value.dtype.newbyteorder("<"))
        if letter is None or value.ndim > _MAX_DIMENSIONS:
            raise MessageInvalid(
                f"the field {name!r} is an array of dtype {value.dtype} and {value.ndim} "
                f"dimensions, which a message cannot hold"
            )
        data = np.ascontiguousarray(value, DTYPES[letter])
        shape = b"".join(map(_varint, value.shape))
        return [b"a", letter, _varint(value.ndim), shape, data.reshape(-1).view(np.uint8).data]
    raise MessageInvalid(
        f"the field {name!r} is a {type(value).__name__}, which a message cannot hold"
    )


def _zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def _varint(value: int) -> bytes:
    if value.bit_length() > _MAX_VARINT_BITS:
        raise MessageInvalid(f"{value} does not fit a message")
    out = bytearray()
    while value > 0x7F:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    out.append(value)
    return bytes(out)


def prefixed(prefix: str, fields: Message) -> dict[str, Value]:
    """Rename each field to `<prefix>.<name>`, so that groups of fields can share a message."""
    return {f"{prefix}.{name}": value for name, value in fields.items()}


def within(prefix: str, state: Message) -> Message:
    """Return the fields of `state` whose names begin with `<prefix>.`, with this prefix removed."""
    start = f"{prefix}."
    return {name.removeprefix(start): of for name, of in state.items() if name.startswith(start)}


class _Reader:
    """Reads untrusted bytes in order. Every read first checks how many bytes are left."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        if size > self.remaining:
            raise MessageInvalid(f"the message is cut short: {size} bytes are missing")
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if byte == 0 and shift > 7:
                    raise MessageInvalid("a number is not in its shortest form")
                return value
            if shift > _MAX_VARINT_BITS + 7:
                raise MessageInvalid("a number is too long")

    def text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise MessageInvalid("a text is not UTF-8") from None

    def value(self) -> Value:
        kind = bytes(self.take(1))
        match kind:
            case b"i":
                code = self.varint()
                return -(code >> 1) - 1 if code & 1 else code >> 1
            case b"f":
                return float(struct.unpack("<d", self.take(8))[0])
            case b"?":
                byte = self.take(1)[0]
                if byte > 1:
                    raise MessageInvalid(f"a truth value is {byte}, not 0 or 1")
                return bool(byte)
            case b"s":
                return self.text(self.varint())
            case b"b":
                return bytes(self.take(self.varint()))
            case b"a":
                return self.array()
        raise MessageInvalid(f"a field has the unknown kind {kind!r}")

    def array(self) -> Array:
        name = DTYPES.get(bytes(self.take(1)))
        dimensions = self.varint()
        if name is None or dimensions > _MAX_DIMENSIONS:
            raise MessageInvalid("an array has an unknown type or too many dimensions")
        dtype = np.dtype(name)
        shape = tuple(self.varint() for _ in range(dimensions))
        data = self.take(math.prod(shape) * dtype.itemsize)
        if dtype.kind == "b" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
            raise MessageInvalid("an array of truth values holds other bytes than 0 and 1")
        try:
            array = np.frombuffer(data, dtype).reshape(shape)
        except (ValueError, OverflowError):
            raise MessageInvalid(f"an array cannot have the shape {shape}") from None
        if array.flags.aligned:
            return array
        array = array.copy()
        array.flags.writeable = False
        return array
