"""Certificate chains: the names in a certificate, its issuers, and its strength.

The TLS library validates only one path from a certificate to a root. The functions here find every
possible issuer, so a check of all issuers also covers that path.
"""

from __future__ import annotations

import ipaddress
import ssl
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fedveil.errors import CertificateError

LEAST_RSA_BITS = 2048
_LEAST_CURVE_BITS = 256
_WEAK_HASHES = (hashes.MD5, hashes.SHA1)
#: More certificates than any real chain has. A peer may send any number of them.
_MOST_CERTIFICATES = 16
_MOST_SHOWN_NAMES = 3
#: Raised for a certificate with a malformed extension, or with one twice.
_MALFORMED = (x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError)

#: Maps each certificate to its possible issuers among the known certificates.
Ascent = dict[x509.Certificate, list[x509.Certificate]]
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)


def load_chain(pem: bytes, path: Path) -> list[x509.Certificate]:
    """Parse every certificate in `pem`, in order. Errors name the file `path`."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise CertificateError(f"{path} is not a certificate in PEM") from None


def sent_certificates(secure: ssl.SSLObject) -> list[x509.Certificate]:
    """Return the certificates that the peer of a TLS connection sent, its own first.

    Raises ValueError if a certificate cannot be parsed.
    """
    if sys.version_info >= (3, 13):
        return [x509.load_der_x509_certificate(one) for one in secure.get_unverified_chain()]
    # Up to Python 3.12, only the object inside has this method. It returns PEM.
    sent = getattr(secure, "_sslobj").get_unverified_chain()  # noqa: B009
    return x509.load_pem_x509_certificates("".join(one.public_bytes() for one in sent).encode())


def normal_name(name: str) -> str:
    """Return a DNS name in lower case, or an IP address in its standard form."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.lower()


def names_in(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses in a certificate. The common name is not included."""
    found = _extension(certificate, x509.SubjectAlternativeName)
    if found is None:
        return []
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    # A DNS name that is spelled as an address must not pass for the address.
    hosts = [name for name in found.get_values_for_type(x509.DNSName) if not _is_address(name)]
    return [*(name.lower() for name in hosts), *addresses]


def described(certificate: x509.Certificate) -> str:
    names = [name if name.isprintable() else repr(name) for name in names_in(certificate)]
    shown = ", ".join(name[:100] for name in names[:_MOST_SHOWN_NAMES])
    return f"{shown}, ..." if len(names) > _MOST_SHOWN_NAMES else shown or "nobody"


def is_root(certificate: x509.Certificate) -> bool:
    return is_issued_by(certificate, certificate)


def is_authority(certificate: x509.Certificate) -> bool:
    """Return True if a certificate may issue other certificates."""
    basics = _extension(certificate, x509.BasicConstraints)
    return basics is not None and basics.ca


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return True if `certificate` has a valid signature by `issuer`.

    A signature with SHA-1 or MD5 cannot be verified, so the result is then False. There is one
    exception: if `certificate` and `issuer` are equal, the result is True if the certificate names
    itself as its issuer.
    """
    if certificate == issuer and _is_signed_weakly(certificate):
        return _names_itself(certificate)
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False
    return True


def ascent(leaf: x509.Certificate, others: Iterable[x509.Certificate]) -> Ascent:
    """Map `leaf` to its possible issuers, each issuer to its own possible issuers, and so on.

    Issuers are searched among the certificates `others`. Raises CertificateError if the map would
    have more than `_MOST_CERTIFICATES` certificates.
    """
    pool = [other for other in dict.fromkeys(others) if is_authority(other)]
    found: Ascent = {}
    waiting = [leaf]
    while waiting:
        if len(found) == _MOST_CERTIFICATES:
            raise CertificateError(
                f"the certificate of {described(leaf)} comes with more than "
                f"{_MOST_CERTIFICATES - 1} authorities: send those of one chain"
            )
        certificate = waiting.pop()
        if certificate not in found:
            found[certificate] = [one for one in pool if is_issued_by(certificate, one)]
            waiting += found[certificate]
    return found


def weakness(certificate: x509.Certificate) -> str | None:
    """Return why a certificate's key or signature is too weak, or None if both are strong."""
    try:
        key, signed_with = certificate.public_key(), certificate.signature_hash_algorithm
    except (UnsupportedAlgorithm, ValueError):
        return "its key or its signature is of a kind that is not known"
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < LEAST_RSA_BITS:
        return f"its RSA key has {key.key_size} bits, and {LEAST_RSA_BITS} are the least"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.key_size < _LEAST_CURVE_BITS:
        return f"its key is on the curve {key.curve.name}, and P-256 is the least"
    # Nobody checks the signature of a root: it is trusted by itself.
    if isinstance(signed_with, _WEAK_HASHES) and not is_root(certificate):
        return f"it is signed with {signed_with.name}"
    return None


def common_name(name: x509.Name) -> str:
    return name.rfc4514_string()[:200] or "an authority without a name"


def pem_of(certificates: Sequence[x509.Certificate]) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def _is_signed_weakly(certificate: x509.Certificate) -> bool:
    try:
        return isinstance(certificate.signature_hash_algorithm, _WEAK_HASHES)
    except UnsupportedAlgorithm:
        return False


def _names_itself(certificate: x509.Certificate) -> bool:
    """Return True if a certificate names itself as its issuer.

    The issuer's name must equal the subject's name. The issuer's key identifier must equal the
    subject's, or be missing.
    """
    own = _extension(certificate, x509.SubjectKeyIdentifier)
    signer = _extension(certificate, x509.AuthorityKeyIdentifier)
    own_key = own and own.key_identifier
    signing_key = signer and signer.key_identifier
    return certificate.subject == certificate.issuer and signing_key in (None, own_key)


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    """Return the extension `kind` of a certificate, or None if it is missing or malformed."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, *_MALFORMED):
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
