"""Derived keys, sealed shares, signatures and tags; and that no secret shows."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import traceback
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue, RoundVoid
from fedveil.secagg import Identity, Terms, keys
from fedveil.secagg.keys import KeyPair
from fedveil.secagg.secret import Secret
from fedveil.secagg.share_tags import KEY, SEED, Tagger
from secagg_parts import Played, shows

CONTEXT = bytes(range(32))
ids = st.integers(0, 2**63 - 1)


def hkdf(shared: bytes, info: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, CONTEXT, info).derive(shared)


@given(st.binary(min_size=32, max_size=32), ids, ids)
def test_pair_seeds_are_hkdf_of_the_identities(shared: bytes, one: int, other: int) -> None:
    low, high = sorted((one, other))
    info = b"pair mask" + low.to_bytes(8, "little") + high.to_bytes(8, "little")
    assert keys.pair_seed(shared, CONTEXT, one, other) == hkdf(shared, info)
    assert keys.pair_seed(shared, CONTEXT, other, one) == hkdf(shared, info)


def test_sealed_shares_are_aes_gcm_that_names_its_ends() -> None:
    shared, ends = bytes(32), (5).to_bytes(8, "little") + (9).to_bytes(8, "little")
    key = keys.seal_key(shared, CONTEXT, 5, 9)
    assert key == hkdf(shared, b"sealed shares" + ends)
    sealed = keys.seal(key, CONTEXT, 5, 9, b"the shares")
    assert AESGCM(key).decrypt(bytes(12), sealed, CONTEXT + ends) == b"the shares"
    assert keys.unseal(key, CONTEXT, 5, 9, sealed) == b"the shares"
    for wrong in (
        (keys.seal_key(bytes([1]) * 32, CONTEXT, 5, 9), CONTEXT, 5, 9, sealed),
        (keys.seal_key(shared, CONTEXT, 9, 5), CONTEXT, 5, 9, sealed),
        (key, bytes(32), 5, 9, sealed),
        (key, CONTEXT, 9, 5, sealed),
        (key, CONTEXT, 5, 8, sealed),
        (key, CONTEXT, 5, 9, sealed[:-1]),
        (key, CONTEXT, 5, 9, b""),
        *((key, CONTEXT, 5, 9, flipped(sealed, bit)) for bit in range(8 * len(sealed))),
    ):
        assert keys.unseal(*wrong) is None


def flipped(data: bytes, bit: int) -> bytes:
    return (int.from_bytes(data, "little") ^ (1 << bit)).to_bytes(len(data), "little")


def test_key_pairs_come_from_entropy_and_agree() -> None:
    one, other = KeyPair.draw(Seeded(1)), KeyPair.draw(Seeded(2))
    assert one.public == KeyPair.draw(Seeded(1)).public != other.public
    shared = one.agree(keys.public_key(other.public))
    assert shared == other.agree(keys.public_key(one.public))
    assert not keys.has_low_order(one.public)
    with pytest.raises(InvalidValue, match="a key of low order"):
        one.agree(keys.public_key(bytes(32)))


def test_signatures_name_what_they_sign() -> None:
    identity = Identity.draw(Seeded(0))
    public = identity.public
    signature = identity.sign(keys.keys_text(CONTEXT, 3, (b"a" * 32, b"b" * 32)))
    assert keys.is_signed(public, signature, keys.keys_text(CONTEXT, 3, (b"a" * 32, b"b" * 32)))
    assert not keys.is_signed(public, signature, keys.keys_text(CONTEXT, 4, (b"a" * 32, b"b" * 32)))
    assert not keys.is_signed(public, signature, keys.keys_text(CONTEXT, 3, (b"b" * 32, b"a" * 32)))
    assert not keys.is_signed(
        public, signature, keys.keys_text(bytes(32), 3, (b"a" * 32, b"b" * 32))
    )
    assert not keys.is_signed(b"", signature, keys.keys_text(CONTEXT, 3, (b"a" * 32, b"b" * 32)))
    listed = identity.sign(keys.survivors_text(CONTEXT, [1, 2]))
    assert keys.is_signed(public, listed, keys.survivors_text(CONTEXT, [1, 2]))
    assert not keys.is_signed(public, listed, keys.survivors_text(CONTEXT, [1, 3]))
    assert not keys.is_signed(public, listed, keys.survivors_text(bytes(32), [1, 2]))
    assert not keys.is_signed(public, signature, keys.survivors_text(CONTEXT, [1, 2]))
    assert not keys.is_signed(public, listed[:-1], keys.survivors_text(CONTEXT, [1, 2]))


def test_tags_differ_wherever_the_share_belongs_elsewhere() -> None:
    tagger, share = Tagger(CONTEXT), bytes(40)

    def tag(*place: Any, share: bytes = share, tagger: Tagger = tagger) -> bytes:
        return tagger.tags([place[:2]], [place[2]], share)[0]

    found = {
        tag(1, 2, SEED),
        tag(2, 1, SEED),
        tag(1, 2, KEY),
        tag(1, 3, SEED),
        tag(1, 2, SEED, share=bytes(39) + b"\x01"),
        tag(1, 2, SEED, tagger=Tagger(bytes(32))),
    }
    assert {len(t) for t in found} == {16}
    assert len(found) == 6
    many = tagger.tags([(1, 2), (1, 3)], [SEED, KEY], share + bytes(39) + b"\x02")
    assert many == [tag(1, 2, SEED), tag(1, 3, KEY, share=bytes(39) + b"\x02")]


def test_the_context_names_every_term() -> None:
    base = {"job": b"j", "round": 1, "length": 9, "bits": 20, "threshold": 2, "sharing": 5}
    others: dict[str, Any] = {
        "job": b"k", "round": 2, "length": 8, "bits": 21, "threshold": 3, "sharing": 4,
        "neighbours": 5, "active_security": True,
    }  # fmt: skip
    contexts = {Terms(**base).context} | {  # type: ignore[arg-type]
        Terms(**{**base, name: value}).context for name, value in others.items()
    }
    assert len(contexts) == 1 + len(others)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_secret_has_32_bytes(size: int) -> None:
    with pytest.raises(InvalidValue, match=f"a secret has {size} bytes, not 32"):
        Secret(bytes(size))


def test_a_secret_shows_nothing() -> None:
    secret = Secret(b"\xaa" * 32)
    assert repr(secret) == str(secret) == f"{secret}" == "Secret(hidden)"
    assert secret == Secret(b"\xaa" * 32)
    assert secret != Secret(b"\xaa" * 31 + b"\xab")
    assert secret != b"\xaa" * 32
    for take_copy in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied"):
            take_copy(secret)
    with pytest.raises(TypeError, match="unhashable"):
        hash(secret)
    with pytest.raises(InvalidValue, match="31 bytes") as error:
        Secret(b"\xaa" * 31)
    assert "aa" not in str(error.value).replace("a secret has", "")


def test_secrets_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        "fedveil.secagg.secret.hmac.compare_digest", lambda a, b: calls.append((a, b)) or a == b
    )
    assert Secret(bytes(32)) == Secret(bytes(32))
    assert calls == [(bytes(32), bytes(32))]


def secrets_of(played: Played) -> list[bytes]:
    found = []
    for client in played.clients.values():
        found += [client._seed.reveal(), client._cipher.secret.reveal()]
        found += [client._mask.secret.reveal(), *client._channels.values()]
        for dealt in client._held.values():
            found += [dealt[at : at + 8] for at in range(0, len(dealt), 8)]
    return [secret for secret in found if secret]


def test_nothing_that_a_failing_round_prints_shows_a_secret(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every failure there is, with the locals of every frame, and all objects printed."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    text = ""
    spoilt = Played(5, 3)
    try:
        for played, drop in (
            (Played(5, 3), {"unmask": [0, 3, 6]}),
            (Played(5, 3), {"masked": [0, 3, 6]}),
            (spoilt, {"masked": [6]}),
        ):
            down = None
            if played is spoilt:
                down = lambda p, c, m: {**m, "sealed": m["sealed"] ^ 1} if p == "masked" else m  # noqa: E731
            with pytest.raises(RoundVoid) as void:
                played.play(drop, **({"down": down} if down else {}))
            text += "".join(traceback.format_exception(void.value))
            text += repr(vars(played))
            text += repr([repr(c) for c in played.clients.values()]) + repr(played.server)
            text += repr(played.withheld) + repr(played.rejected)
            text += repr(
                [(c._mask, c._cipher, c._seed, c._identity) for c in played.clients.values()]
            )
            text += log.getvalue() + "".join(capfd.readouterr())
            secrets = secrets_of(played)
            assert len(secrets) > 5 * 13
            for name in ("answers", "requests"):
                text = text.replace(repr(getattr(played, name)), "")
            assert [s for s in secrets if shows(text, s)] == []
    finally:
        logging.getLogger().removeHandler(handler)
    assert shows(repr(secrets[0]), secrets[0]), "the search finds what is there"
    assert "hidden" in text
    assert np.frombuffer(secrets[0], np.uint8).std() > 0


def test_a_cipher_key_of_one_client_is_no_mask_key_of_another() -> None:
    """A server that knows the secret of one would know the masks of the other."""

    def crossed(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if (phase, client) == ("share", 6):
            own = message["mask_keys"].copy()
            own[0] = message["cipher_keys"][3]
            return {**message, "mask_keys": own}
        return message

    played = Played().play(down=crossed)
    assert "two clients have the same key" in played.withheld[6]
