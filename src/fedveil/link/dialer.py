"""The follower's end of a link. It connects to the leader, and connects again after a break.

gRPC checks neither a certificate's strength nor revocation lists. So the follower first fetches and
checks the leader's certificate, and then lets gRPC trust only this certificate.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from cryptography import x509

from fedveil.errors import (
    CertificateError,
    FedveilError,
    InvalidValue,
    LinkLost,
    MessageInvalid,
    PeerRefused,
)
from fedveil.link.certificate_chain import described, pem_of, weakness
from fedveil.link.link import Link
from fedveil.link.proxy import check_proxy, connect
from fedveil.link.streams import CALL, OPTIONS, SERVICE, Address, Greeting, check_plaintext
from fedveil.link.tls import Credentials
from fedveil.rounds.outcomes import LONGEST_LOGGED, short

import grpc  # isort: skip  (after streams, which quiets it)

FIRST_WAIT_S = 0.1
#: The longest pause between two attempts to connect. A leader that starts after its followers may
#: have to wait for that long. If a follower serves predictions, every leader starts after it.
LONGEST_WAIT_S = 1.0
_PROBE_S = 5.0
#: This many equal refusals in a row are final. A single one may also come from a leader that is
#: killed during the handshake.
_TIMES_SURE = 3
#: OpenSSL's codes for errors in certificates, X509_V_ERR_*.
_REVOKED, _NO_LIST = 23, (3, 8)
_NO_PATH = (2, 7, 18, 19, 20, 21)


class Dialer:
    """A context in which a thread keeps a stream of `link` to the leader at `address` open.

    The thread opens a new stream after each break, until `link` is over. The constructor raises
    InvalidValue if the URL of the HTTP proxy is malformed.
    """

    def __init__(
        self, address: Address, link: Link, party: str, credentials: Credentials | None
    ) -> None:
        if credentials is None:
            check_plaintext("--connect", address)
        else:
            credentials.check_usage(listens=False)
        check_proxy(address)  # before gRPC reads the proxy's URL
        self._address, self._link, self._party = address, link, party
        self._credentials = credentials
        self._stopped = threading.Event()
        self._call: Any = None
        self._verdicts: list[str] = []
        self._thread = threading.Thread(target=self._keep, name="link dialer", daemon=True)

    def __enter__(self) -> Dialer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        call = self._call
        if call is not None:
            call.cancel()
        self._thread.join()

    def _keep(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._stopped.is_set() and not self._link.is_over:
            if self._dial():
                wait_s = FIRST_WAIT_S
                self._verdicts.clear()
            self._stopped.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _dial(self) -> bool:
        """Open a stream and run it to its end. Returns True if the leader accepted the stream."""
        certificate, wrong = b"", None
        try:
            if self._credentials is not None:
                certificate = leader_certificate(self._address, self._link.peer, self._credentials)
            with self._channel(certificate) as channel:
                if self._stream(channel):
                    return True
            if self._credentials is None:
                check_no_tls(self._address)
        # One of this party's files may be incomplete while it is being replaced. The next attempt
        # reads it again.
        except (PeerRefused, CertificateError, InvalidValue) as error:
            wrong = error
        except OSError as error:
            self._link.absent(str(error.strerror or error))
        self._consider(wrong)
        return False

    def _consider(self, wrong: FedveilError | None) -> None:
        """Record a failed attempt to connect.

        `wrong` is the attempt's error, or None if the attempt failed for a temporary reason. If
        `_TIMES_SURE` attempts in a row fail with the same error, makes the link fail with it.
        """
        if self._stopped.is_set() or self._link.is_over:
            return
        verdict = None if wrong is None else str(wrong)
        if verdict is None or verdict not in self._verdicts:
            self._verdicts.clear()
        if wrong is not None and verdict is not None:
            self._verdicts.append(verdict)
            if len(self._verdicts) == _TIMES_SURE:
                self._link.fail(wrong)

    def _channel(self, certificate: bytes) -> Any:
        # Otherwise a new channel would inherit the reconnection delay of an earlier one.
        options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        own = self._credentials
        if own is None:
            return grpc.insecure_channel(str(self._address), options)
        options.append(("grpc.ssl_target_name_override", own.name_of(self._link.peer)))
        secure = grpc.ssl_channel_credentials(certificate, own.key, own.certificate)
        return grpc.secure_channel(str(self._address), secure, options)

    def _stream(self, channel: Any) -> bool:
        link, attached = self._link, SimpleQueue[int]()
        stream, why = 0, "the stream ended"
        call = self._call = channel.stream_stream(f"/{SERVICE}/{CALL}")(self._frames(attached))
        try:
            if self._stopped.is_set():
                call.cancel()
            data = next(call, b"")
            welcome = Greeting.from_bytes(data, "welcome", link.peer, self._party)
            stream = link.attach(welcome.session, welcome.known, welcome.arrived)
            attached.put(stream)
            for frame in call:
                link.take(stream, frame)
        except grpc.RpcError as error:
            why = self._why(error)
        except PeerRefused as error:
            link.fail(error)
        except MessageInvalid as error:
            link.fail(LinkLost(f"{link.peer} broke the rules of the link: {error}"))
        finally:
            attached.put(0)
            link.detach(stream, why)
            link.absent(why)
            call.cancel()
        return stream != 0

    def _frames(self, attached: SimpleQueue[int]) -> Iterator[bytes]:
        yield Greeting(self._party, *self._link.greeting()).to_bytes("hello")
        stream = attached.get()
        if stream:
            yield from self._link.frames(stream)

    def _why(self, error: Any) -> str:
        """Return the reason why a stream ended, from its `error`.

        If the error is permanent, such as a refusal by the leader, makes the link fail.
        """
        code, details = error.code(), short(error.details() or "no reason given", LONGEST_LOGGED)
        peer, address = self._link.peer, self._address
        if code == grpc.StatusCode.FAILED_PRECONDITION:
            self._link.fail(PeerRefused(f"{peer} refuses: {details}"))
        elif code == grpc.StatusCode.UNIMPLEMENTED:
            self._link.fail(PeerRefused(f"what listens at {address} is no leader of fedveil"))
        return details.rpartition("last error: ")[2]


def leader_certificate(address: Address, leader: str, own: Credentials) -> bytes:
    """Fetch and check the certificate of the leader that listens at `address`. Returns it in PEM.

    `own` are this party's credentials. Raises PeerRefused if the certificate is invalid or revoked,
    or does not belong to `leader`, or if the leader rejects this party's certificate. Raises
    OSError if nobody listens at `address`, and InvalidValue if the proxy's URL is malformed.
    """
    context = own.client_context()
    context.set_alpn_protocols(["h2"])
    try:
        with connect(address, _PROBE_S) as plain, context.wrap_socket(plain) as secure:
            return _judge(secure, address, leader, own)
    except ssl.SSLCertVerificationError as error:
        raise PeerRefused(_why_not(error, address, own)) from None
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
            raise PeerRefused(f"what listens at {address} does not speak TLS") from None
        raise
    except InvalidValue:  # a proxy's URL is malformed
        raise
    except ValueError as error:
        raise PeerRefused(f"the certificate at {address} cannot be read: {error}") from None


def check_no_tls(address: Address) -> None:
    """Raise PeerRefused if the server at `address` uses TLS although this party does not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with suppress(OSError), connect(address, _PROBE_S) as plain, context.wrap_socket(plain):
        raise PeerRefused(
            f"what listens at {address} speaks TLS: --insecure does not, --tls DIR does"
        )


