"""Keys of one client and one round: agreement, derived seeds, sealed shares, signatures.

Every derived value is bound to what the clients on both sides were shown (`view`: job, round,
terms, keys and more) and to their identities. Nothing from one round, attempt or pair is therefore
valid in another.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import TypeAlias

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.secagg.secret import SECRET_BYTES, Secret

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEAL_BYTES = 16
_ID_BYTES = 8
# A `seal_key` seals one message and is forgotten, so the nonce never meets its key again.
_NONCE = bytes(12)
#: About 60 MB. The number of pairs grows with the square of the clients.
_MOST_KEPT = 1 << 17
_ENDS = struct.Struct("<qq").pack
#: Labels of the values derived from a shared secret.
PAIR_MASK, SEALED_SHARES = b"pair mask", b"sealed shares"
#: This many agreements take longer than loading native code, or compiling it once.
_WORTH_COMPILING = 1 << 13
_agreed = 0

Name: TypeAlias = tuple[object, ...]
#: A shared secret, a view, and the two ends: sealer and opener, or the smaller one first.
Lock: TypeAlias = tuple[bytes, bytes, int, int]


@cache
def _probe() -> X25519PrivateKey:
    """Return a private key that detects public keys of low order."""
    # Any clamped scalar is a multiple of the cofactor and sends a point of low order to zero.
    # Cached, since the first key loads OpenSSL, which commands that only read a job do not need.
    return X25519PrivateKey.from_private_bytes(bytes(range(KEY_BYTES)))


class KeyPair:
    """An X25519 key pair, made from 32 bytes of `entropy`."""

    __slots__ = ("_private", "public", "secret")

    def __init__(self, secret: Secret) -> None:
        self.secret = secret
        self._private = X25519PrivateKey.from_private_bytes(secret.reveal())
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def draw(cls, entropy: Entropy) -> KeyPair:
        """Draw a new pair."""
        return cls(Secret(entropy.token(SECRET_BYTES)))

    def agree(self, public: X25519PublicKey) -> bytes:
        """Return the shared secret of X25519. Raises `InvalidValue` for a key of low order."""
        try:
            return self._private.exchange(public)
        except ValueError:
            raise InvalidValue("a key of low order") from None

    def __repr__(self) -> str:
        return "KeyPair(hidden)"


class Pairs:
    """Secrets that two clients derive from their keys. Each end computes them for itself."""

    simulated = False

    def agreed(self, mine: KeyPair, others: Sequence[bytes]) -> list[bytes]:
        """Return the secret with each public key. Raises `InvalidValue` for one of low order."""
        return [mine.agree(public_key(other)) for other in others]

    def derived(self, label: bytes, locks: Sequence[Lock]) -> list[bytes]:
        """Derive `pair_seed` or `seal_key`, chosen by `label`, from each lock's secret."""
        return [_derive(secret, view, label + _ENDS(*ends)) for secret, view, *ends in locks]

    def sealed(self, locks: Sequence[Lock], shares: Sequence[bytes]) -> list[bytes]:
        """Seal each share in a box, under its `seal_key`."""
        made = self.derived(SEALED_SHARES, locks)
        boxes = zip(made, locks, shares, strict=True)
        return [seal(key, *lock[1:], one) for key, lock, one in boxes]

    def opened(self, locks: Sequence[Lock], boxes: Sequence[bytes]) -> list[bytes | None]:
        """Open boxes made by `sealed`. Returns None for each box with other content."""
        made = self.derived(SEALED_SHARES, locks)
        sealed = zip(made, locks, boxes, strict=True)
        return [unseal(key, *lock[1:], box) for key, lock, box in sealed]

    def once(self, names: Sequence[Name], make: Callable[[list[int]], list[bytes]]) -> list[bytes]:
        """Return the value of each name, in order, made by `make` from the names' places.

        A name holds everything that its value depends on and that both ends know.
        """
        return make([*range(len(names))])


