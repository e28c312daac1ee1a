"""The prediction service and strangers that begin a TLS handshake and never end it."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fedveil.link.own_authority import write_certificates
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials
from fedveil.vertical.scoring import http_server
from fedveil.vertical.scoring.http_server import Answer, HttpServer, Request

MOST = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    write_certificates(made / "ours", ["lead", "desk"])
    return made / "ours"


class Server:
    """A server in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        own = Credentials.read(folder, "lead", ["lead", "desk"])
        self.http = HttpServer(Address("127.0.0.1", 0), self._handle, own)
        self.port = 0

    async def _handle(self, request: Request) -> Answer:
        return Answer(200, list(request.client or ()))

    @contextmanager
    def running(self) -> Iterator[None]:
        loop, over, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

        async def run() -> None:
            listening, here = await self.http.start()
            self.port = here.port
            ready.set()
            await over.wait()
            listening.close()
            await self.http.end()

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
        thread.start()
        assert ready.wait(30)
        try:
            yield
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(http_server, "MOST_HANDSHAKES", MOST)
    monkeypatch.setattr(http_server, "REQUEST_S", 300.0)
    return Server(folder)


def silent(port: int, stack: ExitStack) -> socket.socket:
    """Connect as a stranger that sends nothing."""
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))


def is_closed(stranger: socket.socket) -> bool:
    """Wait until the server closes the connection, for at most 10 s."""
    try:
        return stranger.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def until_in(server: Server, many: int) -> None:
    """Wait until `many` handshakes are under way, for at most 10 s."""
    end = time.monotonic() + 10
    while len(server.http._handshakes) < many and time.monotonic() < end:
        time.sleep(0.01)


def test_strangers_hold_no_more_handshakes_than_the_limit(server: Server) -> None:
    with ExitStack() as stack, server.running():
        strangers = [silent(server.port, stack) for _ in range(MOST + 4)]
        assert [is_closed(stranger) for stranger in strangers[:4]] == [True] * 4
        until_in(server, MOST)
        assert len(server.http._handshakes) == MOST
        for stranger in strangers[4:]:
            stranger.setblocking(False)
            with pytest.raises(BlockingIOError):
                stranger.recv(1)


def test_a_client_is_answered_while_strangers_hold_all_handshakes(
    server: Server, folder: Path
) -> None:
    desk = folder / "desk"
    context = ssl.create_default_context(cafile=str(desk / "authority.pem"))
    context.load_cert_chain(desk / "certificate.pem", desk / "key.pem")
    context.check_hostname = False
    with ExitStack() as stack, server.running():
        for _ in range(MOST):
            silent(server.port, stack)
        until_in(server, MOST)
        client = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=30, context=context)
        stack.callback(client.close)
        for _ in range(2):
            client.request("GET", "/health")
            assert client.getresponse().read() == b'["desk"]\n'
        assert len(server.http._handshakes) == MOST - 1
        assert len(server.http._tasks) == 1


def test_the_end_of_the_service_closes_unfinished_handshakes(server: Server) -> None:
    with ExitStack() as stack:
        with server.running():
            stranger = silent(server.port, stack)
            until_in(server, 1)
        assert not server.http._handshakes
        assert is_closed(stranger)
