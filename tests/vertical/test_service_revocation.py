"""The prediction service and revocation lists: which clients are answered, and from when on."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedveil.link.streams import Address
from fedveil.link.tls import Credentials
from fedveil.vertical.scoring.http_server import Answer, HttpServer, Request
from pki import Authority, Leaf, pem

UNCHECKED = {"error": "this certificate cannot be checked at present"}


class Pki:
    """A service and two clients, whose certificates two intermediate authorities have issued."""

    def __init__(self) -> None:
        self.root = Authority("Root")
        self.left = Authority("Left CA", "p384", self.root)
        self.right = Authority("Right CA", "p256", self.root)
        self.lead = self.left.leaf("lead")
        self.desk, self.shop = self.right.leaf("desk"), self.right.leaf("shop", "till")

    def lists(self, *revoked: x509.Certificate, **dates: float) -> bytes:
        authorities = (self.root, self.left, self.right)
        return pem(*(
            one.crl(*(c for c in revoked if c.issuer == one.name), **dates) for one in authorities
        ))  # fmt: skip


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


class Service:
    """A server in a thread of its own, and the clients that ask it over TLS."""

    def __init__(self, pki: Pki, folder: Path, stack: ExitStack) -> None:
        self.pki, self.said, self.asked = pki, list[str](), list[Request]()
        self._folder, self._stack = folder, stack
        self._lists, self._numbers = folder / "crl.pem", itertools.count()
        self.lists(pki.lists())
        pki.lead.write(folder / "lead", pki.root, crl="../crl.pem")
        self.own = Credentials.read(folder / "lead", "lead", ["lead", "bank"])

    def lists(self, data: bytes) -> None:
        """Move new lists into place, as the documentation says."""
        (self._folder / "new").write_bytes(data)
        (self._folder / "new").rename(self._lists)

    def start(self) -> int:
        loop, ready = asyncio.new_event_loop(), threading.Event()
        server = HttpServer(Address("127.0.0.1", 0), self._handle, self.own, self.said.append)
        ports = list[int]()

        async def run() -> None:
            listening, here = await server.start()
            ports.append(here.port)
            ready.set()
            await over.wait()
            listening.close()
            await server.end()

        over = asyncio.Event()
        thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
        thread.start()
        assert ready.wait(30)
        self._stack.callback(thread.join, 30)
        self._stack.callback(loop.call_soon_threadsafe, over.set)
        return ports[0]

    async def _handle(self, request: Request) -> Answer:
        self.asked.append(request)
        return Answer(200, {"names": request.client})

    def context(self, leaf: Leaf) -> ssl.SSLContext:
        folder = self._folder / f"client-{next(self._numbers)}"
        leaf.write(folder, self.pki.root)
        context = ssl.create_default_context(cadata=pem(self.pki.root.certificate).decode())
        context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
        context.check_hostname = False
        return context

    def connect(self, port: int, leaf: Leaf) -> http.client.HTTPSConnection:
        context = self.context(leaf)
        made = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        self._stack.callback(made.close)
        return made


@pytest.fixture
def service(pki: Pki, tmp_path: Path) -> Iterator[Service]:
    with ExitStack() as stack:
        yield Service(pki, tmp_path, stack)


def answer(connection: http.client.HTTPConnection, method: str = "GET") -> tuple[int, Any]:
    connection.request(method, "/health")
    found = connection.getresponse()
    data = found.read()
    return found.status, json.loads(data) if data else None


def test_a_revoked_client_is_refused_from_its_next_connection_on(service: Service) -> None:
    port, desk, shop = service.start(), service.pki.desk, service.pki.shop
    assert answer(service.connect(port, desk)) == (200, {"names": ["desk"]})
    service.lists(service.pki.lists(desk.certificate))
    service.asked.clear()
    for _ in range(2):
        status, said = answer(service.connect(port, desk))
        assert status == 403
        assert said["error"].startswith("the certificate of desk with the serial number ")
        assert " was revoked on " in said["error"]
    assert service.asked == []
    assert service.said == [f"refused: {said['error']}"], "one reason is reported once"
    assert answer(service.connect(port, shop)) == (200, {"names": ["shop", "till"]})


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_a_revoked_client_is_refused_on_an_open_connection_too(
    service: Service, method: str
) -> None:
    port, desk, shop = service.start(), service.pki.desk, service.pki.shop
    kept, others = service.connect(port, desk), service.connect(port, shop)
    for connection in (kept, others):
        assert answer(connection)[0] == answer(connection)[0] == 200
    opened = others.sock
    service.lists(service.pki.lists(desk.certificate))
    service.asked.clear()
    assert answer(kept, method)[0] == 403
    assert service.asked == []
    assert answer(others)[0] == 200
    assert others.sock is opened is not None


def test_a_client_under_a_revoked_authority_is_refused(service: Service) -> None:
    port = service.start()
    service.lists(service.pki.lists(service.pki.right.certificate))
    status, said = answer(service.connect(port, service.pki.shop))
    assert status == 403
    assert said["error"].startswith("the certificate of the authority CN=Right CA with the serial")


def test_a_revoked_client_that_asks_for_nothing_is_disconnected(service: Service) -> None:
    port = service.start()
    service.lists(service.pki.lists(service.pki.desk.certificate))
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    with service.context(service.pki.desk).wrap_socket(plain) as secure:
        received = b""
        while piece := secure.recv(4096):
            received += piece
    assert received.startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("broken", ["expired", "missing", "half", "one authority less"])
def test_lists_that_cannot_be_used_refuse_every_client_until_new_ones_are_there(
    service: Service, broken: str
) -> None:
    port, pki = service.start(), service.pki
    kept = service.connect(port, pki.shop)
    assert answer(kept)[0] == 200
    if broken == "missing":
        service._lists.unlink()
    else:
        service.lists({
            "expired": pki.lists(ends=-0.25),
            "half": pki.lists()[:100],
            "one authority less": pem(pki.root.crl(), pki.left.crl()),
        }[broken])  # fmt: skip
    service.asked.clear()
    for asked in (kept, service.connect(port, pki.desk)):
        status, said = answer(asked)
        if broken == "one authority less":
            assert status == 403
        else:
            assert (status, said) == (503, UNCHECKED)
        assert str(service._folder) not in said["error"], "the path is for the owner alone"
    assert service.asked == []
    sentence = {
        "expired": f"the revocation list of CN=Root in {service.own.settings.crl_path} expired on ",
        "missing": f"{service.own.settings.crl_path} cannot be read: No such file",
        "half": f"{service.own.settings.crl_path} is not a revocation list in PEM",
        "one authority less": "crl.pem has no current revocation list of CN=Right CA",
    }[broken]
    assert service.said[0].startswith(f"refused: {sentence}")
    service.lists(pki.lists(pki.desk.certificate, began=-0.5))
    assert answer(service.connect(port, pki.shop))[0] == 200
    assert answer(service.connect(port, pki.desk))[0] == 403


def test_the_lists_at_the_start_no_longer_count_once_there_are_new_ones(service: Service) -> None:
    """A TLS context that had loaded the first lists would refuse this client until a restart."""
    service.lists(service.pki.lists(service.pki.desk.certificate))
    port = service.start()
    assert answer(service.connect(port, service.pki.desk))[0] == 403
    service.lists(service.pki.lists(began=-0.5))
    assert answer(service.connect(port, service.pki.desk))[0] == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_tls_session_that_is_resumed_is_checked_like_a_new_one(
    service: Service, version: ssl.TLSVersion
) -> None:
    port, context = service.start(), service.context(service.pki.desk)
    context.minimum_version = context.maximum_version = version

    def status(session: ssl.SSLSession | None) -> tuple[int, ssl.SSLSession | None]:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        connection.sock = secure = context.wrap_socket(plain, session=session)
        found = answer(connection)[0], secure.session
        connection.close()
        return found

    first, session = status(None)
    again, _ = status(session)
    assert (first, again) == (200, 200), "an intermediate authority is still known"
    service.lists(service.pki.lists(service.pki.desk.certificate))
    assert status(session)[0] == 403


def test_a_client_with_a_weak_key_or_a_weak_authority_is_refused(service: Service) -> None:
    """Some versions of OpenSSL accept these keys."""
    pki, server = service.pki, HttpServer(Address("", 0), print, service.own, service.said.append)  # type: ignore[arg-type]
    small = Authority("Small CA", "rsa1024", pki.root)
    for leaf, strong in (
        (pki.desk, True),
        (pki.right.leaf("desk", kind="rsa1024"), False),
        (small.leaf("desk"), False),
    ):
        refusal = asyncio.run(server._refusal([leaf.certificate, *leaf.chain]))
        assert (refusal is None) == strong
        if refusal is not None:
            said = "the certificate of desk is weak: its RSA key has 1024 bits, and 2048 are the "
            assert (refusal.status, refusal.data) == (403, {"error": f"{said}least"})


def test_a_certificate_that_cannot_be_parsed_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(_: object) -> list[x509.Certificate]:
        raise ValueError("error parsing asn1 value")

    monkeypatch.setattr("fedveil.vertical.scoring.http_server.sent_certificates", unread)
    port = service.start()
    found = answer(service.connect(port, service.pki.desk))
    assert found == (403, {"error": "this certificate cannot be read"})
    assert service.asked == []
