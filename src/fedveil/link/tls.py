"""Certificates that authenticate the parties: a private authority, and a certificate per party.

    DIR/authority.key        stays with the user who ran `certificates`; it can impersonate anybody
    DIR/PARTY/authority.pem  the authority that PARTY trusts
    DIR/PARTY/certificate.pem
    DIR/PARTY/key.pem        known to PARTY only
    DIR/PARTY/tls.yaml       only if PARTY has a PKI of its own (see `tls_settings`)

Each party gets only its own folder. A certificate names its party by a DNS name or an IP address
among the subject's alternative names.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedveil.base.files import write_whole
from fedveil.base.untrusted import MOST_KEY_BYTES, read_bytes
from fedveil.base.validate import integer
from fedveil.errors import CertificateError, PeerRefused
from fedveil.link.certificate_chain import ascent, described, load_chain, names_in, pem_of, weakness
from fedveil.link.names import check_name
from fedveil.link.own_certificate import check_own
from fedveil.link.private_key import load_key, pem_of_key
from fedveil.link.revocation import RevocationLists
from fedveil.link.tls_settings import TlsSettings, read_secret
from fedveil.record.run_folder import make_folder

AUTHORITY_DAYS = 3650
_CLOCK_SLACK = timedelta(days=1)
_MADE_BY = "; `fedveil vertical certificates` makes it"


@dataclass(frozen=True)
class Credentials:
    """A party's certificate, key and trusted authorities in PEM, validated when they were read.

    `certificate` begins with the party's own certificate, followed by intermediate certificates.
    `key` is not encrypted. `parties` are all parties of the job, including this one.
    """

    party: str
    folder: Path
    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes
    settings: TlsSettings
    parties: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path, party: str, parties: Iterable[str] = ()) -> Credentials:
        """Read and check a party's credentials from `folder`, or from its subfolder named `party`.

        `parties` are the parties of the job. Raises CertificateError for a missing or invalid file.
        """
        folder = folder / party if (folder / party).is_dir() else folder
        settings = TlsSettings.read(folder)
        known = tuple(dict.fromkeys([party, *parties]))
        settings.check_names([*known, *(() if parties else settings.names)])
        chain, roots = (
            load_chain(_read(settings.path(file)), settings.path(file))
            for file in (settings.certificate, settings.authority)
        )
        key = load_key(_read_key(settings.path(settings.key)), settings)
        found = cls(party, folder, pem_of(chain), pem_of_key(key), pem_of(roots), settings, known)
        check_own(found, chain, roots, key.public_key())
        return found

    def name_of(self, party: str) -> str:
        """Return the DNS name or IP address that the certificate of `party` must contain."""
        return self.settings.name_of(party)

    def party_of(self, certificate: x509.Certificate, among: Iterable[str] = ()) -> str | None:
        """Return the party that a certificate names.

        It is one of the job's parties, of the parties listed under `names` in `tls.yaml`, or of
        `among`. Returns None if the certificate names none or several of these.
        """
        names = names_in(certificate)
        known = dict.fromkeys([*self.parties, *self.settings.names, *among])
        found = [party for party in known if self.name_of(party) in names]
        return found[0] if len(found) == 1 else None

    def check_peer(self, certificate: x509.Certificate, others: Iterable[x509.Certificate]) -> None:
        """Raise PeerRefused if the peer's certificate, or an issuer's, is weak or revoked.

        `others` are the further certificates that the peer sent. The path to a trusted authority is
        not checked here, but by the TLS library.
        """
        roots = load_chain(self.authority, self.settings.path(self.settings.authority))
        chain = ascent(certificate, [*others, *roots])
        for one in chain:
            if (weak := weakness(one)) is not None:
                raise PeerRefused(f"the certificate of {described(certificate)} is weak: {weak}")
        if (lists := self.revocations()) is not None and (fault := lists.fault(chain)) is not None:
            raise PeerRefused(fault)

    def check_usage(self, *, listens: bool) -> None:
        """Raise CertificateError if this party's certificate is not valid for its end of the link.

        `listens` is True at the leader's end, which is a TLS server. A follower is a TLS client.
        """
        own = load_chain(self.certificate, self.folder)[0]
        try:
            allowed = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except x509.ExtensionNotFound:
            return
        usage = ExtendedKeyUsageOID.SERVER_AUTH if listens else ExtendedKeyUsageOID.CLIENT_AUTH
        if usage not in allowed and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in allowed:
            raise CertificateError(
                f"{self.settings.path(self.settings.certificate)} is not for a "
                f"{'leader' if listens else 'follower'}: its extended key usage lacks "
                f"{'serverAuth' if listens else 'clientAuth'}"
            )

    def revocations(self) -> RevocationLists | None:
        """Read the revocation lists. Returns None if the settings name no file of lists."""
        path = self.settings.crl_path
        return None if path is None else RevocationLists.read(path)

    def client_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        self._loaded(context)
        if (path := self.settings.crl_path) is not None:
            with self._unchanged():
                context.load_verify_locations(cafile=path)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return a TLS server's context, which checks everything but revocation lists.

        A context keeps the lists that it has loaded. So a server calls `check_peer` for each
        connection, which reads them again.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        # A ticket has the peer's own certificate only, and `check_peer` needs those above it too.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        return self._loaded(context)

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        settings = self.settings
        self.revocations()  # reports an expired list more clearly than TLS does
        context.load_verify_locations(cadata=self.authority.decode())
        with self._unchanged():
            context.load_cert_chain(
                settings.path(settings.certificate),
                settings.path(settings.key),
                password=settings.password() or _no_password,
            )
        return context

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # an SSLError is one
            raise CertificateError(
                f"the files in {self.folder} have changed and cannot be used any more: "
                f"{error.strerror or error}"
            ) from None


def write_certificates(folder: Path, parties: Sequence[str], *, days: int = 825) -> list[Path]:
    """Write a folder for each party, with its key, certificate and authority. Returns the folders.

    The certificates are valid for `days` days. Uses the certificate authority in `folder`, or
    creates one there. Raises CertificateError if a party's folder exists.
    """
    integer("days", days, 1, AUTHORITY_DAYS)
    _check_parties(folder, parties)
    make_folder(folder)
    try:
        if not (folder / "authority.key").exists():
            _write_authority(folder)
        authority_key = _load_authority_key(folder / "authority.key")
        authority = load_chain(_read(folder / "authority.pem"), folder / "authority.pem")[0]
        return [_write_party(folder, party, authority, authority_key, days) for party in parties]
    except OSError as error:
        where = error.filename or folder
        raise CertificateError(f"{where} cannot be written: {error.strerror or error}") from None


def named_in(folder: Path, parties: Sequence[str]) -> str | None:
    """Return the party that the certificate in `folder` names.

    Returns None if there is no certificate, or if it names none or several of `parties`.
    """
    settings = TlsSettings.read(folder)
    path = settings.path(settings.certificate)
    if not path.exists():
        return None
    names = names_in(load_chain(_read(path), path)[0])
    found = [party for party in parties if settings.name_of(party) in names]
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
        # TLS compares names without regard to case.
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
    # The key is written last. If it is missing, the creation was interrupted and starts again.
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


def _load_authority_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(_read_key(path), password=None)
    except (ValueError, TypeError):
        raise CertificateError(f"{path} is not an unencrypted private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path} is not the key that `fedveil vertical certificates` made")
    return key


def _no_password() -> str:
    """Return an empty password, which keeps OpenSSL from asking on the terminal."""
    return ""


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, MOST_KEY_BYTES)
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}{_MADE_BY}") from None


def _read_key(path: Path) -> bytes:
    return read_secret(path, str(path), "the key")


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(path, pem, 0o600)


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    write_whole(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
