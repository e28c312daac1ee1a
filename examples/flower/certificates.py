"""Certificates and node keys for a try on one machine: `python certificates.py DIR CLIENTS`.

DIR/ca.crt, server.pem, server.key: a certificate authority of a day, and the SuperLink's
certificate for localhost. DIR/node-N and node-N.pub: SuperNode N's key, as `ssh-keygen -t ecdsa
-b 384` makes one. A real federation has certificates of its own, and each SuperNode makes its key
where it stands.
"""

from __future__ import annotations

import argparse
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

_A_DAY = timedelta(days=1)


def make(folder: Path, clients: int) -> None:
    """Write all of them into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (
        ec.generate_private_key(ec.SECP384R1()),
        ec.generate_private_key(ec.SECP384R1()),
    )
    issuer = _name("fedveil loopback authority")
    root = _certificate(issuer, issuer, authority.public_key(), authority, authority=True)
    leaf = _certificate(_name("localhost"), issuer, server.public_key(), authority, authority=False)
    (folder / "ca.crt").write_bytes(root.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(Encoding.PEM))
    _write_private(folder / "server.key", server, PrivateFormat.PKCS8)
    for number in range(clients):
        key = ec.generate_private_key(ec.SECP384R1())
        _write_private(folder / f"node-{number}", key, PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"node-{number}.pub").write_bytes(public + b"\n")


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _A_DAY)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("clients", type=int)
    options = parser.parse_args()
    make(options.folder, options.clients)
