"""The samplers follow their exact laws, and no keystream is used twice."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedveil import entropy, mechanisms
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import InvalidValue
from fedveil.secagg import run_round
from scripted_entropy import Scripted
from statistical_checks import ERROR_RATE


def test_the_keystream_is_aes_256_ctr() -> None:
    source = Seeded(1, "a")
    encryptor = Cipher(algorithms.AES(source._fresh_key()), modes.CTR(bytes(16))).encryptor()
    assert source.token(1 << 19) == encryptor.update(bytes(1 << 19))


@given(st.lists(st.integers(0, 300_000), max_size=6))
def test_reading_in_parts_gives_the_same_bytes(sizes: list[int]) -> None:
    whole, parts = Seeded(3), Seeded(3)
    assert whole.token(sum(sizes)) == b"".join(parts.token(size) for size in sizes)


def test_fill_takes_any_contiguous_buffer() -> None:
    array = np.zeros((3, 5), np.float64)
    Seeded(0).fill(array)
    assert array.tobytes() == Seeded(0).token(array.nbytes)
    Seeded(0).fill(np.zeros((0, 3)))


def test_same_seed_and_path_same_bytes_and_any_other_differs() -> None:
    streams = [
        Seeded(0),
        Seeded(1),
        Seeded(0, "a"),
        Seeded(0, "a", "b"),
        Seeded(0, "a,b"),
        Seeded(0, 'a","b'),
        Seeded(0, "1"),
        Seeded(0, 1),
        Seeded(0).stream("c"),
    ]
    assert len({s.token(32) for s in streams}) == len(streams)
    assert Seeded(0, "a").stream("b").token(32) == Seeded(0, "a", "b").token(32)


def test_stream_does_not_depend_on_what_was_drawn() -> None:
    source = Seeded(0)
    before = source.stream("x").token(16)
    source.token(1000)
    assert source.stream("x").token(16) == before


def test_seeded_can_be_pickled_and_secure_cannot() -> None:
    assert pickle.loads(pickle.dumps(Seeded(5, "a", 1))).token(8) == Seeded(5, "a", 1).token(8)
    with pytest.raises(TypeError, match="cannot be copied"):
        pickle.dumps(Secure())


def test_secure_sources_are_independent_of_each_other() -> None:
    first = Secure()
    assert (
        len({first.token(16), first.token(16), Secure().token(16), first.stream().token(16)}) == 4
    )


def _in_fork(work: str, source: Entropy) -> bytes:
    """Return the draws of a really forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.write(write, source.token(32) if work == "draw" else b"")
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        drawn = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return drawn


def test_forked_children_never_repeat_a_secure_keystream() -> None:
    source = Secure()
    source.token(7)  # the buffer is half used: the fork copies the unused rest
    drawn = [_in_fork("draw", source) for _ in range(8)] + [source.token(32)]
    assert len(set(drawn)) == len(drawn)


def test_a_forked_child_of_a_seeded_source_goes_on_repeatably() -> None:
    source = Seeded(9)
    source.token(7)
    assert _in_fork("draw", source) == source.token(32)


def test_forks_are_counted_by_the_system_hook() -> None:
    before = entropy._forks
    _in_fork("nothing", Seeded(0))
    assert entropy._forks == before  # only the child counts


@pytest.mark.parametrize("p", [1e-3, 0.25, 0.3, 1 / 3, 0.999])
def test_bernoulli_law(p: float) -> None:
    trials = 200_000
    ones = int(Seeded(11, str(p)).bernoulli(p, trials).sum())
    assert stats.binomtest(ones, trials, p).pvalue > ERROR_RATE


def test_bernoulli_ends_and_shapes() -> None:
    source = Seeded(0)
    assert not source.bernoulli(0.0, 1000).any()
    assert source.bernoulli(1.0, 1000).all()
    assert source.bernoulli(0.5, (3, 4)).shape == (3, 4)
    for wrong in (-0.1, 1.1, float("nan"), "x"):
        with pytest.raises(InvalidValue, match="p = "):
            source.bernoulli(wrong, 1)  # type: ignore[arg-type]


