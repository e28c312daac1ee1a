"""Agreements in native code: RFC 7748's own numbers, and what `cryptography` gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.secagg import keys
from fedveil.secagg.keys import BothEnds, KeyPair, Pairs

pytest.importorskip("numba")
from fedveil.secagg import wide_x25519

native = pytest.mark.skipif(not wide_x25519.AVAILABLE, reason="not on this processor")
P = 2**255 - 19
#: The coordinates of low order on the curve and on its twist (RFC 7748, 6.1 and its references).
LOW_ORDER = (
    0,
    1,
    P - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
OTHERS = (2, 9, P - 2, P + 2, P + 9, 2**255 - 1, 2**254, 2**51 - 1, 2**51, 2**204, 2**64 - 1)


def plain(secrets: list[bytes], public: list[bytes]) -> list[bytes]:
    """What `cryptography` gives, zeros where it raises."""
    shared = []
    for secret, other in zip(secrets, public, strict=True):
        mine = X25519PrivateKey.from_private_bytes(secret)
        try:
            shared.append(mine.exchange(X25519PublicKey.from_public_bytes(other)))
        except ValueError:
            shared.append(bytes(32))
    return shared


@native
@pytest.mark.parametrize(
    ("scalar", "point", "shared"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_the_vectors_of_rfc_7748(scalar: str, point: str, shared: str) -> None:
    found = wide_x25519.agreements([bytes.fromhex(scalar)], [bytes.fromhex(point)])
    assert [secret.hex() for secret in found] == [shared]


@native
def test_the_thousandth_of_rfc_7748s_iteration() -> None:
    k = u = (9).to_bytes(32, "little")
    for turn in range(1000):
        k, u = wide_x25519.agreements([k], [u])[0], k
        if turn == 0:
            assert k.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert k.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


@native
@pytest.mark.parametrize("pairs", [1, 7, 8, 9, 16, 17, 99])
def test_any_number_of_pairs_agrees_as_cryptography_does(pairs: int) -> None:
    entropy = Seeded(pairs)
    secrets, public = ([entropy.token(32) for _ in range(pairs)] for _ in range(2))
    found = wide_x25519.agreements(secrets, public)
    assert found == plain(secrets, public)
    assert len(set(found)) == pairs


@native
def test_every_point_agrees_as_with_cryptography() -> None:
    """Low orders come to zero, however they are written; the last bit of a point says nothing."""
    low = [n for u in LOW_ORDER for n in (u, u + P) if n < 2**255]
    points = [(n + high).to_bytes(32, "little") for n in (*low, *OTHERS) for high in (0, 2**255)]
    for secret in (bytes(32), b"\xff" * 32, Seeded(3).token(32)):
        found = wide_x25519.agreements([secret] * len(points), points)
        assert found == plain([secret] * len(points), points)
        assert [not any(shared) for shared in found] == [True] * 2 * len(low) + [False] * 22


@native
@pytest.mark.parametrize("above", [0, 1, 18, 19, 20, 2**51, 2**254, P - 1])
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_number_comes_out_below_p(above: int, turns: int) -> None:
    """Limbs may say it with up to two p more, and with carries that are still to be done."""
    number = above + turns * P
    parts = [number >> 51 * i & (2**51 - 1) for i in range(4)]
    limbs = np.array([*parts, number >> 204], np.uint64)[:, None].repeat(8, 1)
    if limbs[1, 0]:  # the same number with a limb above 51 bits
        limbs[0] += np.uint64(2**51)
        limbs[1] -= np.uint64(1)
    out = np.zeros(4, np.uint64)
    wide_x25519._end(limbs, 3, out)
    assert int.from_bytes(out.tobytes(), "little") == above


def counted(monkeypatch: pytest.MonkeyPatch, worth: float) -> tuple[list[int], list[int]]:
    """How many agreements are made in native code at once, and how many by `cryptography`."""
    wide, single = list[int](), list[int]()
    real = KeyPair.agree

    def agreements(secrets: list[bytes], public: list[bytes]) -> list[bytes]:
        wide.append(len(secrets))
        return plain(secrets, public)

    def agree(self: KeyPair, public: Any) -> bytes:
        single.append(1)
        return real(self, public)

    monkeypatch.setattr(wide_x25519, "AVAILABLE", True)
    monkeypatch.setattr(wide_x25519, "agreements", agreements)
    monkeypatch.setattr(KeyPair, "agree", agree)
    monkeypatch.setattr(keys, "_agreed", 0)
    monkeypatch.setattr(keys, "_WORTH_COMPILING", worth)
    return wide, single


def test_many_agree_in_native_code_in_simulation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = KeyPair.draw(Seeded(0)), [KeyPair.draw(Seeded(n)).public for n in range(1, 5)]
    wide, single = counted(monkeypatch, 7)
    expected = Pairs().agreed(mine, others)
    assert (wide, len(single)) == ([], 4)
    assert BothEnds().agreed(mine, others) == expected
    assert (wide, len(single)) == ([], 8)
    assert BothEnds().agreed(mine, others) == expected
    assert (wide, len(single)) == ([4], 8)
    Pairs().agreed(mine, others)
    assert (wide, len(single)) == ([4], 12)
    monkeypatch.setattr(wide_x25519, "AVAILABLE", False)
    assert BothEnds().agreed(mine, others) == expected
    assert (wide, len(single)) == ([4], 16)


@pytest.mark.parametrize("worth", [0, math.inf])
def test_a_key_of_low_order_among_others_is_refused(
    worth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, _ = counted(monkeypatch, worth)
    mine, other = KeyPair.draw(Seeded(0)), KeyPair.draw(Seeded(1)).public
    for low in LOW_ORDER:
        with pytest.raises(InvalidValue, match="a key of low order"):
            BothEnds().agreed(mine, [other, low.to_bytes(32, "little"), other])
    assert wide == ([3] * 5 if worth == 0 else [])


def test_what_one_end_has_found_the_other_does_not_ask_for() -> None:
    pairs, asked = BothEnds(), list[list[int]]()

    def make(places: list[int]) -> list[bytes]:
        asked.append(places)
        return [bytes([place]) for place in places]

    names = [("one",), ("two",), ("three",)]
    assert pairs.once(names[1:2], make) == [b"\x00"]
    assert pairs.once(names, make) == [b"\x00", b"\x00", b"\x02"]
    assert pairs.once([names[0], names[2]], make) == [b"\x00", b"\x02"]
    assert asked == [[0], [0, 2]]
    assert not pairs._kept
