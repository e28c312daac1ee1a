"""The certificates that parties know each other by: a private authority, and one for each party.

    DIR/authority.key        stays with whoever ran `certificates`; whoever has it can be anybody
    DIR/PARTY/authority.pem  what PARTY trusts
    DIR/PARTY/certificate.pem
    DIR/PARTY/key.pem        PARTY's alone

Each party gets its own folder and no other. A certificate names its party as a DNS name among
the subject's alternative names; both ends of a link show theirs, and both check the other's.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedveil._files import write_whole
from fedveil._untrusted import MOST_KEY_BYTES, read_bytes
from fedveil._validate import integer
from fedveil.errors import CertificateError
from fedveil.link.names import check_name
from fedveil.record.run_folder import make_folder

AUTHORITY_DAYS = 3650
_CLOCK_SLACK = timedelta(days=1)


@dataclass(frozen=True)
class Credentials:
    """What a party shows and what it trusts, in PEM; checked when it was read."""

    party: str
    folder: Path
    certificate: bytes
    key: bytes
    authority: bytes

    @classmethod
    def read(cls, folder: Path, party: str) -> Credentials:
        """A party's credentials in its own folder, or in the one of that name in `folder`."""
        folder = folder / party if (folder / party).is_dir() else folder
        certificate, authority = _read(folder / "certificate.pem"), _read(folder / "authority.pem")
        found = cls(party, folder, certificate, _read_key(folder / "key.pem"), authority)
        _check(found)
        return found

    def client_context(self) -> ssl.SSLContext:
        """These credentials for Python's own TLS; names are left to the caller to check."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=self.authority.decode())
        context.load_cert_chain(self.folder / "certificate.pem", self.folder / "key.pem")
        return context


def write_certificates(folder: Path, parties: Sequence[str], *, days: int = 825) -> list[Path]:
    """Make the authority where there is none, and each party's folder; their paths.

    A party that has a folder already keeps it: what is there is never written over.
    """
    integer("days", days, 1, AUTHORITY_DAYS)
    _check_parties(folder, parties)
    make_folder(folder)
    try:
        if not (folder / "authority.key").exists():
            _write_authority(folder)
        authority_key = _load_key(_read_key(folder / "authority.key"), folder / "authority.key")
        authority = _load(_read(folder / "authority.pem"), folder / "authority.pem")
        return [_write_party(folder, party, authority, authority_key, days) for party in parties]
    except OSError as error:
        where = error.filename or folder
        raise CertificateError(f"{where} cannot be written: {error.strerror or error}") from None


def named_in(folder: Path) -> str | None:
    """The party whose certificate lies in `folder`; None where none does."""
    path = folder / "certificate.pem"
    return party_of(_load(_read(path), path)) if path.exists() else None


def party_of(certificate: x509.Certificate) -> str | None:
    """The one party that a certificate names; None where it names none, or several."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return None
    found = names.value.get_values_for_type(x509.DNSName)
    return found[0] if len(found) == 1 else None


def _check_parties(folder: Path, parties: Sequence[str]) -> None:
    taken = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    for party in parties:
        check_name("the party", party)
        if parties.count(party) > 1:
            raise CertificateError(f"the party {party} is named twice")
        if party in taken:
            raise CertificateError(
                f"{folder / party} is there already: remove it first to make new certificates"
            )
        # TLS compares names without their case.
        alike = [name for name in taken if name.lower() == party.lower()]
        if alike:
            raise CertificateError(
                f"the parties {alike[0]} and {party} differ in case alone, which certificates do "
                f"not tell apart"
            )
        taken.add(party)


def _write_authority(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedveil authority")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_certificate(folder / "authority.pem", certificate)
    # The key comes last: an authority that was cut short in the making is made again.
    _write_key(folder / "authority.key", key)


def _write_party(
    folder: Path,
    party: str,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, party)])
    certificate = (
        _builder(name, authority.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(party)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    target = folder / party
    target.mkdir(mode=0o700)
    _write_certificate(target / "authority.pem", authority)
    _write_certificate(target / "certificate.pem", certificate)
    _write_key(target / "key.pem", key)
    return target


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + timedelta(days=days))
    )


def _check(found: Credentials) -> None:
    """Refuse here, with a sentence, what a handshake would refuse with less of one."""
    certificate = _load(found.certificate, found.folder / "certificate.pem")
    authority = _load(found.authority, found.folder / "authority.pem")
    key = _load_key(found.key, found.folder / "key.pem")
    named = party_of(certificate)
    if named != found.party:
        raise CertificateError(
            f"the certificate in {found.folder} is {named or 'nobody'}'s, and the party here is "
            f"{found.party}"
        )
    if key.public_key() != certificate.public_key():
        raise CertificateError(f"key.pem in {found.folder} is not the key of certificate.pem")
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise CertificateError(
            f"certificate.pem in {found.folder} is not of the authority in authority.pem"
        ) from None
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise CertificateError(
            f"the certificate in {found.folder} expired on {certificate.not_valid_after_utc:%F}: "
            f"`fedveil vertical certificates` makes a new one"
        )


def _load(pem: bytes, path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise CertificateError(f"{path} is not a certificate in PEM") from None


def _load_key(pem: bytes, path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise CertificateError(f"{path} is not an unencrypted private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path} is not an elliptic-curve key, as certificates here have")
    return key


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, MOST_KEY_BYTES)
    except OSError as error:
        raise CertificateError(
            f"{path} cannot be read: {error.strerror}; `fedveil vertical certificates` makes it"
        ) from None


def _read_key(path: Path) -> bytes:
    data = _read(path)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise CertificateError(
            f"{path} has mode {mode:04o}, so that others can read the key: chmod 600 it"
        )
    return data


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(path, pem, 0o600)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    write_whole(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
