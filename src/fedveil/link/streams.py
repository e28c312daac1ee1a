"""The parts of a stream that both ends use: addresses, gRPC's settings, and the greetings.

A follower opens one bidirectional gRPC stream to the leader and sends

    {"kind": "hello", "protocol", "party", "session", "known", "arrived"}

The leader answers with the same fields and the kind "welcome" (see `Greeting`), or ends the stream.
After that, only frames of a `Link` are sent.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Any

from fedveil.base.message import MOST_CARRIED, Value, decode, encode, take
from fedveil.errors import InvalidValue, MessageInvalid, PeerRefused
from fedveil.link.link import PROTOCOL, SESSION_BYTES

# gRPC's own lines on stderr would mix with this program's messages.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

SERVICE, CALL = "fedveil.vertical", "Link"

_MEBIBYTE = 1 << 20
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),  # `Link.send` checks the length
    ("grpc.max_receive_message_length", MOST_CARRIED),
    # Only uncompressed messages (bit 0). A few KB could otherwise become gigabytes of memory.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # A whole tensor may be in transit, without pauses for the window to grow.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 16 * _MEBIBYTE),
    ("grpc.http2.max_frame_size", _MEBIBYTE),
    # A machine that vanishes silently is noticed within half a minute.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # gRPC uses the longer of the two timeouts
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
]


@dataclass(frozen=True)
class Address:
    """The leader's host and port."""

    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str) -> Address:
        """Parse an address written as HOST:PORT, with an IPv6 address in brackets.

        Errors name `option`, the command-line option that stated the address.
        """
        host, colon, port = text.rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise InvalidValue(f"{option} = {text!r} is not HOST:PORT with a port in [0, 65535]")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """True if data that is sent to this address stays on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def check_plaintext(option: str, address: Address) -> None:
    """Raise an error if data sent to `address` without TLS could leave this machine.

    The error names `option`, the command-line option that stated the address.
    """
    if not address.is_loopback:
        raise InvalidValue(
            f"{option} = {address} is not a loopback address: --insecure is for those alone, "
            f"every other needs --tls"
        )


@dataclass(frozen=True)
class Greeting:
    """A party's first message on a stream.

    `session` identifies the sender's process, and `known` the last process of the receiver that the
    sender has met. `arrived` is the number of messages that the sender has received from the
    process `known`.
    """

    party: str
    session: bytes
    known: bytes
    arrived: int

    def to_bytes(self, kind: str) -> bytes:
        fields: dict[str, Value] = {"kind": kind, "protocol": PROTOCOL, **vars(self)}
        return encode(fields)

    @classmethod
    def from_bytes(cls, data: bytes, kind: str, peer: str, party: str) -> Greeting:
        """Decode a greeting of `peer` to `party`. `kind` is "hello" or "welcome".

        Raises PeerRefused if the greeting is malformed, or has another kind or protocol version.
        """
        try:
            message = decode(data)
            spoken = take(message, "protocol", int)
            if spoken != PROTOCOL:
                raise PeerRefused(
                    f"{peer} speaks version {spoken} of the protocol between parties, {party} "
                    f"speaks version {PROTOCOL}: both need the same version of fedveil"
                )
            if take(message, "kind", str) != kind:
                raise MessageInvalid(f"it is not a {kind}")
            session = take(message, "session", bytes)
            if len(session) != SESSION_BYTES:
                raise MessageInvalid(f"its session has {len(session)} bytes")
            return cls(
                party=take(message, "party", str),
                session=session,
                known=take(message, "known", bytes),
                arrived=take(message, "arrived", int),
            )
        except MessageInvalid as error:
            raise PeerRefused(f"{peer} did not greet {party} as a party does: {error}") from None
