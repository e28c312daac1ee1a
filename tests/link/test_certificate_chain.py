"""Certificates are named in errors, and weak ones are refused."""

from __future__ import annotations

from base64 import b64decode

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedveil.link import own_authority
from fedveil.link.certificate_chain import described, is_authority, is_root, weakness
from pki import Authority, OldRoot, name

ROOT = Authority("root")
#: A certificate that is signed with SHA-1, which the library here makes no more.
OLD = """
MIIBFDCBvQIUIEBisNZtjHp526rUCKusmt9awSEwCQYHKoZIzj0EATAPMQ0wCwYDVQQDDARyb290MCAXDTI2MTEyNjE2
NTczNFoYDzIxMjYxMTAyMTY1NzM0WjAMMQowCAYDVQQDDAFhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEBdAa2L/a
8tmupcHZWE7cUCbsDwu+fEG8ALHFYUUgHVnj4ybu3VLoDIxkfyRBomJtQbo78E9+w6sQ8D2svhYSVDAJBgcqhkjOPQQB
A0cAMEQCIFPoLhaKg+7yplY7fAUzuoEEtSUWoOphircym9HRYym3AiBaRbfWV52iVa7gm2WzWbdsmrJ4SvAKtfWxnow1
t0YBRg==
"""
#: An authority of the name "root", signed by `OldRoot` with SHA-1.
NEXT = """
MIIBdDCCARqgAwIBAgIUAXa/ON9lTsGa17JaiQB4Ri97bJwwCQYHKoZIzj0EATAPMQ0wCwYDVQQDDARyb290MCAXDTI2MTEy
NjIzMDEyM1oYDzIxMjYxMTAyMjMwMTIzWjAPMQ0wCwYDVQQDDARyb290MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEJZro
TuRJ/7a/74SdFygkn515WKknnsspUpYHefBmicgDY21tGOiRcZLW9YTY2sVhICCOWQ6iLvQG7DqNU4EKx6NTMFEwHQYDVR0O
BBYEFO1tUOn9Mt6X+m7yhWAdptuEnjXsMB8GA1UdIwQYMBaAFGeQrsyP/Dxd4olkfKOJoNJkNuGtMA8GA1UdEwEB/wQFMAMB
Af8wCQYHKoZIzj0EAQNJADBGAiEA9hAD4BJhRfwt8hj7Q3WXBh+4xgfvSjzxS6+va3ePqM8CIQCEZCwsaFSCWrsyzLbI4nsI
5/Ao9DzqIEj2P4B8RetyPA==
"""


def test_a_certificate_is_described_by_its_first_names_shortened_and_printable() -> None:
    for names, shown in (
        ([], "nobody"),
        (["a.example", "10.1.2.3", "b.example"], "a.example, b.example, 10.1.2.3"),
        (["a", "b", "c", "d"], "a, b, c, ..."),
        (["x" * 101, "\x1b[31m"], f"{'x' * 100}, '\\x1b[31m'"),
    ):
        assert described(ROOT.leaf(*names).certificate) == shown


def test_short_curves_are_weak() -> None:
    short = "its key is on the curve secp224r1, and P-256 is the least"
    for curve, why in ((ec.SECP224R1(), short), (ec.SECP256R1(), None)):
        key = ec.generate_private_key(curve)
        issued = own_authority._builder(name("a"), name("root"), key.public_key(), 1)
        assert weakness(issued.sign(ROOT.key, hashes.SHA256())) == why


def test_a_signature_that_is_not_known_makes_no_root_and_a_damaged_name_is_none() -> None:
    sha256, other = bytes.fromhex("2a8648ce3d040302"), bytes.fromhex("2a8648ce3d04037f")
    der = ROOT.certificate.public_bytes(Encoding.DER)
    assert der.count(sha256) == 2
    unknown = x509.load_der_x509_certificate(der.replace(sha256, other))
    assert not is_root(unknown)
    assert weakness(unknown) == "its key or its signature is of a kind that is not known"
    damaged = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"names")
    own = own_authority._builder(name("a"), ROOT.name, ROOT.key.public_key(), 1).add_extension(
        damaged, False
    )
    assert described(own.sign(ROOT.key, hashes.SHA256())) == "nobody"


def test_a_certificate_with_two_lists_of_names_has_none() -> None:
    constraints, names = bytes.fromhex("0603551d13"), bytes.fromhex("0603551d11")
    der = ROOT.leaf("a").certificate.public_bytes(Encoding.DER)
    assert der.count(constraints) == der.count(names) == 1
    twice = x509.load_der_x509_certificate(der.replace(constraints, names))
    assert described(twice) == "nobody"
    assert not is_authority(twice)


def test_a_signature_with_sha1_is_weak_except_at_a_root() -> None:
    for other in (OLD, NEXT):
        certificate = x509.load_der_x509_certificate(b64decode(other))
        assert not is_root(certificate)
        assert weakness(certificate) == "it is signed with sha1"
    root = OldRoot().certificate
    assert is_root(root)
    assert weakness(root) is None
