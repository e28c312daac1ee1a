"""Revocation lists: whom they cover, and one answer from OpenSSL and from this package's check."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedveil.errors import CertificateError
from fedveil.link.certificate_chain import ascent
from fedveil.link.revocation import RevocationLists
from hostile_files import bounded
from pki import Authority, Leaf, name, pem

POINT = x509.UniformResourceIdentifier("http://crl.example/7.crl")
FIRST = x509.UniformResourceIdentifier("ldap://crl.example/cn=5")
LAST = x509.UniformResourceIdentifier("http://crl.example/6.crl")
OTHER = x509.UniformResourceIdentifier("http://crl.example/8.crl")


def scope(**changes: Any) -> tuple[x509.IssuingDistributionPoint, bool]:
    fields = {
        "full_name": None,
        "relative_name": None,
        "only_contains_user_certs": False,
        "only_contains_ca_certs": False,
        "only_some_reasons": None,
        "indirect_crl": False,
        "only_contains_attribute_certs": False,
    }
    return x509.IssuingDistributionPoint(**{**fields, **changes}), True


def by(authority: Authority) -> tuple[x509.AuthorityKeyIdentifier, bool]:
    """Return the extension that says which key signed a list, apart from its owner's name."""
    public = authority.key.public_key()
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(public), False


class Pki:
    def __init__(self) -> None:
        self.root = Authority("Root", "rsa2048")
        self.issuing = Authority("Issuing", "p384", self.root)
        named = ([FIRST], [LAST, POINT])
        points = x509.CRLDistributionPoints(
            [x509.DistributionPoint(names, None, None, None) for names in named]
        )
        self.leaf = self.issuing.leaf("bank", extensions=[points])
        self.other = self.issuing.leaf("shop")
        #: Another authority that took the same name.
        self.double = Authority("Issuing", "p256", self.root)


@pytest.fixture(scope="module")
def pki() -> Pki:
    return Pki()


def lists_of(folder: Path, *lists: x509.CertificateRevocationList) -> RevocationLists:
    path = folder / "crl.pem"
    path.write_bytes(pem(*lists))
    return RevocationLists.read(path)


