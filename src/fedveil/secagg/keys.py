"""Keys of one client and one round: agreement, derived seeds, sealed shares, signatures.

Everything that is derived is bound to what the clients on both sides were shown (`view`: job,
round, terms, keys and more) and to their identities, so that nothing of one round, attempt or pair
means anything in another.
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

from fedveil._kernels import HAVE_NUMBA
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.secagg.secret import SECRET_BYTES, Secret

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEAL_BYTES = 16
_ID_BYTES = 8
# A `seal_key` seals one message and is forgotten: the nonce never meets its key again.
_NONCE = bytes(12)
#: Some 60 MB; pairs grow with the square of the clients.
_MOST_KEPT = 1 << 17
_ENDS = struct.Struct("<qq").pack
#: What is derived of a shared secret.
PAIR_MASK, SEALED_SHARES = b"pair mask", b"sealed shares"
#: So many agreements take longer than to load native code, or to compile it once.
_WORTH_COMPILING = 1 << 13
_agreed = 0

Name: TypeAlias = tuple[object, ...]
#: A shared secret, a view, and the two ends: who seals and who opens, or the smaller one first.
Lock: TypeAlias = tuple[bytes, bytes, int, int]


@cache
def _probe() -> X25519PrivateKey:
    """Any clamped scalar is a multiple of the cofactor and sends a point of low order to zero."""
    # The first key loads OpenSSL, which no command needs that only reads a job.
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
        """A fresh pair."""
        return cls(Secret(entropy.token(SECRET_BYTES)))

    def agree(self, public: X25519PublicKey) -> bytes:
        """The shared secret of X25519; raises `InvalidValue` for a key of low order."""
        try:
            return self._private.exchange(public)
        except ValueError:
            raise InvalidValue("a key of low order") from None

    def __repr__(self) -> str:
        return "KeyPair(hidden)"


class Pairs:
    """What two clients' keys come to: each end of a pair works it out for itself."""

    simulated = False

    def agreed(self, mine: KeyPair, others: Sequence[bytes]) -> list[bytes]:
        """The secret with each of the public keys; raises `InvalidValue` for one of low order."""
        return [mine.agree(public_key(other)) for other in others]

    def derived(self, label: bytes, locks: Sequence[Lock]) -> list[bytes]:
        """Of each lock's secret what `pair_seed` or `seal_key` makes of it, by the label."""
        return [_derive(secret, view, label + _ENDS(*ends)) for secret, view, *ends in locks]

    def sealed(self, locks: Sequence[Lock], shares: Sequence[bytes]) -> list[bytes]:
        """Shares in boxes, each under its `seal_key`."""
        made = self.derived(SEALED_SHARES, locks)
        boxes = zip(made, locks, shares, strict=True)
        return [seal(key, *lock[1:], one) for key, lock, one in boxes]

    def opened(self, locks: Sequence[Lock], boxes: Sequence[bytes]) -> list[bytes | None]:
        """What `sealed` has sealed; None for whatever else is in a box."""
        made = self.derived(SEALED_SHARES, locks)
        sealed = zip(made, locks, boxes, strict=True)
        return [unseal(key, *lock[1:], box) for key, lock, box in sealed]

    def once(self, names: Sequence[Name], make: Callable[[list[int]], list[bytes]]) -> list[bytes]:
        """What `make` gives for the places of some names, for all of them, in order.

        A name holds all that its value is made of and both ends have.
        """
        return make([*range(len(names))])


