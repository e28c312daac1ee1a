"""Certificates are named in errors, and weak ones are refused."""

from __future__ import annotations

from base64 import b64decode

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedveil.link import tls
from fedveil.link.certificate_chain import described, weakness
from pki import Authority, name

ROOT = Authority("root")
#: A certificate that is signed with SHA-1, which the library here makes no more.
OLD = """
MIIBFDCBvQIUIEBisNZtjHp526rUCKusmt9awSEwCQYHKoZIzj0EATAPMQ0wCwYDVQQDDARyb290MCAXDTI2MTEyNjE2
NTczNFoYDzIxMjYxMTAyMTY1NzM0WjAMMQowCAYDVQQDDAFhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEBdAa2L/a
8tmupcHZWE7cUCbsDwu+fEG8ALHFYUUgHVnj4ybu3VLoDIxkfyRBomJtQbo78E9+w6sQ8D2svhYSVDAJBgcqhkjOPQQB
A0cAMEQCIFPoLhaKg+7yplY7fAUzuoEEtSUWoOphircym9HRYym3AiBaRbfWV52iVa7gm2WzWbdsmrJ4SvAKtfWxnow1
t0YBRg==
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
        issued = tls._builder(name("a"), name("root"), key.public_key(), 1)
        assert weakness(issued.sign(ROOT.key, hashes.SHA256())) == why


def test_a_signature_with_sha1_is_weak() -> None:
    assert weakness(x509.load_der_x509_certificate(b64decode(OLD))) == "it is signed with sha1"
