"""HTTP clients that never read their answers do not stay."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fedveil.link.streams import Address
from fedveil.vertical.scoring import http_server
from fedveil.vertical.scoring.http_server import Answer, HttpServer, Request


def test_a_client_that_does_not_read_its_answers_counts_until_it_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise one client takes all of the service's sockets, in spite of the limit."""
    monkeypatch.setattr(http_server, "REQUEST_S", 0.3)
    clients = 5

    async def handle(request: Request) -> Answer:
        return Answer(200, {"x": "y" * 200_000})

    async def unread(here: Address) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (here.host, here.port))
        await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n" * 40)
        return client

    async def played() -> list[int]:
        server, here = await (http := HttpServer(Address("127.0.0.1", 0), handle, None)).start()
        own = len(asyncio.all_tasks())
        held = [await unread(here) for _ in range(clients)]
        seen = []
        for _ in range(100):
            await asyncio.sleep(0.05)
            alive = len(asyncio.all_tasks()) - own
            assert len(http._tasks) >= alive
            seen.append(alive)
            if len(seen) > 4 and not alive:
                break
        server.close()
        await http.end()
        for client in held:
            client.close()
        return seen

    seen = asyncio.run(played())
    assert max(seen) == clients
    assert seen[-1] == 0
