"""Issues the parties' certificates: a private authority, and a certificate for each party.

DIR/authority.key        stays with the user who ran `certificates`; it can impersonate anybody
DIR/authority.pem
DIR/PARTY/               what PARTY gets (see `tls.py`)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedveil.base.files import write_whole
from fedveil.base.validate import integer
from fedveil.errors import CertificateError
from fedveil.link.certificate_chain import load_chain
from fedveil.link.names import check_name
from fedveil.link.tls import read_pem
from fedveil.link.tls_settings import read_secret
from fedveil.record.run_folder import make_folder

AUTHORITY_DAYS = 3650
_CLOCK_SLACK = timedelta(days=1)


def write_certificates(folder: Path, parties: Sequence[str], *, days: int = 825) -> list[Path]:
    """Write a folder for each party, with its key, certificate and authority. Returns the folders.

    The certificates are valid for `days` days. Uses the certificate authority in `folder`, or
    creates one there. Raises CertificateError if a party's folder exists, or if the authority's key
    is missing.
    """
    integer("days", days, 1, AUTHORITY_DAYS)
    _check_parties(folder, parties)
    make_folder(folder)
    try:
        authority, authority_key = _authority(folder)
        return [_write_party(folder, party, authority, authority_key, days) for party in parties]
    except OSError as error:
        where = error.filename or folder
        raise CertificateError(f"{where} cannot be written: {error.strerror or error}") from None


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
        # TLS compares names without regard to case.
        alike = [name for name in taken if name.lower() == party.lower()]
        if alike:
            raise CertificateError(
                f"the parties {alike[0]} and {party} differ in case alone, which certificates do "
                f"not tell apart"
            )
        taken.add(party)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the certificate and the key of the authority in `folder`. Creates a missing authority.

    The key is written first. So a certificate without a key is not that of an interrupted creation,
    but of an authority whose key is kept elsewhere. It is never replaced.
    """
    key_file, file = folder / "authority.key", folder / "authority.pem"
    if not _is_there(key_file):
        if _is_there(file):
            raise CertificateError(
                f"{file} is there without its key, {key_file}: put the key back, or choose another "
                f"folder for a new authority"
            )
        _write_key(key_file, ec.generate_private_key(ec.SECP256R1()))
    key = _load_authority_key(key_file)
    if not _is_there(file):
        _write_certificate(file, _root(key))
    authority = load_chain(read_pem(file), file)[0]
    if authority.public_key() != key.public_key():
        raise CertificateError(f"{key_file} is not the key of the authority in {file}")
    return authority, key


def _is_there(path: Path) -> bool:
    """Return True if `path` exists. A link counts even if its target, such as a disk, is away."""
    return path.exists() or path.is_symlink()


def _root(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedveil authority")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


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


def _load_authority_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(
            read_secret(path, str(path), "the key"), password=None
        )
    except (ValueError, TypeError):
        raise CertificateError(f"{path} is not an unencrypted private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path} is not the key that `fedveil vertical certificates` made")
    return key


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(path, pem, 0o600)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    write_whole(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
