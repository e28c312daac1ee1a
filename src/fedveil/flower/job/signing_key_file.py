"""A client's long-lived signing key in a file that only its user can read."""

from __future__ import annotations

import stat
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.base.files import write_new
from fedveil.base.untrusted import MOST_KEY_BYTES, read_bytes
from fedveil.errors import DeploymentError
from fedveil.secagg.secret import Secret


def make_identity(path: Path) -> str:
    """Write a new private key to `path`, which must not exist. Returns the public key."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        write_new(path, pem)
    except FileExistsError:
        raise DeploymentError(f"{path} exists, and a key is never overwritten") from None
    except OSError as error:
        raise DeploymentError(f"{path} cannot be written: {error.strerror}") from None
    return key.public_key().public_bytes_raw().hex()


def read_identity(path: Path) -> Secret:
    """Read the private key in `path`.

    Raises `DeploymentError` if there is no valid key, or if other users can access the file.
    """
    try:
        pem = read_bytes(path, MOST_KEY_BYTES)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise DeploymentError(f"identity {path} cannot be read: {error.strerror}") from None
    if mode & 0o077:
        raise DeploymentError(f"identity {path} is open to other users: its mode is {mode:o}")
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise DeploymentError(
            f"identity {path} does not hold an Ed25519 key in PEM: `fedveil identity` makes one"
        )
    return Secret(key.private_bytes_raw())