def openssl_says(leaf: Leaf, root: Authority, folder: Path) -> str:
    """Ask Python's ssl about a server that shows `leaf`, as a follower does."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown = leaf.write(folder / "shown", root)
    server.load_cert_chain(shown / "certificate.pem", shown / "key.pem")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=pem(root.certificate).decode())
    client.load_verify_locations(cafile=folder / "crl.pem")
    client.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(incoming, outgoing)
    there = server.wrap_bio(outgoing, incoming, server_side=True)
    for _ in range(4):
        for end in (here, there):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                return "revoked" if error.verify_code == 23 else "no list"
    assert here.version() == "TLSv1.3"
    return "good"


#: What the lists are -> the answer. Each is built of the authorities of a Pki.
CASES: dict[str, tuple[Callable[[Pki], list[Any]], str]] = {
    "nobody is revoked": (lambda p: [p.root.crl(), p.issuing.crl()], "good"),
    "another one is": (lambda p: [p.root.crl(), p.issuing.crl(p.other.certificate)], "good"),
    "it is": (lambda p: [p.root.crl(), p.issuing.crl(p.leaf.certificate)], "revoked"),
    "its authority is": (lambda p: [p.root.crl(p.issuing.certificate), p.issuing.crl()], "revoked"),
    "no list of the root": (lambda p: [p.issuing.crl()], "no list"),
    "no list of the issuer": (lambda p: [p.root.crl()], "no list"),
    "the newest one is good": (
        lambda p: [p.root.crl(), p.issuing.crl(p.leaf.certificate, began=-2), p.issuing.crl()],
        "good",
    ),
    "the newest one is bad": (
        lambda p: [p.root.crl(), p.issuing.crl(p.leaf.certificate), p.issuing.crl(began=-2)],
        "revoked",
    ),
    "the old one has expired": (
        lambda p: [p.issuing.crl(p.leaf.certificate, ends=-0.5, began=-2), p.root.crl(),
                   p.issuing.crl()],
        "good",
    ),
    "signed with another key": (
        lambda p: [p.root.crl(), p.issuing.crl(key=p.other.key)], "no list"
    ),
    "of another authority of that name": (lambda p: [p.root.crl(), p.double.crl()], "no list"),
    "and a newer one of another authority of that name": (
        lambda p: [p.root.crl(), p.issuing.crl(extensions=[by(p.issuing)], began=-2),
                   p.double.crl(extensions=[by(p.double)])],
        "good",
    ),
    "and a newer one of another authority of that name, and it is revoked": (
        lambda p: [p.double.crl(extensions=[by(p.double)]), p.root.crl(),
                   p.issuing.crl(p.leaf.certificate, extensions=[by(p.issuing)], began=-2)],
        "revoked",
    ),
    "for users only": (
        lambda p: [p.root.crl(),
                   p.issuing.crl(extensions=[scope(only_contains_user_certs=True)])],
        "good",
    ),
    "the newest one is bad and for users only": (
        lambda p: [p.root.crl(), p.issuing.crl(began=-2),
                   p.issuing.crl(p.leaf.certificate,
                                 extensions=[scope(only_contains_user_certs=True)])],
        "revoked",
    ),
    "for authorities only": (
        lambda p: [p.root.crl(), p.issuing.crl(extensions=[scope(only_contains_ca_certs=True)])],
        "no list",
    ),
    "for attribute certificates only": (
        lambda p: [p.root.crl(),
                   p.issuing.crl(extensions=[scope(only_contains_attribute_certs=True)])],
        "no list",
    ),
    "the root's for users only": (
        lambda p: [p.root.crl(extensions=[scope(only_contains_user_certs=True)]),
                   p.issuing.crl()],
        "no list",
    ),
    "of its distribution point": (
        lambda p: [p.root.crl(), p.issuing.crl(extensions=[scope(full_name=[POINT])])], "good"
    ),
    "of its distribution point, and it is revoked": (
        lambda p: [p.root.crl(),
                   p.issuing.crl(p.leaf.certificate, extensions=[scope(full_name=[POINT])])],
        "revoked",
    ),
    "of another distribution point": (
        lambda p: [p.root.crl(), p.issuing.crl(extensions=[scope(full_name=[OTHER])])], "no list"
    ),
    "of its distribution point and of another": (
        lambda p: [p.root.crl(), p.issuing.crl(extensions=[scope(full_name=[OTHER, FIRST])])],
        "good",
    ),
    "of its distribution point and of another, and it is revoked": (
        lambda p: [p.root.crl(),
                   p.issuing.crl(p.leaf.certificate,
                                 extensions=[scope(full_name=[POINT, OTHER])])],
        "revoked",
    ),
    "of both distribution points": (
        lambda p: [p.root.crl(),
                   p.issuing.crl(extensions=[scope(full_name=[OTHER])]),
                   p.issuing.crl(p.leaf.certificate, extensions=[scope(full_name=[POINT])],
                                 began=-2)],
        "revoked",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_openssl_and_this_package_give_one_answer(pki: Pki, tmp_path: Path, case: str) -> None:
    make, answer = CASES[case]
    lists = lists_of(tmp_path, *make(pki))
    chain = ascent(pki.leaf.certificate, [*pki.leaf.chain, pki.root.certificate])
    assert set(chain) == {pki.leaf.certificate, pki.issuing.certificate, pki.root.certificate}
    fault = lists.fault(chain)
    said = {None: "good"}.get(fault, "revoked" if "was revoked on" in str(fault) else "no list")
    assert said == answer, fault
    assert openssl_says(pki.leaf, pki.root, tmp_path) == answer


def test_no_path_that_a_library_could_take_is_left_out(pki: Pki, tmp_path: Path) -> None:
    """Two certificates of one authority key: the one above it in either of them counts."""
    again = Authority("Second Root", "p256")
    twin = Authority("Issuing", above=again)
    usage = pki.issuing.certificate.extensions.get_extension_for_class(x509.KeyUsage)
    cross = (
        x509.CertificateBuilder()
        .subject_name(twin.name)
        .issuer_name(again.name)
        .public_key(pki.issuing.key.public_key())
        .serial_number(99)
        .not_valid_before(pki.issuing.certificate.not_valid_before_utc)
        .not_valid_after(pki.issuing.certificate.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage.value, critical=True)
        .sign(again.key, again.certificate.signature_hash_algorithm)  # type: ignore[arg-type]
    )
    lists = lists_of(tmp_path, pki.root.crl(), again.crl(cross), pki.issuing.crl())
    for others in ([cross, pki.issuing.certificate], [pki.issuing.certificate, cross]):
        roots = [pki.root.certificate, again.certificate]
        fault = lists.fault(ascent(pki.leaf.certificate, [*others, *roots]))
        assert fault is not None
        assert "serial number 63 was revoked" in fault
    alone = ascent(pki.leaf.certificate, [pki.issuing.certificate, pki.root.certificate])
    assert lists.fault(alone) is None


def test_a_revoked_authority_cannot_be_hidden_among_many(pki: Pki, tmp_path: Path) -> None:
    """Anybody can certify another authority's name and public key by one of his own."""
    own, issuing = Authority("Mallory"), pki.issuing.certificate
    builder = x509.CertificateBuilder().subject_name(issuing.subject).issuer_name(own.name)
    builder = builder.public_key(pki.issuing.key.public_key())
    builder = builder.not_valid_before(issuing.not_valid_before_utc)
    builder = builder.not_valid_after(issuing.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    hash_ = own.certificate.signature_hash_algorithm
    twins = [builder.serial_number(n + 1).sign(own.key, hash_) for n in range(20)]  # type: ignore[arg-type]
    lists = lists_of(tmp_path, pki.root.crl(issuing), pki.issuing.crl())
    true = [issuing, pki.root.certificate]
    for count in (1, 12):
        for others in ([*twins[:count], *true], [*true, *twins[:count]]):
            assert lists.fault(ascent(pki.leaf.certificate, others)) is not None
    with pytest.raises(CertificateError, match="of bank comes with more than 15 authorities"):
        ascent(pki.leaf.certificate, [*twins, *true])


@pytest.mark.parametrize("usage", [False, True])
def test_an_authority_that_may_sign_no_lists(pki: Pki, tmp_path: Path, usage: bool) -> None:
    """One whose certificate states no usage may sign lists."""
    issuing = pki.issuing.certificate
    builder = x509.CertificateBuilder().subject_name(issuing.subject).issuer_name(issuing.issuer)
    builder = builder.public_key(pki.issuing.key.public_key()).serial_number(5)
    builder = builder.not_valid_before(issuing.not_valid_before_utc)
    builder = builder.not_valid_after(issuing.not_valid_after_utc)
    for extension in issuing.extensions:
        value: Any = extension.value
        if isinstance(value, x509.KeyUsage):
            if not usage:
                continue
            value = x509.KeyUsage(False, False, False, False, False, True, False, False, False)
        builder = builder.add_extension(value, critical=True)
    silent = builder.sign(pki.root.key, pki.root.certificate.signature_hash_algorithm)  # type: ignore[arg-type]
    lists = lists_of(tmp_path, pki.root.crl(), pki.issuing.crl())
    fault = lists.fault(ascent(pki.leaf.certificate, [silent, pki.root.certificate]))
    assert fault == (
        "crl.pem has no current revocation list of CN=Issuing, which issued the certificate of bank"
        if usage
        else None
    )
    both = ascent(pki.leaf.certificate, [silent, issuing, pki.root.certificate])
    assert lists.fault(both) is None  # the other certificate of this key may sign the list


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ends": -0.5}, r"expired on .* UTC: get a new one from the authority"),
        ({"began": 0.5}, r"is valid only from .* UTC on: check the clock"),
        ({"extensions": [(x509.DeltaCRLIndicator(5), True)]}, "is a delta list"),
        ({"extensions": [scope(indirect_crl=True)]}, "is an indirect list"),
        (
            {"extensions": [scope(only_some_reasons=frozenset([x509.ReasonFlags.key_compromise]))]},
            "is for some reasons of revocation",
        ),
        ({"extensions": [scope(relative_name=name("7").rdns[0])]}, "or by a relative name only"),
        (
            {
                "extensions": [
                    (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3"), b""), True)
                ]
            },
            r"has the critical extension 1\.2\.3, which is not known",
        ),
    ],
)
def test_lists_that_are_refused(
    pki: Pki, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(CertificateError, match=f"^the revocation list of CN=Issuing in .*{why}"):
        lists_of(tmp_path, pki.root.crl(), pki.issuing.crl(**options))


def test_files_that_hold_no_list(pki: Pki, tmp_path: Path) -> None:
    path = tmp_path / "crl.pem"
    for data in (
        b"",
        pem(pki.root.certificate),
        pem(pki.root.crl()).replace(b"MII", b"AAA"),
        pem(pki.issuing.crl()) + pem(pki.root.crl()).replace(b"MII", b"AAA"),
    ):
        path.write_bytes(data)
        with pytest.raises(
            CertificateError, match=r"crl\.pem is not a revocation list in PEM: `op"
        ):
            RevocationLists.read(path)


def test_a_file_of_many_beginnings_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "crl.pem"
    path.write_bytes(b"-----BEGIN X509 CRL-----\n" * 1_000_000)
    with bounded(), pytest.raises(CertificateError, match="is not a revocation list in PEM"):
        RevocationLists.read(path)
