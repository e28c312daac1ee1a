"""Reads a party's private key, decrypted in memory."""

from __future__ import annotations

from typing import TypeAlias

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fedveil.errors import CertificateError
from fedveil.link.tls_settings import FILE, TlsSettings

#: The curves with which BoringSSL, the library in gRPC, signs by default.
_CURVES = ("secp256r1", "secp384r1")
Key: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def load_key(pem: bytes, settings: TlsSettings) -> Key:
    """Return the private key in `pem`, decrypted if the settings name a password.

    Raises CertificateError if the key is damaged, or if gRPC's TLS does not support its kind.
    """
    path, password = settings.path(settings.key), settings.password()
    try:
        key: object = serialization.load_pem_private_key(pem, password)
    except TypeError:
        if password is None:
            raise CertificateError(
                f"{path} is encrypted: name its password in {settings.path(FILE)}, as "
                f"`password_file: FILE` or `password_env: VARIABLE`"
            ) from None
        raise CertificateError(
            f"{path} is not encrypted, and {settings.path(FILE)} names a password: remove the line"
        ) from None
    except ValueError:
        if password is not None:
            raise CertificateError(
                f"{path} cannot be decrypted: the password is wrong, or the file is not a private "
                f"key in PEM"
            ) from None
        raise CertificateError(f"{path} is not a private key in PEM") from None
    except UnsupportedAlgorithm:
        key = None
    if isinstance(key, rsa.RSAPrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return key
    raise CertificateError(
        f"{path} is a key of a kind that gRPC's TLS does not use: take an RSA key of at least 2048 "
        f"bits, or an elliptic-curve key on P-256 or P-384 (Ed25519 and P-521 only sign for "
        f"authorities)"
    )


def pem_of_key(key: Key) -> bytes:
    """Return a key in unencrypted PEM, which must not be written to a file."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
