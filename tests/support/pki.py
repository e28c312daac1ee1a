"""A PKI as in an organisation: a root, intermediate authorities, leaves and revocation lists."""

from __future__ import annotations

import ipaddress
from base64 import b64decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

NOW = datetime.now(UTC)
KINDS = {
    "rsa1024": lambda: rsa.generate_private_key(65537, 1024),
    "rsa2048": lambda: rsa.generate_private_key(65537, 2048),
    "rsa3072": lambda: rsa.generate_private_key(65537, 3072),
    "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "p384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "p521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}

_OLD_KEY = "10021eed4125430da2869b9ea812768a8d93a699161e35da9e9c4a4147b2d2d8"
_OLD_ROOT = """
MIIBcjCCARqgAwIBAgIULgXyOv/FjquiTqwY75zNXD9MlfswCQYHKoZIzj0EATAPMQ0wCwYDVQQDDARyb290MCAXDTI2MTEy
NjIzMDEyM1oYDzIxMjYxMTAyMjMwMTIzWjAPMQ0wCwYDVQQDDARyb290MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEIShb
Iqns8eIp9Ayk+oPEiWNf3Z1W3KI6YnZh4NhJoq+6vQvmB98hsUGID2eWFwrNB+vOcSN16ubyPNTyjrdsC6NTMFEwHQYDVR0O
BBYEFGeQrsyP/Dxd4olkfKOJoNJkNuGtMB8GA1UdIwQYMBaAFGeQrsyP/Dxd4olkfKOJoNJkNuGtMA8GA1UdEwEB/wQFMAMB
Af8wCQYHKoZIzj0EAQNHADBEAiB1HCKb/q1sIWtsg+EuCzfT0H8fbQkAm/7GyvtRwRtk4AIgeqZ2fRKAHkwHVSvn5nOAPprI
f+AnyqxBAIC8lG1Pij4=
"""


def name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def pem(*things: Any) -> bytes:
    return b"".join(thing.public_bytes(Encoding.PEM) for thing in things)


def hash_for(key: Any) -> hashes.SHA256 | None:
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def names_of(names: Iterable[str]) -> x509.SubjectAlternativeName:
    """Return DNS names and IP addresses. A name after ! is a DNS name in any case."""
    found: list[x509.GeneralName] = []
    for one in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(one)))
        except ValueError:
            found.append(x509.DNSName(one.removeprefix("!")))
    return x509.SubjectAlternativeName(found)


@dataclass(frozen=True)
class Leaf:
    """A certificate with its key, and the authorities above it except the root."""

    certificate: x509.Certificate
    key: Any
    chain: tuple[x509.Certificate, ...]

    def key_pem(self, password: bytes | None = None, *, traditional: bool = False) -> bytes:
        forms = serialization.PrivateFormat
        return self.key.private_bytes(
            Encoding.PEM,
            forms.TraditionalOpenSSL if traditional else forms.PKCS8,
            serialization.BestAvailableEncryption(password)
            if password
            else serialization.NoEncryption(),
        )

    def write(self, folder: Path, root: Authority, **settings: Any) -> Path:
        """Write a party's folder. `settings` go to tls.yaml; a `password` encrypts the key."""
        folder.mkdir(parents=True)
        password = settings.pop("password", None)
        traditional = settings.pop("traditional", False)
        files = {
            "certificate.pem": pem(self.certificate, *self.chain),
            "key.pem": self.key_pem(password, traditional=traditional),
            "authority.pem": pem(root.certificate),
        }
        for file, data in files.items():
            (folder / file).write_bytes(data)
            (folder / file).chmod(0o600)
        if settings:
            (folder / "tls.yaml").write_text(yaml.safe_dump(settings))
        return folder


class Authority:
    """An authority that issues leaves, other authorities and lists."""

    def __init__(self, common: str, kind: str = "p256", above: Authority | None = None) -> None:
        self.key: Any = KINDS[kind]()
        self.name = name(common)
        self._above = above
        issuer = above or self
        usage = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
             "key_agreement", "encipher_only", "decipher_only"), False,
        )  # fmt: skip
        self.certificate = (
            _builder(self.name, issuer.name, self.key.public_key(), 10)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
            )
            .sign(issuer.key, hash_for(issuer.key))
        )

    @property
    def chain(self) -> tuple[x509.Certificate, ...]:
        """Return this authority and those above it, except the root."""
        return () if self._above is None else (self.certificate, *self._above.chain)

    def leaf(
        self,
        *names: str,
        kind: str = "p256",
        common: str = "fl01",
        ends: float = 5,
        extensions: Sequence[x509.ExtensionType] = (),
        key: Any = None,
    ) -> Leaf:
        key = key or KINDS[kind]()
        builder = _builder(name(common), self.name, key.public_key(), ends)
        basics = x509.BasicConstraints(ca=False, path_length=None)
        found = [basics, *([names_of(names)] if names else []), *extensions]
        for extension in found:
            builder = builder.add_extension(extension, critical=extension is basics)
        return Leaf(builder.sign(self.key, hash_for(self.key)), key, self.chain)

    def crl(
        self,
        *revoked: x509.Certificate,
        began: float = -1,
        ends: float = 5,
        extensions: Sequence[tuple[x509.ExtensionType, bool]] = (),
        key: Any = None,
    ) -> x509.CertificateRevocationList:
        """Return a revocation list, valid from `began` to `ends` in days from now."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(NOW + timedelta(days=began))
            .next_update(NOW + timedelta(days=ends))
        )
        for one in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(one.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(NOW).build())
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        key = key or self.key
        return builder.sign(key, hash_for(key))


class OldRoot(Authority):
    """A root that is signed with SHA-1, as old roots are. The library here cannot make one."""

    def __init__(self) -> None:
        self.key = ec.derive_private_key(int(_OLD_KEY, 16), ec.SECP256R1())
        self.name = name("root")
        self._above = None
        self.certificate = x509.load_der_x509_certificate(b64decode(_OLD_ROOT))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, ends: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=3))
        .not_valid_after(NOW + timedelta(days=ends))
    )
