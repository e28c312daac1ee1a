"""A small HTTP/1.1 server on loopback or mutual TLS.

The number of connections, and the bytes and seconds of a header and of a body, have limits. A
connection that exceeds a limit gets an error response and is closed. With TLS, the client's
certificate is checked when a connection opens, and again for each request on it. The number of TLS
handshakes has a limit of its own, because anyone can begin one. If it is reached, a new handshake
ends the oldest one. An honest client's handshake is over before it is the oldest.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import h11
from cryptography import x509

from fedveil.errors import CertificateError, PeerRefused
from fedveil.link.certificate_chain import names_in, sent_certificates
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials

MOST_CONNECTIONS: Final = 128
MOST_HANDSHAKES: Final = 128
MOST_HEADER_BYTES: Final = 1 << 14
MOST_BODY_BYTES: Final = 1 << 20
#: Seconds in which a request must be complete, and after which an idle connection is closed.
REQUEST_S, IDLE_S = 10.0, 60.0
_READ_BYTES = 1 << 16
_END_S = 0.5
#: A browser adds an Origin to what a page of any website sends to this machine.
_NO_PAGES = "without TLS, no request may come from a web page (it has the header Origin)"
#: A website may let its own name point to this machine, so that its pages can read the answers.
_OTHER_NAME = "without TLS, the header Host must name localhost or a loopback address"
JSON, TEXT = "application/json", "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """A complete request. `client` has the names in the client's certificate. None means no TLS."""

    method: str
    path: str
    body: bytes
    client: Sequence[str] | None


@dataclass(frozen=True)
class Answer:
    """A response. `data` is sent as JSON, or unchanged if it is text.

    `retry_s` is sent as the header Retry-After. None means no such header.
    """

    status: int
    data: Any
    retry_s: int | None = None

    def encoded(self) -> tuple[str, bytes]:
        if isinstance(self.data, str):
            return TEXT, self.data.encode()
        return JSON, json.dumps(self.data, allow_nan=False).encode() + b"\n"


Handler = Callable[[Request], Awaitable[Answer]]


