"""The rotation: against the matrix that it is, and what it does to norms and to spikes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import hadamard
from scipy.stats import binomtest

from fedveil.base import two_threads
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.entropy import Seeded
from fedveil.mechanisms import hadamard as rotations
from fedveil.mechanisms.hadamard import (
    padded_length,
    random_signs,
    rotate,
    unrotate,
    walsh_hadamard,
)


@pytest.mark.parametrize("length", [1, 2, 4, 8, 16, 64, 512])
def test_it_is_the_matrix_of_walsh_and_hadamard(length: int) -> None:
    whole = Seeded(1).generator().integers(-9, 9, length).astype(np.float64)
    moved = whole.copy()
    walsh_hadamard(moved, length)
    assert (moved == hadamard(length) @ whole).all()


@pytest.mark.parametrize("block", [1, 4, 64])
def test_each_block_is_spread_alone_and_can_be_undone(block: int) -> None:
    vector = Seeded(8).generator().normal(size=3 * 64 - 5)
    signs = random_signs(3 * 64, Seeded(9))
    turned = rotate(vector, signs, block)
    padded = np.append(vector, np.zeros(5)) * signs
    wanted = padded.reshape(-1, block) @ hadamard(block) / block**0.5
    assert turned.reshape(-1, block) == pytest.approx(wanted, abs=1e-12)
    unrotate(turned, signs, block)
    assert turned[: len(vector)] == pytest.approx(vector, abs=1e-12)


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares the compiled loop with its NumPy path")
@pytest.mark.parametrize("length", [1, 2, 4, 8, 32, 4096, 8192, 1 << 15, 1 << 16])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_compiled_or_not_it_gives_the_same_bytes(length: int, blocks: int, kind: type) -> None:
    block, length = length, length * blocks
    vector = Seeded(2).generator().normal(size=length).astype(kind)
    one, other = vector.copy(), vector.copy()
    rotations._walsh_hadamard(one, block)
    rotations._walsh_hadamard_numpy(other, block)
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dimension", [1, 3, 64, 1000])
def test_it_changes_no_norm_and_can_be_undone(dimension: int) -> None:
    vector = Seeded(3).generator().normal(size=dimension)
    signs = random_signs(padded_length(dimension), Seeded(4))
    turned = rotate(vector, signs, len(signs))
    assert np.linalg.norm(turned) == pytest.approx(np.linalg.norm(vector), rel=1e-12)
    back = turned.copy()
    unrotate(back, signs, len(signs))
    assert back[:dimension] == pytest.approx(vector, abs=1e-12)
    assert np.abs(back[dimension:]).max(initial=0) < 1e-12


def test_a_spike_becomes_flat_and_a_flat_vector_no_spike() -> None:
    spike = np.zeros(1000)
    spike[77] = 5.0
    signs = random_signs(1024, Seeded(5))
    assert np.abs(rotate(spike, signs, 1024)) == pytest.approx(np.full(1024, 5 / 32))
    flat = np.ones(1024)  # without signs all of it would be in the first entry
    assert np.abs(rotate(flat, signs, 1024)).max() < 6


def test_signs_are_fair_and_independent_of_each_other() -> None:
    signs = random_signs(100_001, Seeded(6))
    bits = np.unpackbits(np.frombuffer(Seeded(6).token(12_501), np.uint8), bitorder="little")
    assert signs.dtype == np.int8
    assert (signs == 1 - 2 * bits[:100_001].astype(int)).all()
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert binomtest(int((signs > 0).sum()), len(signs)).pvalue > 1e-6
    same = signs[:-1] == signs[1:]
    assert binomtest(int(same.sum()), len(same)).pvalue > 1e-6


def test_the_padded_length() -> None:
    assert [padded_length(n) for n in (1, 2, 3, 4, 5, 8192, 8193)] == [1, 2, 4, 4, 8, 8192, 16384]


@pytest.mark.parametrize("long", [1, 1 << 22])
@pytest.mark.parametrize(("block", "blocks"), [(1 << 10, 71), (1 << 17, 1)])
def test_a_long_vector_comes_back_whatever_part_an_entry_is_in(
    block: int, blocks: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signs are undone a part at a time, by one or two threads. A block may exceed a part."""
    monkeypatch.setattr(two_threads, "_LONG", long)
    length = block * blocks
    signs = random_signs(length, Seeded(3))
    vector = Seeded(4).generator().normal(size=length - 5).astype(np.float32)
    turned = rotate(vector, signs, block)
    unrotate(turned, signs, block)
    np.testing.assert_allclose(turned[: length - 5], vector, atol=1e-4)