def test_bernoulli_takes_further_bits_until_the_draw_is_decided() -> None:
    p = 2.0**-64 * 0.75  # the first 64 bits of p are 0, the next begin 11
    digit = 0xC000000000000000
    assert Scripted(0, digit - 1).bernoulli(p, 1).tolist() == [True]
    assert Scripted(0, digit).bernoulli(p, 1).tolist() == [False]
    assert Scripted(1).bernoulli(p, 1).tolist() == [False]


def test_bernoulli_reaches_probabilities_far_below_one_word() -> None:
    p = 2.0**-144  # e^-100 is near this
    words = [0, 0, (1 << 48) - 1]
    assert Scripted(*words).bernoulli(p, 1).tolist() == [True]
    assert Scripted(0, 0, 1 << 48).bernoulli(p, 1).tolist() == [False]


@given(st.floats(0, 1, exclude_max=True))
def test_the_expansion_is_the_probability(p: float) -> None:
    rest, first = entropy._expansion(p)
    digits = [first, *rest]
    value = sum(digit << (64 * (len(digits) - 1 - i)) for i, digit in enumerate(digits))
    numerator, denominator = p.as_integer_ratio()
    assert value * denominator == numerator << (64 * len(digits))


@pytest.mark.parametrize("high", [1, 2, 7, 10, 1000])
def test_integers_law(high: int) -> None:
    drawn = Seeded(2, high).integers(high, 100_000)
    counts = np.bincount(drawn, minlength=high)
    assert len(counts) == high
    if high > 1:
        assert stats.chisquare(counts).pvalue > ERROR_RATE


def test_integers_rejects_the_uneven_top() -> None:
    high = (1 << 63) - 1  # 2^64 mod high = 2: the two topmost words would favour 0 and 1
    top = (1 << 64) - 1
    assert Scripted(top, top - 1, 5).integers(high, 1).tolist() == [5]


@given(st.integers(1, 1 << 200))
def test_integer_is_in_range_for_any_size(high: int) -> None:
    assert 0 <= Secure().integer(high) < high


def test_integer_law() -> None:
    source = Seeded(4)
    counts = np.bincount([source.integer(5) for _ in range(20_000)], minlength=5)
    assert stats.chisquare(counts).pvalue > ERROR_RATE


def test_permutation_law() -> None:
    source = Seeded(6)
    orders = [tuple(source.permutation(3)) for _ in range(12_000)]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > ERROR_RATE


def test_permutation_draws_again_where_two_keys_are_equal() -> None:
    script = [1, 1, 5, 5, 1, 2, 7, 0]
    assert Scripted(*script).permutation(2).tolist() == [1, 0]
    half_equal = [5, 1, 3, 7, 7, 2]
    assert Scripted(*half_equal).permutation(3).tolist() == [2, 1, 0]
    assert Seeded(0).permutation(0).tolist() == []


def test_generator_is_repeatable() -> None:
    assert Seeded(0).generator().random() == Seeded(0).generator().random()
    assert Secure().generator().random() != Secure().generator().random()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InvalidValue, match="seed = -1"):
        Seeded(-1)
    with pytest.raises(InvalidValue, match=r"path holds 1\.5"):
        Seeded(0, 1.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="high = 0"):
        Seeded(0).integers(0, 1)


@pytest.mark.parametrize("other", [3, "seed", Secure, np.random.default_rng(0)])
@pytest.mark.parametrize(
    "draw",
    [
        lambda other: mechanisms.GaussianMechanism(1.0, 1e-5, 1.0).privatize(np.ones(3), other),
        lambda other: mechanisms.SignDS(k=0.2, eps=1.0).select(np.ones(30), other),
        lambda other: mechanisms.UnaryEncoding("rr", 1.0, 5).perturb(np.ones(3), other),
        lambda other: mechanisms.BinaryRandomizedResponse(1.0).perturb([0, 1], other),
        lambda other: mechanisms.EmbeddingDP(1.0).bits(np.ones(3), other),
        lambda other: mechanisms.LabelDP(1.0).perturb_classes(np.array([1]), 3, other),
        lambda other: run_round({1: np.arange(3), 2: np.arange(3)}, 2, entropy=other),
    ],
)
def test_another_source_of_randomness_is_one_sentence(draw: Any, other: Any) -> None:
    with pytest.raises(InvalidValue, match=r"^entropy = .* is no source of randomness: use"):
        draw(other)