class HttpServer:
    """Listens on an address and passes each request to `handle`.

    With credentials, a client must show a certificate. `report` is called with the reason of a
    refusal, once for each reason.
    """

    def __init__(
        self,
        address: Address,
        handle: Handler,
        credentials: Credentials | None,
        report: Callable[[str], None] = print,
    ) -> None:
        self._address, self._handle, self._own = address, handle, credentials
        self._report, self._reported = report, set[str]()
        self._tasks: set[asyncio.Task[None]] = set()
        #: The connections in a TLS handshake, the oldest first.
        self._handshakes: dict[asyncio.Task[None], None] = {}
        self._context: ssl.SSLContext | None = None

    async def start(self) -> tuple[asyncio.Server, Address]:
        self._context = None if self._own is None else self._own.server_context()
        host, port = self._address.host, self._address.port
        server = await asyncio.start_server(self._connected, host, port)
        return server, Address(host, server.sockets[0].getsockname()[1])

    async def end(self) -> None:
        if tasks := {*self._tasks, *self._handshakes}:
            _, waiting = await asyncio.wait(tasks, timeout=_END_S)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio calls this in a task"
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEADER_BYTES)
        if self._context is not None and not await self._secured(task, writer, self._context):
            return
        self._tasks.add(task)
        try:
            if len(self._tasks) > MOST_CONNECTIONS:
                await _send(connection, writer, Answer(503, {"error": "too many connections"}, 1))
                return
            sent = self._sent(writer)
            # Without this check, a revoked client could keep idle connections open.
            if (refusal := await self._refusal(sent)) is not None:
                await _send(connection, writer, refusal)
                return
            while await self._one(connection, reader, writer, sent):
                connection.start_next_cycle()
        except (ConnectionError, ssl.SSLError, TimeoutError, h11.LocalProtocolError):
            pass  # the client has gone, or is too slow
        except asyncio.CancelledError:
            # The service ends. asyncio would print a cancelled connection as an error, and a TLS
            # client that is silent would delay the end.
            writer.transport.abort()
        finally:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(REQUEST_S):  # a client may never read its answer
                    await writer.wait_closed()
            writer.transport.abort()
            self._tasks.discard(task)

    async def _secured(
        self, task: asyncio.Task[None], writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> bool:
        """Do the TLS handshake of the connection that `task` serves. Returns False if it fails."""
        if len(self._handshakes) >= MOST_HANDSHAKES:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
        self._handshakes[task] = None
        try:
            # Nothing may be awaited before: the client's first bytes would be read as plaintext.
            await writer.start_tls(context, ssl_handshake_timeout=REQUEST_S)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()  # `wait_closed` would not notice the end of the connection
            return False
        finally:
            self._handshakes.pop(task, None)
        return True

    def _sent(self, writer: asyncio.StreamWriter) -> Sequence[x509.Certificate] | None:
        """Return the certificates that the client sent, its own first, or None without TLS.

        Returns [] if a certificate cannot be parsed.
        """
        if self._own is None:
            return None
        try:
            return sent_certificates(writer.get_extra_info("ssl_object"))
        except ValueError:
            return []

    async def _refusal(self, sent: Sequence[x509.Certificate] | None) -> Answer | None:
        """Return an Answer that refuses a client which has `sent` these certificates, or None.

        The revocation lists are read again in each call, so a new list applies at once.
        """
        if self._own is None or sent is None:
            return None
        if not sent:
            return self._refused(403, "this certificate cannot be read")
        try:
            # A thread, because long lists would delay other requests.
            await asyncio.to_thread(self._own.check_peer, sent[0], sent[1:])
        except (PeerRefused, ValueError) as error:
            return self._refused(403, str(error))
        except CertificateError as error:  # it names files of this machine
            return self._refused(503, str(error), "this certificate cannot be checked at present")
        return None

    def _refused(self, status: int, why: str, told: str | None = None) -> Answer:
        """Report `why` a client is refused. Returns an Answer that says it, or `told` instead."""
        if why not in self._reported:
            self._reported.add(why)
            self._report(f"refused: {why}")
        return Answer(status, {"error": told or why})

    async def _one(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sent: Sequence[x509.Certificate] | None,
    ) -> bool:
        """Answer one request of a client that has `sent` these certificates (None: without TLS).

        Returns True if the connection can have another request.
        """
        client = None if sent is None else names_in(sent[0])
        try:
            request = await self._request(connection, reader, writer, client)
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            return await _send(connection, writer, Answer(status, {"error": str(error)}))
        except TimeoutError:
            slow = Answer(408, {"error": f"a request must be complete in {REQUEST_S:g} s"})
            return await _send(connection, writer, slow)
        if request is None:
            return False
        if isinstance(request, Answer):
            return await _send(connection, writer, request)
        is_head = request.method == "HEAD"
        if (refusal := await self._refusal(sent)) is not None:
            return await _send(connection, writer, refusal, is_head=is_head)
        answer = await self._handle(request)
        await _send(connection, writer, answer, is_head=is_head)
        return connection.our_state is h11.DONE and connection.their_state is h11.DONE

    async def _request(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        client: Sequence[str] | None,
    ) -> Request | Answer | None:
        """Return the next request, an Answer that refuses it, or None at the connection's end.

        `client` has the names in the client's certificate. None means no TLS.
        """
        head: h11.Request | None = None
        body, size, has_begun = list[bytes](), 0, False
        limit = asyncio.timeout(IDLE_S)
        async with limit:
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    if connection.they_are_waiting_for_100_continue:
                        going = h11.InformationalResponse(status_code=100, headers=[])
                        writer.write(connection.send(going) or b"")
                    data = await reader.read(_READ_BYTES)
                    if data and not has_begun:  # a request's time starts with its first byte
                        has_begun = True
                        limit.reschedule(asyncio.get_running_loop().time() + REQUEST_S)
                    connection.receive_data(data)
                elif isinstance(event, h11.Request):
                    head = event
                    if self._own is None and (refusal := _of_a_page(event)) is not None:
                        return refusal
                    if _head_bytes(event) > MOST_HEADER_BYTES:  # h11 checks only incomplete ones
                        return Answer(
                            431, {"error": f"a header has at most {MOST_HEADER_BYTES:,} B"}
                        )
                elif isinstance(event, h11.Data):
                    size += len(event.data)
                    if size > MOST_BODY_BYTES:
                        return Answer(413, {"error": f"a body has at most {MOST_BODY_BYTES:,} B"})
                    body.append(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    assert head is not None, "h11 sends the head first"
                    path = head.target.decode("ascii", "replace").partition("?")[0]
                    method = head.method.decode("ascii", "replace")
                    return Request(method, path, b"".join(body), client)
                else:  # the connection has ended, or the client asks for another protocol
                    return None


def _of_a_page(head: h11.Request) -> Answer | None:
    """Return an Answer that refuses a request if a web page may have sent it, otherwise None.

    A browser names the page's own host in Host. A request without this header (HTTP/1.0) is not
    from a browser.
    """
    sent = dict(head.headers)
    host = sent.get(b"host", b"localhost").decode("latin-1").lower()
    name = re.sub(r":[0-9]*\Z", "", host).removeprefix("[").removesuffix("]")
    if not Address(name, 0).is_loopback:
        return Answer(421, {"error": _OTHER_NAME})
    return Answer(403, {"error": _NO_PAGES}) if b"origin" in sent else None


def _head_bytes(head: h11.Request) -> int:
    """Return the length in bytes of a request's line and headers, with their separators."""
    first = len(head.method) + len(head.target) + len("  HTTP/1.1\r\n")
    rest = sum(len(name) + len(value) + len(": \r\n") for name, value in head.headers.raw_items())
    return first + rest + len("\r\n")


async def _send(
    connection: h11.Connection,
    writer: asyncio.StreamWriter,
    answer: Answer,
    *,
    is_head: bool = False,
) -> bool:
    """Send the response `answer`. Returns False, which tells the caller to close the connection.

    `is_head` is True for the answer to a HEAD request. The headers then state the length of the
    data, but no data are sent.
    """
    kind, data = answer.encoded()
    headers = [("content-type", kind), ("content-length", str(len(data)))]
    if answer.retry_s is not None:
        headers.append(("retry-after", str(answer.retry_s)))
    if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        response = h11.Response(status_code=answer.status, headers=headers)
        parts = [response, h11.Data(data=b"" if is_head else data), h11.EndOfMessage()]
        writer.write(b"".join(connection.send(part) or b"" for part in parts))
        async with asyncio.timeout(REQUEST_S):
            await writer.drain()
    return False