def _why_not(error: ssl.SSLCertVerificationError, address: Address, own: Credentials) -> str:
    what, lists = f"the certificate at {address}", own.settings.crl
    if error.verify_code == _REVOKED:
        return f"{what}, or that of an authority above it, is revoked by the list in {lists}"
    if error.verify_code in _NO_LIST:
        return f"{what} cannot be checked: {lists} does not have the lists of all its authorities"
    if error.verify_code in _NO_PATH:
        return f"{what} is not of the authority in {own.folder}: {error.verify_message}"
    return f"{what} is refused: {error.verify_message}"


def _judge(secure: ssl.SSLSocket, address: Address, leader: str, own: Credentials) -> bytes:
    der = secure.getpeercert(binary_form=True)
    assert der is not None, "a handshake that asks for a certificate has one"
    certificate = x509.load_der_x509_certificate(der)
    if own.party_of(certificate, [leader]) != leader:
        name = own.name_of(leader)
        named = leader if name == leader.lower() else f"{leader} ({name})"
        raise PeerRefused(
            f"the certificate at {address} is that of {described(certificate)}, not that of the "
            f"leader, {named}"
        )
    if (weak := weakness(certificate)) is not None:
        raise PeerRefused(f"the certificate at {address} is weak: {weak}")
    # A server that accepts this side's certificate sends first. Any other closes the connection.
    if secure.recv(1) == b"":
        raise PeerRefused(f"{leader} at {address} does not accept this party's certificate")
    return pem_of([certificate])
