"""Links under an organisation's own PKI, over loopback: who gets in, and who does not."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest

from cutter import Cutter
from fedveil.errors import CertificateError, FedveilError, PeerRefused
from fedveil.link import dialer
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.listener import Listener
from fedveil.link.streams import CALL, SERVICE, Address, Greeting
from fedveil.link.tls import Credentials
from pki import Authority, Leaf, OldRoot, pem

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 30.0
NAMES = {"lead": "fl01.lead.example", "bank": "fl01.bank.example", "shop": "10.1.2.3"}


class Pki:
    """One root; leads and followers have their certificates of different authorities."""

    def __init__(self) -> None:
        self.root = Authority("Example Root", "rsa2048")
        self.left = Authority("Left CA", "rsa2048", self.root)
        self.right = Authority("Right CA", "p384", self.root)
        self.lead = self.left.leaf(
            "lead.internal", "fl01.lead.example", "10.9.9.9", kind="rsa2048", common="shop"
        )
        self.bank = self.right.leaf("fl01.bank.example", "fl02.bank.example", kind="p384")

    def lists(self, *revoked: Any, **options: Any) -> bytes:
        """Everybody's list; `revoked` are on that of their own authority."""
        return pem(
            *(
                one.crl(*(c for c in revoked if c.issuer == one.name), **options)
                for one in (self.root, self.left, self.right)
            )
        )


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


class Meeting:
    """A leader that listens on loopback, and followers that dial it."""

    def __init__(self, pki: Any, folder: Path, stack: ExitStack) -> None:
        self.pki, self.folder, self.stack = pki, folder, stack
        self.said: list[str] = []

    def read(self, party: str, leaf: Leaf | None = None, **settings: Any) -> Credentials:
        """A party's credentials, as read from a new folder."""
        leaf = leaf or getattr(self.pki, party)
        number = len(list(self.folder.iterdir()))
        lists = settings.pop("lists", None)
        settings = {"names": NAMES, **settings}
        if lists is not None:
            (self.folder / f"{number + 1}.crl").write_bytes(lists)
            settings["crl"] = f"../{number + 1}.crl"
        folder = leaf.write(self.folder / f"party-{number}", self.pki.root, **settings)
        return Credentials.read(folder, party, ["lead", "bank", "shop"])

    def listen(self, own: Credentials) -> tuple[int, dict[str, Link]]:
        links = {name: Link(name, patience_s=PATIENCE_S) for name in ("bank", "shop")}
        listener = Listener(LOOPBACK, links, "lead", own, self.said.append)
        self.stack.enter_context(listener)
        return listener.address.port, links

    def dial(self, port: int, own: Credentials) -> Link:
        link = Link("lead", patience_s=PATIENCE_S)
        self.stack.enter_context(Dialer(Address("127.0.0.1", port), link, own.party, own))
        return link


