"""The keys of one client in one round: key agreement, seeds, encrypted shares, signatures.

Every key and seed that two clients derive depends on the client numbers of both, and on `view`: the
digest of what the server has shown them before, such as the round's terms (see `secagg.view`). So
nothing from one round, attempt or pair of clients is valid in another.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable
from functools import cache

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.secagg.secret import SECRET_BYTES, Secret

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEAL_BYTES = 16
# A `seal_key` encrypts only one message, so the nonce may be constant.
_NONCE = bytes(12)
_ID, _ENDS = struct.Struct("<q").pack, struct.Struct("<qq").pack


@cache
def _probe() -> X25519PrivateKey:
    """Return the fixed private key with which `has_low_order` tests public keys."""
    # Any clamped scalar is a multiple of the cofactor and sends a point of low order to zero.
    # Cached, since the first key loads OpenSSL, which commands that only read a job do not need.
    return X25519PrivateKey.from_private_bytes(bytes(range(KEY_BYTES)))


class KeyPair:
    """An X25519 key pair, made from 32 secret bytes."""

    __slots__ = ("_private", "public", "secret")

    def __init__(self, secret: Secret) -> None:
        self.secret = secret
        self._private = X25519PrivateKey.from_private_bytes(secret.reveal())
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def draw(cls, entropy: Entropy) -> KeyPair:
        return cls(Secret(entropy.token(SECRET_BYTES)))

    def agree(self, public: X25519PublicKey) -> bytes:
        """Return the secret agreed with `public`. Raises `InvalidValue` for a key of low order."""
        try:
            return self._private.exchange(public)
        except ValueError:
            raise InvalidValue("a key of low order") from None

    def __repr__(self) -> str:
        return "KeyPair(hidden)"


def public_key(raw: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(raw)


def has_low_order(raw: bytes) -> bool:
    """Return True if `raw` is a public key of low order, which makes every agreed secret zero."""
    try:
        _probe().exchange(public_key(raw))
    except ValueError:
        return True
    return False


def pair_seed(shared: bytes, view: bytes, one: int, other: int) -> bytes:
    """Return the seed of the mask between clients `one` and `other`. Both clients derive it.

    `shared` is the agreed secret of their mask keys, `view` the digest of what both were shown.
    """
    # HKDF-SHA256 (RFC 5869): the salt is `view`, what the two were shown; the input is `shared`,
    # the agreed secret of their mask keys; the info is a label and both identities, the smaller
    # first.
    low, high = min(one, other), max(one, other)
    return _derive(shared, view, b"pair mask" + _ENDS(low, high))


def seal_key(shared: bytes, view: bytes, sender: int, receiver: int) -> bytes:
    """Return the key that encrypts shares from `sender` to `receiver`. Both clients derive it.

    `shared` is the agreed secret of their cipher keys, `view` the digest of what both were shown.
    """
    return _derive(shared, view, b"sealed shares" + _ENDS(sender, receiver))


def seal(key: bytes, view: bytes, sender: int, receiver: int, shares: bytes) -> bytes:
    """Encrypt `shares` for `receiver` with AES-256-GCM. The result is 16 bytes longer.

    `key` is from `seal_key`, and may encrypt only once. AES-GCM also authenticates `sender`,
    `receiver` and `view`, the digest of what both clients were shown.
    """
    return AESGCM(key).encrypt(_NONCE, shares, view + _ENDS(sender, receiver))


def unseal(key: bytes, view: bytes, sender: int, receiver: int, sealed: bytes) -> bytes | None:
    """Decrypt `sealed`, or return None if it is not a result of `seal` for the same arguments."""
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, view + _ENDS(sender, receiver))
    except InvalidTag:
        return None


class Identity:
    """A client's long-term Ed25519 signing key. The job's roster has its public key.

    >>> from fedveil.entropy import Secure
    >>> from fedveil.secagg import Identity
    >>> len(Identity.draw(Secure()).public)
    32
    """

    __slots__ = ("_private", "public")

    def __init__(self, secret: Secret) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(secret.reveal())
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def draw(cls, entropy: Entropy) -> Identity:
        return cls(Secret(entropy.token(SECRET_BYTES)))

    def sign(self, text: bytes) -> bytes:
        """Return the client's signature of `text` (from `keys_text` or `survivors_text`)."""
        return self._private.sign(text)

    def __repr__(self) -> str:
        return "Identity(hidden)"


def keys_text(context: bytes, client: int, keys: Iterable[bytes]) -> bytes:
    """Return the text that `client` signs to confirm that the public `keys` are its own.

    `context` is the digest of the round's terms (`Terms.context`).
    """
    return b"fedveil keys" + context + _ids((client,)) + b"".join(keys)


def survivors_text(view: bytes, survivors: Iterable[int]) -> bytes:
    """Return the text that a client signs to confirm which clients are the `survivors`.

    `view` is the digest of what the server has shown to the client in this round.
    """
    return b"fedveil survivors" + view + _ids(survivors)


def is_signed(public: bytes | None, signature: bytes, text: bytes) -> bool:
    """Return True if the owner of the public key signed `text`. False if there is no key."""
    try:
        Ed25519PublicKey.from_public_bytes(public or b"").verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ids(clients: Iterable[int]) -> bytes:
    return b"".join(map(_ID, clients))


def _derive(shared: bytes, salt: bytes, info: bytes) -> bytes:
    extracted = hmac.digest(salt, shared, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")