class BothEnds(Pairs):
    """The same where one process plays both ends of every pair, in simulation alone.

    The end that comes first works it out and the other one takes it: X25519 gives both the same.
    Threads that come at once work it out twice, and so do the ends of what there is no room for.
    """

    simulated = True

    def __init__(self) -> None:
        self._kept: dict[Name, bytes] = {}

    def agreed(self, mine: KeyPair, others: Sequence[bytes]) -> list[bytes]:
        """Where there are many, the processor's wide instructions give the same bytes faster."""
        if _worth_compiling(len(others)):
            from fedveil.secagg import wide_x25519

            if wide_x25519.AVAILABLE:
                shared = wide_x25519.agreements([mine.secret.reveal()] * len(others), others)
                if bytes(KEY_BYTES) in shared:
                    raise InvalidValue("a key of low order")
                return shared
        return super().agreed(mine, others)

    def derived(self, label: bytes, locks: Sequence[Lock]) -> list[bytes]:
        """As `agreed`."""
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
        """Nothing that this process has sealed, for these ends and so, is opened once more."""
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
    """Whether so many agreements more are enough for native code, of all that were made here."""
    global _agreed
    _agreed += more
    return HAVE_NUMBA and _agreed > _WORTH_COMPILING


@lru_cache(maxsize=1)
def both_ends(seed: int, round: int) -> BothEnds:
    """One for all clients of a simulated round."""
    return BothEnds()


def public_key(raw: bytes) -> X25519PublicKey:
    """The public key that 32 bytes are."""
    return X25519PublicKey.from_public_bytes(raw)


def has_low_order(raw: bytes) -> bool:
    """Whether agreeing on a secret with this public key gives zero, whoever does."""
    try:
        _probe().exchange(public_key(raw))
    except ValueError:
        return True
    return False


def pair_seed(shared: bytes, view: bytes, one: int, other: int) -> bytes:
    """The seed of the mask between two clients, the same on both sides.

    HKDF-SHA256 (RFC 5869): salt what the two were shown, input the agreed secret of the mask
    keys, info a label and both identities, the smaller first.
    """
    low, high = min(one, other), max(one, other)
    return _derive(shared, view, PAIR_MASK + _ENDS(low, high))


def seal_key(shared: bytes, view: bytes, sender: int, receiver: int) -> bytes:
    """The key of one sealed message, the same on both sides."""
    return _derive(shared, view, SEALED_SHARES + _ENDS(sender, receiver))


def seal(key: bytes, view: bytes, sender: int, receiver: int, shares: bytes) -> bytes:
    """Shares for the eyes of `receiver` alone (AES-256-GCM); 16 bytes longer than they are.

    The `seal_key` of this sender, receiver and view seals nothing else; the associated data names
    the three again.
    """
    return AESGCM(key).encrypt(_NONCE, shares, view + _ENDS(sender, receiver))


def unseal(key: bytes, view: bytes, sender: int, receiver: int, sealed: bytes) -> bytes | None:
    """What `seal` sealed; None where it is anything else."""
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, view + _ENDS(sender, receiver))
    except InvalidTag:
        return None


class Identity:
    """A client's long-lived Ed25519 key, whose public half is in the job's roster."""

    __slots__ = ("_private", "public")

    def __init__(self, secret: Secret) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(secret.reveal())
        self.public = self._private.public_key().public_bytes_raw()

    @classmethod
    def draw(cls, entropy: Entropy) -> Identity:
        """A fresh identity."""
        return cls(Secret(entropy.token(SECRET_BYTES)))

    def sign(self, text: bytes) -> bytes:
        """Vouch for a text of this module's: the keys or the survivors of a round."""
        return self._private.sign(text)

    def __repr__(self) -> str:
        return "Identity(hidden)"


def keys_text(context: bytes, client: int, keys: Iterable[bytes]) -> bytes:
    """What a client signs of the keys that it advertises."""
    return b"fedveil keys" + context + _ids((client,)) + b"".join(keys)


def survivors_text(view: bytes, survivors: Iterable[int]) -> bytes:
    """What a client signs of the survivors that the server has named, and of all before that."""
    return b"fedveil survivors" + view + _ids(survivors)


def is_signed(public: bytes | None, signature: bytes, text: bytes) -> bool:
    """Whether `signature` is the one of `Identity.sign`; a stranger, None, signs nothing."""
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