@pytest.fixture
def meet(pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    monkeypatch.setattr(dialer, "LONGEST_WAIT_S", 0.2)
    with ExitStack() as stack:
        yield Meeting(pki, tmp_path, stack)


def talk(lead: Link, link: Link) -> None:
    """Send something both ways."""
    data = np.arange(70_001, dtype=np.float32)
    link.send({"from": link.peer, "data": data})
    np.testing.assert_array_equal(lead.receive()["data"], data)
    lead.send({"back": 7})
    assert link.receive() == {"back": 7}


def refused(link: Link, kind: type[FedveilError] = PeerRefused) -> str:
    end = time.monotonic() + PATIENCE_S
    while not link.is_over and time.monotonic() < end:
        assert not link._stream, "it was taken in"
        time.sleep(0.01)
    with pytest.raises(kind) as error:
        link.receive()
    return str(error.value)


def knock(port: int, leaf: Leaf, root: Authority, party: str = "bank") -> str:
    """Greet a leader as an attacker would: by gRPC alone, without any of this side's checks."""
    secure = grpc.ssl_channel_credentials(
        pem(root.certificate), leaf.key_pem(), pem(leaf.certificate, *leaf.chain)
    )
    options = [("grpc.ssl_target_name_override", NAMES["lead"])]
    hello = Greeting(party, bytes(16), b"", 0).to_bytes("hello")
    with grpc.secure_channel(f"127.0.0.1:{port}", secure, options) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{CALL}")(iter([hello]), timeout=PATIENCE_S)
        try:
            return "welcomed" if next(call) else "nothing"
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"


def test_encrypted_rsa_keys_chains_and_lists_at_both_ends(
    pki: Pki, meet: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_KEY", "one secret")
    shop = pki.left.leaf("10.1.2.3", "fl.shop.example", kind="p256", common="bank")
    stranger = pki.left.leaf("x.example").certificate
    lists = pki.lists(stranger)
    lead = meet.read("lead", password_env="BANK_KEY", password=b"one secret", lists=lists)
    port, links = meet.listen(lead)
    bank = meet.read("bank", password_env="BANK_KEY", password=b"one secret", lists=lists)
    talk(links["bank"], meet.dial(port, bank))
    talk(links["shop"], meet.dial(port, meet.read("shop", shop, lists=lists)))
    assert meet.said == []


def test_an_old_root_signed_with_sha1_is_trusted_at_both_ends(meet: Meeting) -> None:
    root = OldRoot()
    meet.pki = SimpleNamespace(
        root=root, lead=root.leaf("fl01.lead.example"), bank=root.leaf("fl01.bank.example")
    )
    lists = pem(root.crl())
    port, links = meet.listen(meet.read("lead", lists=lists))
    talk(links["bank"], meet.dial(port, meet.read("bank", lists=lists)))
    assert meet.said == []


def test_a_look_at_the_leader_is_not_reported_as_a_stranger(pki: Pki, meet: Meeting) -> None:
    lead, link = Link("bank", patience_s=PATIENCE_S), Link("lead", patience_s=PATIENCE_S)
    with Listener(LOOPBACK, {"bank": lead}, "lead", meet.read("lead"), print) as listener:
        meet.stack.enter_context(Dialer(listener.address, link, "bank", meet.read("bank")))
        talk(lead, link)
        assert list(listener._handshakes._open) == []


@pytest.mark.parametrize("spelled", ["10.9.9.9", "2001:DB8:0::7", "LEAD.Internal"])
def test_a_leader_by_an_address_or_another_spelling(pki: Pki, meet: Meeting, spelled: str) -> None:
    leaf = pki.left.leaf("lead.internal", "10.9.9.9", "2001:db8::7", "x.example")
    names = {**NAMES, "lead": spelled}
    port, links = meet.listen(meet.read("lead", leaf, names=names))
    talk(links["bank"], meet.dial(port, meet.read("bank", names=names)))


def test_a_list_that_is_half_written_is_read_again(
    pki: Pki, meet: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, links = meet.listen(meet.read("lead"))
    bank, whole = meet.read("bank", lists=pki.lists()), pki.lists()
    path, reads = bank.settings.crl_path, list[int]()
    assert path is not None
    path.write_bytes(whole[:100])

    def revocations(own: Credentials) -> object:
        reads.append(1)
        if len(reads) == 3:
            path.write_bytes(whole)
        return plain(own)

    plain = Credentials.revocations
    monkeypatch.setattr(Credentials, "revocations", revocations)
    talk(links["bank"], meet.dial(port, bank))


@pytest.mark.parametrize("kind", ["p521", "ed25519"])
def test_authorities_with_keys_that_parties_cannot_have(tmp_path: Path, kind: str) -> None:
    pki = Pki.__new__(Pki)
    pki.root = Authority("root", kind)
    pki.left = Authority("left", kind, pki.root)
    pki.lead, pki.bank = pki.left.leaf(NAMES["lead"]), pki.left.leaf(NAMES["bank"])
    with ExitStack() as stack:
        meet = Meeting(pki, tmp_path, stack)
        lists = pem(pki.root.crl(), pki.left.crl())
        port, links = meet.listen(meet.read("lead", lists=lists))
        talk(links["bank"], meet.dial(port, meet.read("bank", lists=lists)))


# --- names: one authority, other parties


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["fl01.shop.example"], "fl01.shop.example"),
        (["*.bank.example"], "*.bank.example"),
        (["bank"], "bank"),
        (["fl01.bank.example", "fl01.lead.example"], "fl01.bank.example, fl01.lead.example"),
        (["fl01.bank.example", "10.1.2.3"], "fl01.bank.example, 10.1.2.3"),
        ([], "nobody"),
    ],
)
def test_a_follower_with_a_certificate_that_is_not_its_own(
    pki: Pki, meet: Meeting, names: list[str], shown: str
) -> None:
    port, _ = meet.listen(meet.read("lead"))
    leaf = pki.right.leaf(*names, common="fl01.bank.example")
    reason = (
        f"lead knows no follower with the certificate of {shown}; its followers are bank "
        f"(fl01.bank.example), shop (10.1.2.3)"
    )
    assert knock(port, leaf, pki.root) == f"FAILED_PRECONDITION: {reason}"
    assert meet.said == [f"refused: {reason}"]


