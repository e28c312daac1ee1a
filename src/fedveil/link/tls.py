"""Certificates that authenticate the parties: a party's own, and those that its peers show.

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
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedveil.base.untrusted import MOST_KEY_BYTES, read_bytes
from fedveil.errors import CertificateError, PeerRefused
from fedveil.link.certificate_chain import (
    ascent,
    common_name,
    described,
    is_root,
    load_chain,
    names_in,
    pem_of,
    weakness,
)
from fedveil.link.private_key import load_key, pem_of_key
from fedveil.link.revocation import RevocationLists
from fedveil.link.tls_settings import TlsSettings, read_secret

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
            load_chain(read_pem(settings.path(file)), settings.path(file))
            for file in (settings.certificate, settings.authority)
        )
        key = load_key(_read_key(settings.path(settings.key)), settings)
        found = cls(party, folder, pem_of(chain), pem_of_key(key), pem_of(roots), settings, known)
        _check(found, chain, roots, key.public_key())
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


def named_in(folder: Path, parties: Sequence[str]) -> str | None:
    """Return the party that the certificate in `folder` names.

    Returns None if there is no certificate, or if it names none or several of `parties`.
    """
    settings = TlsSettings.read(folder)
    path = settings.path(settings.certificate)
    if not path.exists():
        return None
    names = names_in(load_chain(read_pem(path), path)[0])
    found = [party for party in parties if settings.name_of(party) in names]
    return found[0] if len(found) == 1 else None


def _check(
    found: Credentials,
    chain: Sequence[x509.Certificate],
    roots: Sequence[x509.Certificate],
    key: object,
) -> None:
    files, own = found.settings, chain[0]
    if key != own.public_key():
        raise CertificateError(
            f"{files.key} in {found.folder} is not the key of {files.certificate}, in which the "
            f"party's own certificate comes first"
        )
    if found.party_of(own) != found.party:
        _refuse_name(found, own)
    if not any(is_root(root) for root in roots):
        raise CertificateError(
            f"{files.path(files.authority)} holds no root: add the authority's certificate that "
            f"is signed by itself"
        )
    path = ascent(own, [*chain, *roots])
    if not any(root in path for root in roots if is_root(root)):
        raise CertificateError(
            f"{files.certificate} in {found.folder} is not of the authority in {files.authority}: "
            f"intermediate certificates, if there are any, follow the party's own in "
            f"{files.certificate}"
        )
    for certificate in path:
        _check_dates(found, certificate, certificate is own)
        if (weak := weakness(certificate)) is not None:
            raise CertificateError(
                f"the certificate of {common_name(certificate.subject)} in {found.folder} is "
                f"weak: {weak}"
            )
    if (lists := found.revocations()) is not None and (fault := lists.fault(path)) is not None:
        raise CertificateError(fault)


def _refuse_name(found: Credentials, own: x509.Certificate) -> None:
    names = names_in(own)
    if not names:
        raise CertificateError(
            f"the certificate in {found.folder} is nobody's, and the party here is {found.party}: "
            f"it needs a subject alternative name, beside which a common name does not count"
        )
    if found.name_of(found.party) in names:
        raise CertificateError(
            f"the certificate in {found.folder} names several parties of the job, and so is "
            f"nobody's: {described(own)}"
        )
    wanted = found.name_of(found.party)
    named = found.party if wanted == found.party.lower() else f"{found.party} ({wanted})"
    raise CertificateError(
        f"the certificate in {found.folder} is {described(own)}'s, and the party here is {named}"
    )


def _check_dates(found: Credentials, certificate: x509.Certificate, is_own: bool) -> None:
    now = datetime.now(UTC)
    what = f"the certificate in {found.folder}"
    if not is_own:
        what = f"the certificate of {common_name(certificate.subject)} in {found.folder}"
    if certificate.not_valid_after_utc < now:
        raise CertificateError(
            f"{what} expired on {certificate.not_valid_after_utc:%F}: get a new one from its "
            f"authority (`fedveil vertical certificates` makes one, if that made it)"
        )
    if certificate.not_valid_before_utc > now:
        raise CertificateError(
            f"{what} is valid only from {certificate.not_valid_before_utc:%F %H:%M} UTC on: check "
            f"the clock"
        )


def _no_password() -> str:
    """Return an empty password, which keeps OpenSSL from asking on the terminal."""
    return ""


def read_pem(path: Path) -> bytes:
    """Read a file of certificates. Raises CertificateError if it cannot be read."""
    try:
        return read_bytes(path, MOST_KEY_BYTES)
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}{_MADE_BY}") from None


def _read_key(path: Path) -> bytes:
    return read_secret(path, str(path), "the key")
