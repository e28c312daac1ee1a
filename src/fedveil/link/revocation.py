"""Revocation lists (CRLs): the certificates that their issuers have revoked.

Each certificate of a chain needs a current list of its issuer, as under OpenSSL's
VERIFY_CRL_CHECK_CHAIN. A missing or expired list is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from fedveil.base.untrusted import MOST_LISTS_BYTES, read_bytes
from fedveil.errors import CertificateError
from fedveil.link.certificate_chain import Ascent, common_name, described, is_authority

# A block contains no hyphen. Otherwise a file with many beginnings would be searched once for each.
_BLOCK = re.compile(rb"-----BEGIN X509 CRL-----[^-]*-----END X509 CRL-----")
_Scope = x509.IssuingDistributionPoint
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


@dataclass(frozen=True)
class RevocationLists:
    """The newest revocation list of each authority and scope in a PEM file.

    A list's scope is the kinds of certificates that the list covers.
    """

    path: Path
    lists: tuple[x509.CertificateRevocationList, ...]

    @classmethod
    def read(cls, path: Path) -> RevocationLists:
        """Read the revocation lists in a PEM file.

        Raises CertificateError if a list is malformed, of an unsupported kind, or expired.
        """
        try:
            blocks = _BLOCK.findall(read_bytes(path, MOST_LISTS_BYTES))
            lists = [x509.load_pem_x509_crl(block) for block in blocks]
            for one in lists:
                _check_kind(one, path)
        except OSError as error:
            raise CertificateError(f"{path} cannot be read: {error.strerror or error}") from None
        except ValueError:
            lists = []
        if not lists:
            raise CertificateError(
                f"{path} is not a revocation list in PEM: `openssl crl -inform DER -in FILE -out "
                f"{path.name}` converts one in DER"
            )
        newest = tuple(_newest(lists))
        for one in newest:
            _check_dates(one, path)
        return cls(path, newest)

    def fault(self, chain: Ascent) -> str | None:
        """Return a sentence about a certificate in `chain` that is revoked or that no list covers.

        Returns None if there is no such certificate.
        """
        for certificate, issuers in chain.items():
            if (fault := self._fault(certificate, issuers)) is not None:
                return fault
        return None

    def _fault(
        self, certificate: x509.Certificate, issuers: Iterable[x509.Certificate]
    ) -> str | None:
        covering = [
            one
            for one in self.lists
            if _covers(one, certificate) and any(_is_signed(one, issuer) for issuer in issuers)
        ]
        if not covering:
            return (
                f"{self.path.name} has no current revocation list of "
                f"{common_name(certificate.issuer)}, which issued the certificate of "
                f"{_holder(certificate)}"
            )
        newest = max(covering, key=lambda one: one.last_update_utc)
        entry = newest.get_revoked_certificate_by_serial_number(certificate.serial_number)
        if entry is not None:
            return (
                f"the certificate of {_holder(certificate)} with the serial number "
                f"{certificate.serial_number:x} was revoked on {entry.revocation_date_utc:%F} by "
                f"{common_name(certificate.issuer)}"
            )
        return None


def _holder(certificate: x509.Certificate) -> str:
    if is_authority(certificate):
        return f"the authority {common_name(certificate.subject)}"
    return described(certificate)


def _check_kind(one: x509.CertificateRevocationList, path: Path) -> None:
    kind = None
    for extension in one.extensions:
        if extension.oid == x509.DeltaCRLIndicator.oid:
            kind = "is a delta list, which holds only the latest changes"
        elif extension.oid == _Scope.oid:
            if extension.value.indirect_crl:
                kind = "is an indirect list, which holds certificates of other authorities"
            elif extension.value.only_some_reasons or extension.value.relative_name:
                kind = "is for some reasons of revocation or by a relative name only"
        elif extension.critical:
            kind = f"has the critical extension {extension.oid.dotted_string}, which is not known"
    if kind is not None:
        raise CertificateError(
            f"the revocation list of {common_name(one.issuer)} in {path} {kind}: use the "
            f"authority's full list"
        )


def _check_dates(one: x509.CertificateRevocationList, path: Path) -> None:
    now, ends = datetime.now(UTC), one.next_update_utc
    what = f"the revocation list of {common_name(one.issuer)} in {path}"
    if ends is None:
        raise CertificateError(f"{what} does not say when it expires: use one with a next update")
    if ends < now:
        raise CertificateError(
            f"{what} expired on {ends:%F %H:%M} UTC: get a new one from the authority"
        )
    if one.last_update_utc > now:
        raise CertificateError(
            f"{what} is valid only from {one.last_update_utc:%F %H:%M} UTC on: check the clock"
        )


def _newest(
    lists: Iterable[x509.CertificateRevocationList],
) -> Iterable[x509.CertificateRevocationList]:
    found: dict[object, x509.CertificateRevocationList] = {}
    for one in lists:
        authority, scope = _extension(one, x509.AuthorityKeyIdentifier), _scope(one)
        mark = (
            one.issuer,
            authority and authority.key_identifier,
            scope and scope.public_bytes(),  # every version can hash bytes, but not a scope
        )
        before = found.get(mark)
        if before is None or before.last_update_utc < one.last_update_utc:
            found[mark] = one
    return found.values()


def _covers(crl: x509.CertificateRevocationList, certificate: x509.Certificate) -> bool:
    """Return True if the list `crl` is of the certificate's issuer and covers this certificate.

    A list may cover only the certificates of authorities, or only all others. It may also cover
    only certificates that name one of its distribution points.
    """
    scope = _scope(crl)
    if crl.issuer != certificate.issuer:
        return False
    if scope is None:
        return True
    if scope.only_contains_attribute_certs:
        return False
    if is_authority(certificate):
        is_of_kind = not scope.only_contains_user_certs
    else:
        is_of_kind = not scope.only_contains_ca_certs
    if not is_of_kind or not scope.full_name:
        return is_of_kind
    points = _extension(certificate, x509.CRLDistributionPoints)
    named = [name for point in points or () for name in point.full_name or ()]
    return any(name in named for name in scope.full_name)


def _is_signed(one: x509.CertificateRevocationList, issuer: x509.Certificate) -> bool:
    usage = _extension(issuer, x509.KeyUsage)
    if issuer.subject != one.issuer or (usage is not None and not usage.crl_sign):
        return False
    try:
        return one.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]
    except (TypeError, UnsupportedAlgorithm):
        return False


def _scope(one: x509.CertificateRevocationList) -> x509.IssuingDistributionPoint | None:
    return _extension(one, _Scope)


def _extension(
    of: x509.Certificate | x509.CertificateRevocationList, kind: type[_Extension]
) -> _Extension | None:
    try:
        return of.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