def test_a_follower_that_says_it_is_another(pki: Pki, meet: Meeting) -> None:
    port, links = meet.listen(meet.read("lead"))
    assert knock(port, pki.bank, pki.root, "bank") == "welcomed"
    said = knock(port, pki.bank, pki.root, "shop")
    assert said == "FAILED_PRECONDITION: the certificate of bank was shown by 'shop'"
    assert not links["shop"]._stream


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["fl01.bank.example"], "fl01.bank.example"),
        (["*.lead.example"], "*.lead.example"),
        (["fl01.lead.example", "10.1.2.3"], "fl01.lead.example, 10.1.2.3"),
        (["lead"], "lead"),
    ],
)
def test_a_leader_with_a_certificate_that_is_not_its_own(
    pki: Pki, meet: Meeting, names: list[str], shown: str
) -> None:
    own = meet.read("lead")
    leaf = pki.left.leaf(*names, common="fl01.lead.example")
    false = dataclasses.replace(
        own, certificate=pem(leaf.certificate, *leaf.chain), key=leaf.key_pem()
    )
    port, links = meet.listen(false)
    assert refused(meet.dial(port, meet.read("bank"))) == (
        f"the certificate at 127.0.0.1:{port} is that of {shown}, not that of the leader, lead "
        f"(fl01.lead.example)"
    )
    assert not links["bank"]._stream


class Turns:
    """A relay that leads one connection to the first port, the next one to the second."""

    def __init__(self, *ports: int) -> None:
        self._ports, self.accepted = ports, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                to = self._ports[self.accepted % len(self._ports)]
                self.accepted += 1
                there = socket.create_connection(("127.0.0.1", to))
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def test_nobody_takes_the_leaders_place_after_its_certificate_was_looked_at(
    pki: Pki, meet: Meeting
) -> None:
    port, _ = meet.listen(meet.read("lead"))
    # Somebody has a certificate that the authority has revoked, and stands in between.
    stolen = pki.left.leaf("fl01.lead.example")
    thief, taken = meet.listen(meet.read("lead", stolen))
    relay = Turns(port, thief)
    own = meet.read("bank", lists=pki.lists(stolen.certificate))
    link = meet.dial(relay.port, own)
    end = time.monotonic() + PATIENCE_S
    while relay.accepted < 6 and time.monotonic() < end:
        assert not taken["bank"]._stream
        assert not link._stream
        time.sleep(0.01)
    relay.close()
    assert relay.accepted >= 6
    # Without its list the follower would be taken in, so that the test can fail.
    talk(taken["bank"], meet.dial(thief, meet.read("bank")))


# --- revocation


def test_a_follower_whose_certificate_is_revoked(pki: Pki, meet: Meeting) -> None:
    revoked = pki.right.leaf("fl01.bank.example", kind="rsa2048")
    port, links = meet.listen(meet.read("lead", lists=pki.lists(revoked.certificate)))
    said = refused(meet.dial(port, meet.read("bank", revoked)))
    assert said.startswith(
        f"lead refuses: the certificate of fl01.bank.example with the serial number "
        f"{revoked.certificate.serial_number:x} was revoked on "
    )
    assert said.endswith(" by CN=Right CA")
    assert "was revoked on" in knock(port, revoked, pki.root)
    assert not links["bank"]._stream
    talk(links["bank"], meet.dial(port, meet.read("bank")))
    assert all(one.startswith("refused: the certificate of fl01.bank") for one in meet.said)


