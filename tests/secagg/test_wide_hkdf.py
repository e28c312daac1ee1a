"""Derived keys in native code, and boxes that are not opened twice: simulations alone have them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedveil.entropy import Seeded
from fedveil.secagg import keys
from fedveil.secagg.keys import PAIR_MASK, SEALED_SHARES, BothEnds, Lock, Pairs

VIEW = bytes(range(32))


def locks_of(count: int, view: bytes = VIEW) -> list[Lock]:
    entropy = Seeded(count)
    ends = [(0, 2**63 - 1), (2**63 - 1, 0), (1, 2**32 + 1), (-1, 1)]
    ends += [(entropy.integer(2**63), entropy.integer(2**63)) for _ in range(count)]
    return [(entropy.token(32), view, *ends[i]) for i in range(count)]


@pytest.mark.parametrize("label", [PAIR_MASK, SEALED_SHARES, b"", b"x" * 38])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 50])
def test_native_keys_are_hkdf_of_the_ends(count: int, label: bytes) -> None:
    pytest.importorskip("numba")
    from fedveil.secagg import wide_hkdf

    if not wide_hkdf.AVAILABLE:
        pytest.skip("not on this processor")
    locks = locks_of(count)
    expected = [
        HKDF(hashes.SHA256(), 32, view, label + keys._ENDS(*ends)).derive(secret)
        for secret, view, *ends in locks
    ]
    assert wide_hkdf.derived(label, locks) == expected


def test_many_are_derived_in_native_code_in_simulation_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("numba")
    from fedveil.secagg import wide_hkdf

    calls = list[int]()

    def derived(label: bytes, locks: list[Lock]) -> list[bytes]:
        calls.append(len(locks))
        return Pairs().derived(label, locks)

    monkeypatch.setattr(wide_hkdf, "AVAILABLE", True)
    monkeypatch.setattr(wide_hkdf, "derived", derived)
    locks, apart = locks_of(3), [*locks_of(2), *locks_of(1, bytes(32))]
    expected = [keys.seal_key(*lock) for lock in locks]
    for worth, native in ((0, [3]), (math.inf, [])):
        calls.clear()
        monkeypatch.setattr(keys, "_agreed", 1)
        monkeypatch.setattr(keys, "_WORTH_COMPILING", worth)
        assert Pairs().derived(SEALED_SHARES, locks) == expected
        assert calls == []
        assert BothEnds().derived(SEALED_SHARES, locks) == expected
        assert BothEnds().derived(SEALED_SHARES, []) == []
        # They are of one view each, in native code.
        assert BothEnds().derived(PAIR_MASK, apart) == Pairs().derived(PAIR_MASK, apart)
        assert calls == native


def test_a_process_opens_no_box_that_it_has_sealed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[bytes]()
    real = keys.unseal

    def unseal(*arguments: Any) -> bytes | None:
        opened.append(arguments[-1])
        return real(*arguments)

    monkeypatch.setattr(keys, "unseal", unseal)
    locks, shares = locks_of(4), [b"shares %d" % i for i in range(4)]
    pairs, apart = BothEnds(), Pairs()
    boxes = pairs.sealed(locks, shares)
    assert boxes == apart.sealed(locks, shares)
    assert pairs.opened(locks, boxes) == shares
    assert opened == []
    assert pairs._kept == {}
    assert pairs.opened(locks, boxes) == apart.opened(locks, boxes) == shares
    assert opened == [*boxes, *boxes]


@pytest.mark.parametrize("kind", [Pairs, BothEnds])
def test_what_is_not_the_box_that_was_sealed_does_not_open(kind: type[Pairs]) -> None:
    """Another box, secret, view or end: whoever has sealed it."""
    locks, shares = locks_of(6), [b"shares %d" % i for i in range(6)]
    pairs = kind()
    boxes = pairs.sealed(locks, shares)
    secret, view, sender, receiver = locks[0]
    asked = [
        (bytes(32), view, sender, receiver),
        (secret, bytes(32), sender, receiver),
        (secret, view, sender + 1, receiver),
        (secret, view, sender, receiver - 1),
        (secret, view, receiver, sender),
    ]
    for lock in asked:
        assert pairs.opened([lock], [boxes[0]]) == [None]
    found = pairs.opened(locks, [boxes[1], *boxes[1:5], boxes[5][:-1] + bytes([boxes[5][-1] ^ 1])])
    assert found == [None, *shares[1:5], None]
    assert pairs.opened([locks[0]], [boxes[0]]) == shares[:1]
