"""A follower's end of the stream: it dials the leader, and dials again when the stream breaks."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from cryptography import x509

from fedveil.errors import LinkLost, MessageInvalid, PeerRefused
from fedveil.link.link import Link
from fedveil.link.streams import CALL, OPTIONS, SERVICE, Address, Greeting, check_plaintext
from fedveil.link.tls import Credentials, party_of

import grpc  # isort: skip  (after streams, which quiets it)

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
_PROBE_S = 2.0
#: A leader that dies at the wrong moment looks once as one that refuses.
_TIMES_SURE = 3


class Dialer:
    """Keeps a stream to the leader at `address` for as long as `link` has a use for one."""

    def __init__(
        self, address: Address, link: Link, party: str, credentials: Credentials | None
    ) -> None:
        if credentials is None:
            check_plaintext("--connect", address)
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
            with self._channel() as channel:
                if self._stream(channel):
                    wait_s = FIRST_WAIT_S
                    self._verdicts.clear()
                else:
                    self._consider()
            self._stopped.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _consider(self) -> None:
        """Find out why there was no welcome; the link fails once the answer is plain."""
        if self._stopped.is_set() or self._link.is_over:
            return
        verdict = diagnose(self._address, self._link.peer, self._credentials)
        if verdict is None or verdict not in self._verdicts:
            self._verdicts.clear()
        if verdict is not None:
            self._verdicts.append(verdict)
            if len(self._verdicts) == _TIMES_SURE:
                self._link.fail(PeerRefused(verdict))

    def _channel(self) -> Any:
        # Else a new channel would go on with the pauses that an earlier one has come to.
        options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        own = self._credentials
        if own is None:
            return grpc.insecure_channel(str(self._address), options)
        options.append(("grpc.ssl_target_name_override", self._link.peer))
        secure = grpc.ssl_channel_credentials(own.authority, own.key, own.certificate)
        return grpc.secure_channel(str(self._address), secure, options)

    def _stream(self, channel: Any) -> bool:
        """One stream from its greeting to its end; whether it came to the leader's welcome."""
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
        """Why a stream ended; where the leader says that it is for good, the link fails for it."""
        code, details = error.code(), error.details() or "no reason given"
        peer, address = self._link.peer, self._address
        if code == grpc.StatusCode.FAILED_PRECONDITION:
            self._link.fail(PeerRefused(f"{peer} refuses: {details}"))
        elif code == grpc.StatusCode.UNIMPLEMENTED:
            self._link.fail(PeerRefused(f"what listens at {address} is no leader of fedveil"))
        return details.rpartition("last error: ")[2]


def diagnose(address: Address, leader: str, credentials: Credentials | None) -> str | None:
    """What is wrong for good at `address`, where gRPC says only that there is no connection.

    None where nobody is there, or where all is well: then trying again may help.
    """
    if credentials is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context = credentials.client_context()
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((address.host, address.port), _PROBE_S) as plain,
            context.wrap_socket(plain) as secure,
        ):
            if credentials is None:
                return f"what listens at {address} speaks TLS: --insecure does not, --tls DIR does"
            return _judge_names(secure, address, leader)
    except ssl.SSLCertVerificationError as error:
        return (
            f"the certificate at {address} is not of the authority in "
            f"{credentials.folder if credentials else ''}: {error.verify_message}"
        )
    except ssl.SSLError as error:
        if credentials is not None and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
            return f"what listens at {address} does not speak TLS"
    except OSError:
        pass
    return None


def _judge_names(secure: ssl.SSLSocket, address: Address, leader: str) -> str | None:
    der = secure.getpeercert(binary_form=True)
    named = party_of(x509.load_der_x509_certificate(der)) if der else None
    if named != leader:
        return (
            f"the certificate at {address} is that of {named or 'nobody'}, not that of the "
            f"leader, {leader}"
        )
    # A server that likes this side's certificate speaks first; one that does not hangs up.
    if secure.recv(1) == b"":
        return f"{leader} at {address} does not accept this party's certificate"
    return None