def test_a_leader_whose_certificate_is_revoked(pki: Pki, meet: Meeting) -> None:
    port, links = meet.listen(meet.read("lead"))
    own = meet.read("bank", lists=pki.lists(pki.lead.certificate))
    assert refused(meet.dial(port, own)) == (
        f"the certificate at 127.0.0.1:{port}, or that of an authority above it, is revoked by "
        f"the list in {own.settings.crl}"
    )
    assert not links["bank"]._stream


def test_an_authority_that_is_revoked(pki: Pki, meet: Meeting) -> None:
    lead = meet.read("lead", lists=pki.lists(pki.right.certificate))
    port, _ = meet.listen(lead)
    said = knock(port, pki.bank, pki.root)
    assert "the certificate of the authority CN=Right CA with the serial number" in said
    bank = meet.read("bank", lists=pki.lists(pki.left.certificate))
    assert "or that of an authority above it, is revoked" in refused(meet.dial(port, bank))


def test_one_whose_own_certificate_is_revoked_does_not_begin(pki: Pki, meet: Meeting) -> None:
    with pytest.raises(
        CertificateError, match=r"^the certificate of fl01\.bank\.example, .* was revok"
    ):
        meet.read("bank", lists=pki.lists(pki.bank.certificate))
    with pytest.raises(CertificateError, match=r"the authority CN=Right CA with the serial"):
        meet.read("bank", lists=pki.lists(pki.right.certificate))


def test_a_new_list_counts_from_the_next_connection_on(pki: Pki, meet: Meeting) -> None:
    lead = meet.read("lead", lists=pki.lists())
    port, links = meet.listen(lead)
    assert lead.settings.crl_path is not None
    with Cutter(port) as cutter:
        link = meet.dial(cutter.port, meet.read("bank"))
        talk(links["bank"], link)
        lead.settings.crl_path.write_bytes(pki.lists(pki.bank.certificate))
        talk(links["bank"], link)
        cutter.cut()
        end = time.monotonic() + PATIENCE_S
        while not link.is_over and time.monotonic() < end:
            time.sleep(0.01)
        with pytest.raises(PeerRefused, match=r"^lead refuses: the certificate of fl01\."):
            link.receive()


def test_lists_that_have_expired(pki: Pki, meet: Meeting) -> None:
    ended = pem(pki.root.crl(), pki.left.crl(), pki.right.crl(ends=-0.25))
    with pytest.raises(CertificateError, match=r"list of CN=Right CA in .* expired on .* UTC: get"):
        meet.read("lead", lists=ended)
    lead, bank = meet.read("lead", lists=pki.lists()), meet.read("bank", lists=pki.lists())
    port, links = meet.listen(lead)
    for own in (lead, bank):
        assert own.settings.crl_path is not None
    bank.settings.crl_path.write_bytes(ended)  # type: ignore[union-attr]
    said = refused(meet.dial(port, bank), CertificateError)
    assert said.startswith("the revocation list of CN=Right CA in ")
    lead.settings.crl_path.write_bytes(ended)  # type: ignore[union-attr]
    said = knock(port, pki.bank, pki.root)
    assert said.startswith("FAILED_PRECONDITION: the revocation list of CN=Right CA in ")
    assert not links["bank"]._stream


def test_lists_of_some_authorities_only(pki: Pki, meet: Meeting) -> None:
    port, links = meet.listen(meet.read("lead", lists=pem(pki.root.crl(), pki.left.crl())))
    said = knock(port, pki.bank, pki.root)
    assert said.endswith(
        "has no current revocation list of CN=Right CA, which issued the certificate of "
        "fl01.bank.example, fl02.bank.example"
    )
    own = meet.read("bank", lists=pem(pki.root.crl(), pki.right.crl()))
    assert refused(meet.dial(port, own)).endswith("does not have the lists of all its authorities")
    assert not links["bank"]._stream


