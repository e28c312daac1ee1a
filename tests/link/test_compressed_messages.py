"""Messages that a peer has compressed, and the longest message."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from fedveil.base.message import MOST_CARRIED
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.listener import Listener
from fedveil.link.streams import CALL, OPTIONS, SERVICE, Address, Greeting

LOOPBACK, PATIENCE_S = Address("127.0.0.1", 0), 60.0
#: A frame with message 1. Compressed, it has a few KB.
BOMB = struct.pack("<QQB", 1, 0, 1) + bytes(4 << 20)
ANY_SIZE = [("grpc.max_send_message_length", -1)]


def test_a_leader_never_unpacks_a_message_that_a_follower_compresses() -> None:
    lead, calls = Link("bank", patience_s=PATIENCE_S), list[Any]()

    def frames() -> Iterator[bytes]:
        yield Greeting("bank", bytes(16), b"", 0).to_bytes("hello")
        yield BOMB
        while not lead._inbox:
            time.sleep(0.01)
        calls[0].cancel()

    with (
        Listener(LOOPBACK, {"bank": lead}, "lead", None, print) as listener,
        grpc.insecure_channel(
            str(listener.address), ANY_SIZE, compression=grpc.Compression.Gzip
        ) as channel,
    ):
        calls.append(channel.stream_stream(f"/{SERVICE}/{CALL}")(frames(), timeout=PATIENCE_S))
        with pytest.raises(grpc.RpcError) as refused:
            list(calls[0])
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert not lead._streams


def test_a_follower_never_unpacks_a_message_that_a_leader_compresses() -> None:
    def welcomed(frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(frames)
        yield Greeting("lead", bytes(16), b"", 0).to_bytes("welcome")
        yield BOMB
        ended.wait()

    ended, calls = threading.Event(), {CALL: grpc.stream_stream_rpc_method_handler(welcomed)}
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(
            threads,
            handlers=[grpc.method_handlers_generic_handler(SERVICE, calls)],
            options=ANY_SIZE,
            compression=grpc.Compression.Gzip,
        )
        address = Address("127.0.0.1", server.add_insecure_port("127.0.0.1:0"))
        server.start()
        link = Link("lead", patience_s=PATIENCE_S)
        with Dialer(address, link, "bank", None):
            end = time.monotonic() + PATIENCE_S
            while "gzip" not in link._down_why and not link._inbox and time.monotonic() < end:
                time.sleep(0.01)
            arrived, why = len(link._inbox), link._down_why
            link.close()
            ended.set()
        server.stop(None).wait()
    assert (arrived, "Compression algorithm 'gzip' is disabled" in why) == (0, True)


def test_no_message_is_longer_than_a_party_may_send() -> None:
    assert dict(OPTIONS)["grpc.max_receive_message_length"] == MOST_CARRIED
