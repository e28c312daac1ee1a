"""The leader's end of all links: listens, authenticates followers, passes streams to links."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cryptography import x509

from fedveil.base.message import quoted
from fedveil.errors import CertificateError, LinkLost, MessageInvalid, PeerRefused
from fedveil.link.certificate_chain import described
from fedveil.link.link import Link
from fedveil.link.streams import CALL, OPTIONS, SERVICE, Address, Greeting, check_plaintext
from fedveil.link.tls import Credentials

import grpc  # isort: skip  (after streams, which quiets it)

#: Seconds until gRPC aborts a handshake, and until a handshake without a stream counts as failed.
_GIVEN_UP_S, _HANDSHAKE_S = 10.0, 20.0
_STOP_S = 1.0


class Listener:
    """A gRPC server to which the followers named in `links` connect.

    With credentials, a follower is identified by its certificate, otherwise by the name it states.
    The certificate's name, strength and revocation are checked before anything that the follower
    sends is read. If a follower is refused, the reason is sent to it and passed to `report`.
    """

    def __init__(
        self,
        address: Address,
        links: Mapping[str, Link],
        party: str,
        credentials: Credentials | None,
        report: Callable[[str], None],
    ) -> None:
        if credentials is None:
            check_plaintext("--listen", address)
        else:
            credentials.check_usage(listens=True)
        self._links, self._party, self._report = links, party, report
        self._handshakes = _Handshakes(report)
        # Each stream occupies one thread. Threads of broken streams may live a little longer.
        self._threads = ThreadPoolExecutor(4 * len(links) + 4, thread_name_prefix="link")
        calls = {CALL: grpc.stream_stream_rpc_method_handler(self._stream)}
        self._server = grpc.server(
            self._threads,
            handlers=[grpc.method_handlers_generic_handler(SERVICE, calls)],
            # Otherwise two leaders could share a port, and each would get some of the followers.
            options=[
                *OPTIONS,
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", int(1000 * _GIVEN_UP_S)),
            ],
        )
        self._own = credentials
        try:
            if credentials is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), self._credentials(credentials))
        except RuntimeError:
            raise LinkLost(f"nobody can listen on {address}: it is in use, or not here") from None
        self.address = Address(address.host, port)

    def __enter__(self) -> Listener:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._handshakes.stop()
        self._server.stop(_STOP_S).wait()
        self._threads.shutdown(wait=False)

    def _credentials(self, own: Credentials) -> Any:
        pair = [(own.key, own.certificate)]
        # gRPC does not report failed handshakes, but it calls this function before each handshake.
        return grpc.dynamic_ssl_server_credentials(
            grpc.ssl_server_certificate_configuration(pair, own.authority),
            self._handshakes.begun,
            require_client_authentication=True,
        )

    def _stream(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        # A follower has made two handshakes: the first only fetched the leader's certificate.
        self._handshakes.succeeded(2)
        try:
            link, hello = self._greeted(frames, context)
            welcome = Greeting(self._party, *link.greeting())
            stream = link.attach(hello.session, hello.known, hello.arrived)
        except (PeerRefused, MessageInvalid, CertificateError) as error:
            self._report(f"refused: {error}")
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise AssertionError("abort raises") from None
        context.add_callback(lambda: link.detach(stream, "the stream broke"))
        reader = threading.Thread(
            target=self._read, args=(link, stream, frames), name="link reader", daemon=True
        )
        reader.start()
        yield welcome.to_bytes("welcome")
        yield from link.frames(stream)
        if not link.belongs_to(hello.session):
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"another process of {link.peer} has taken its place",
            )

    def _greeted(self, frames: Iterator[bytes], context: Any) -> tuple[Link, Greeting]:
        named = None if self._own is None else self._certified(self._own, context)
        who = named or context.peer()
        first = next(frames, b"")
        hello = Greeting.from_bytes(first, "hello", who, self._party)
        if named is not None and hello.party != named:
            raise PeerRefused(f"the certificate of {named} was shown by {quoted(hello.party)}")
        if hello.party not in self._links:
            raise PeerRefused(
                f"{self._party} knows no follower {quoted(hello.party)}; its followers are "
                f"{', '.join(self._links)}"
            )
        return self._links[hello.party], hello

    def _certified(self, own: Credentials, context: Any) -> str:
        shown = context.auth_context()
        try:
            leaf, *others = x509.load_pem_x509_certificates(
                b"".join([*shown["x509_pem_cert"], *shown.get("x509_pem_cert_chain", [])])
            )
            named = own.party_of(leaf, [self._party, *self._links])
            if named is None or named not in self._links:
                raise PeerRefused(
                    f"{self._party} knows no follower with the certificate of {described(leaf)}; "
                    f"its followers are {', '.join(map(self._shown, self._links))}"
                )
            own.check_peer(leaf, others)
        except (KeyError, ValueError) as error:
            raise PeerRefused(
                f"{self._party} cannot read the certificate of {context.peer()}: {error}"
            ) from None
        return named

    def _shown(self, follower: str) -> str:
        name = follower if self._own is None else self._own.name_of(follower)
        return follower if name == follower.lower() else f"{follower} ({name})"

    def _read(self, link: Link, stream: int, frames: Iterator[bytes]) -> None:
        why = "the stream broke"
        try:
            for frame in frames:
                link.take(stream, frame)
        except MessageInvalid as error:
            link.fail(LinkLost(f"{link.peer} broke the rules of the link: {error}"))
        except Exception:  # gRPC raises a bare Exception if a stream is cut off
            why = "the stream was cut off"
        link.detach(stream, why)


class _Handshakes:
    """Reports failed TLS handshakes, because gRPC does not."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._open: deque[float] = deque()  # start times of handshakes without a stream
        self._timer: threading.Timer | None = None

    def begun(self) -> None:
        """Count a new handshake. It is reported as failed unless `succeeded` is called in time."""
        with self._lock:
            self._open.append(time.monotonic())
            if self._timer is None:
                self._look_in(_HANDSHAKE_S)

    def succeeded(self, count: int = 1) -> None:
        """Count the oldest `count` open handshakes as successful."""
        with self._lock:
            for _ in range(min(count, len(self._open))):
                self._open.popleft()

    def stop(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def _look_in(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._look)
        self._timer.daemon = True
        self._timer.start()

    def _look(self) -> None:
        with self._lock:
            due, self._timer = time.monotonic() - _HANDSHAKE_S, None
            failed = bool(self._open) and self._open[0] <= due
            while self._open and self._open[0] <= due:
                self._open.popleft()
            if self._open:
                self._look_in(self._open[0] - due)
        if failed:
            self._report(
                "refused: a connection that showed no certificate of this authority, or broke off"
            )