# --- weak keys


def test_peers_whose_keys_are_weak(pki: Pki, meet: Meeting) -> None:
    own = meet.read("lead")
    port, _ = meet.listen(own)
    weak = pki.right.leaf("fl01.bank.example", kind="rsa1024")
    assert knock(port, weak, pki.root) == (
        "FAILED_PRECONDITION: the certificate of fl01.bank.example is weak: its RSA key has 1024 "
        "bits, and 2048 are the least"
    )
    short = Authority("Short CA", "rsa1024", pki.root)
    assert "is weak: its RSA key has 1024 bits" in knock(
        port, short.leaf("fl01.bank.example"), pki.root
    )
    leaf = pki.left.leaf("fl01.lead.example", kind="rsa1024")
    false = dataclasses.replace(
        own, certificate=pem(leaf.certificate, *leaf.chain), key=leaf.key_pem()
    )
    port, links = meet.listen(false)
    assert f"the certificate at 127.0.0.1:{port} is refused: EE certificate key too weak" == (
        refused(meet.dial(port, meet.read("bank")))
    )
    assert not links["bank"]._stream


def test_a_key_that_was_taken_away_meanwhile(pki: Pki, meet: Meeting) -> None:
    port, _ = meet.listen(meet.read("lead"))
    own = meet.read("bank")
    (own.folder / "key.pem").unlink()
    said = refused(meet.dial(port, own), CertificateError)
    assert said.startswith(f"the files in {own.folder} have changed and cannot be used any more")


# --- a proxy in between


@contextlib.contextmanager
def proxy(answer: bytes) -> Iterator[tuple[int, list[str]]]:
    """An HTTP proxy that opens tunnels on CONNECT; gives its port and the requests."""
    listener, requests = socket.create_server(("127.0.0.1", 0)), list[str]()

    def tunnel(here: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += here.recv(4096)
        requests.append(head.decode())
        here.sendall(answer)
        if b" 200 " in answer:
            port = int(head.split()[1].rpartition(b":")[2])
            there = socket.create_connection(("127.0.0.1", port))
            carrier = Turns(port)
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=carrier._carry, args=(one, other), daemon=True).start()
            carrier.close()
        else:
            here.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=tunnel, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1], requests
    listener.close()


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return monkeypatch.setenv


def test_a_proxy_is_used_as_grpc_uses_it(
    pki: Pki, meet: Meeting, no_proxy: Callable[..., None]
) -> None:
    port, links = meet.listen(meet.read("lead"))
    with proxy(b"HTTP/1.1 200 OK\r\n\r\n") as (at, requests):
        no_proxy("https_proxy", f"http://me:pa%20ss@127.0.0.1:{at}")
        talk(links["bank"], meet.dial(port, meet.read("bank")))
        assert len(requests) == 2, "one to look, one for gRPC"
        for request in requests:
            assert request.startswith(f"CONNECT 127.0.0.1:{port} HTTP/1.")
            assert "Proxy-Authorization: Basic bWU6cGEgc3M=" in request
        for excepted in ("example.org, 127.0.0.1", "0.0.1", "127.0.0.0/8,"):
            no_proxy("no_proxy", excepted)
            port, links = meet.listen(meet.read("lead"))
            talk(links["bank"], meet.dial(port, meet.read("bank")))
            assert len(requests) == 2


@pytest.mark.parametrize("answer", [b"HTTP/1.1 403 no\r\n\r\n", b"nonsense\r\n\r\n", b"\r\n"])
def test_a_proxy_that_refuses(meet: Meeting, no_proxy: Callable[..., None], answer: bytes) -> None:
    own = meet.read("bank")
    with proxy(answer) as (at, requests):
        no_proxy("http_proxy", f"http://127.0.0.1:{at}")
        link = meet.dial(1, own)
        end = time.monotonic() + PATIENCE_S
        while len(requests) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(requests) >= 3, "it dials again"
        assert not link.is_over
