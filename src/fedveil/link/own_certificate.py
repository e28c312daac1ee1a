"""Checks a party's own certificate and those above it, when its credentials are read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cryptography import x509

from fedveil.errors import CertificateError
from fedveil.link.certificate_chain import (
    ascent,
    common_name,
    described,
    is_root,
    names_in,
    weakness,
)

if TYPE_CHECKING:
    from fedveil.link.tls import Credentials


def check_own(
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