class BothEnds(Pairs):
    """Cache for a simulation, in which one process plays both ends of every pair.

    The end that comes first computes a value and the other end reuses it: X25519 gives both the
    same one. Threads that come at once both compute it, as do both ends once the cache is full.
    """

    simulated = True

    def __init__(self) -> None:
        self._kept: dict[Name, bytes] = {}

    def agreed(self, mine: KeyPair, others: Sequence[bytes]) -> list[bytes]:
        """Agree as the base class does, faster for many keys, with the processor's wide
        instructions.
        """
        if _worth_compiling(len(others)):
            from fedveil.secagg import wide_x25519

            if wide_x25519.AVAILABLE:
                shared = wide_x25519.agreements([mine.secret.reveal()] * len(others), others)
                if bytes(KEY_BYTES) in shared:
                    raise InvalidValue("a key of low order")
                return shared
        return super().agreed(mine, others)

    def derived(self, label: bytes, locks: Sequence[Lock]) -> list[bytes]:
        """Derive as the base class does, faster once many secrets were agreed on."""
        if _worth_compiling(0) and len({view for _, view, *_ in locks}) == 1:
            from fedveil.secagg import wide_hkdf

            if wide_hkdf.AVAILABLE:
                return wide_hkdf.derived(label, locks)
        return super().derived(label, locks)

    def sealed(self, locks: Sequence[Lock], shares: Sequence[bytes]) -> list[bytes]:
        boxes = super().sealed(locks, shares)
        for lock, box, one in zip(locks, boxes, shares, strict=True):
            self._keep((*lock, box), one)
        return boxes

    def opened(self, locks: Sequence[Lock], boxes: Sequence[bytes]) -> list[bytes | None]:
        """Open boxes. Boxes that this process sealed under the same locks come from the cache."""
        kept = self._kept
        found = [kept.pop((*lock, box), None) for lock, box in zip(locks, boxes, strict=True)]
        unknown = [place for place, one in enumerate(found) if one is None]
        rest = super().opened([locks[i] for i in unknown], [boxes[i] for i in unknown])
        for place, one in zip(unknown, rest, strict=True):
            found[place] = one
        return found

    def once(self, names: Sequence[Name], make: Callable[[list[int]], list[bytes]]) -> list[bytes]:
        kept = self._kept
        found = [kept.pop(name, b"") for name in names]
        missing = [place for place, value in enumerate(found) if not value]
        if missing:
            for place, value in zip(missing, make(missing), strict=True):
                found[place] = value
                self._keep(names[place], value)
        return found

    def _keep(self, name: Name, value: bytes) -> None:
        if len(self._kept) < _MOST_KEPT:
            self._kept[name] = value


def _worth_compiling(more: int) -> bool:
    """Count `more` agreements. Returns True once the total is worth compiling native code."""
    global _agreed
    _agreed += more
    return HAVE_NUMBA and _agreed > _WORTH_COMPILING


@lru_cache(maxsize=1)
def both_ends(seed: int, round: int) -> BothEnds:
    """Return the one cache for all clients of a simulated round."""
    return BothEnds()


def public_key(raw: bytes) -> X25519PublicKey:
    """Decode a public key from 32 bytes."""
    return X25519PublicKey.from_public_bytes(raw)


def has_low_order(raw: bytes) -> bool:
    """Return True if agreement with this public key gives zero for every private key."""
    try:
        _probe().exchange(public_key(raw))
    except ValueError:
        return True
    return False


def pair_seed(shared: bytes, view: bytes, one: int, other: int) -> bytes:
    """Derive the seed of the mask between two clients, equal on both sides.

    HKDF-SHA256 (RFC 5869): the salt is what the two were shown, the input is the agreed secret of
    the mask keys, the info is a label and both identities, the smaller first.
    """
    low, high = min(one, other), max(one, other)
    return _derive(shared, view, PAIR_MASK + _ENDS(low, high))


def seal_key(shared: bytes, view: bytes, sender: int, receiver: int) -> bytes:
    """Derive the key of one sealed message, equal on both sides."""
    return _derive(shared, view, SEALED_SHARES + _ENDS(sender, receiver))


def seal(key: bytes, view: bytes, sender: int, receiver: int, shares: bytes) -> bytes:
    """Encrypt shares for `receiver` (AES-256-GCM). The result is 16 bytes longer.

    The `seal_key` of this sender, receiver and view seals nothing else. The associated data names
    all three again.
    """
    return AESGCM(key).encrypt(_NONCE, shares, view + _ENDS(sender, receiver))


def unseal(key: bytes, view: bytes, sender: int, receiver: int, sealed: bytes) -> bytes | None:
    """Decrypt a message made by `seal`. Returns None for anything else."""
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, view + _ENDS(sender, receiver))
    except InvalidTag:
        return None


class Identity:
    """A client's long-lived Ed25519 key. Its public half is in the job's roster."""

    __slots__ = ("_private", "public")

    def __init__(self, secret: Secret) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(secret.reveal())
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def draw(cls, entropy: Entropy) -> Identity:
        """Draw a new identity."""
        return cls(Secret(entropy.token(SECRET_BYTES)))

    def sign(self, text: bytes) -> bytes:
        """Sign a text of this module: the keys or the survivors of a round."""
        return self._private.sign(text)

    def __repr__(self) -> str:
        return "Identity(hidden)"


def keys_text(context: bytes, client: int, keys: Iterable[bytes]) -> bytes:
    """Return the text that a client signs for the keys that it advertises."""
    return b"fedveil keys" + context + _ids((client,)) + b"".join(keys)


def survivors_text(view: bytes, survivors: Iterable[int]) -> bytes:
    """Return the text that a client signs for the named survivors and everything before them."""
    return b"fedveil survivors" + view + _ids(survivors)


def is_signed(public: bytes | None, signature: bytes, text: bytes) -> bool:
    """Return True if `signature` is the one of `Identity.sign`. A stranger, None, signs nothing."""
    try:
        Ed25519PublicKey.from_public_bytes(public or b"").verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ids(clients: Iterable[int]) -> bytes:
    return b"".join(client.to_bytes(_ID_BYTES, "little", signed=True) for client in clients)


def _derive(shared: bytes, salt: bytes, info: bytes) -> bytes:
    extracted = hmac.digest(salt, shared, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")
