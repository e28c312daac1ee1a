"""The law of S, from the alias tables up: exact identities first, then draws against them."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.mechanisms.exact import alias_table
from fedveil.mechanisms.exact.alias_table import AliasTables
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.mechanisms.unary.state_sum import (
    exact_sum_law,
    largest_sum,
    sum_law,
    sum_laws,
    sum_tables,
)
from scripted_entropy import Scripted, word
from statistical_checks import assert_follows
from unary_law import enumerated_sum_law

KINDS = ("rr", "oue")
EPS = (0.075, 0.5, 4.8, 30.0, 100.0)


def probabilities(kind: Any, eps: float) -> tuple[Fraction, Fraction]:
    encoding = UnaryEncoding(kind, eps, 1)
    return encoding.exact_p, encoding.exact_q


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [1, 2, 3])
def test_exact_law_is_the_one_of_all_codes(kind: str, cells: int) -> None:
    p, q = probabilities(kind, 0.5)
    for state in range(-cells, cells + 1):
        law = exact_sum_law(p, q, cells, state)
        enumerated = enumerated_sum_law(p, q, cells, state)
        for s, weight in zip(range(-largest_sum(cells), largest_sum(cells) + 1), law, strict=True):
            assert Fraction(weight, sum(law)) == enumerated.get(s, 0)


def assert_draws_the_exact_law(tables: AliasTables, row: int, exact: list[int]) -> None:
    """A draw's law is weights / 2^64 and, for the rest, remainders: together `exact`, exactly."""
    weights = tables.weights(row)
    remainders = tables.remainders(row)
    share, total = Fraction(weights[-1], 2**64), sum(exact)
    assert sum(weights) == 2**64
    assert 0 < share < 2**-32
    scale = Fraction(share, sum(remainders))
    assert all(
        Fraction(w, 2**64) + scale * r == Fraction(e, total)
        for w, r, e in zip(weights, remainders, exact, strict=False)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("cells", [1, 2, 7])
def test_tables_and_remainders_make_the_exact_law(kind: str, eps: float, cells: int) -> None:
    p, q = probabilities(kind, eps)
    for state in range(-cells, cells + 1):
        exact = exact_sum_law(p, q, cells, state)
        assert_draws_the_exact_law(sum_tables(p, q, cells), state + cells, exact)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "eps", "state"), [("rr", 0.5, 17), ("oue", 100.0, -50)])
def test_tables_of_101_states_make_the_exact_law(kind: str, eps: float, state: int) -> None:
    p, q = probabilities(kind, eps)
    assert_draws_the_exact_law(sum_tables(p, q, 50), state + 50, exact_sum_law(p, q, 50, state))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", EPS)
def test_floating_laws_are_as_good_as_they_say(kind: str, eps: float) -> None:
    p, q = probabilities(kind, eps)
    laws = sum_laws(p, q, 7)
    for state in range(-7, 8):
        exact = exact_sum_law(p, q, 7, state)
        total = sum(exact)
        for law in (laws[state + 7], sum_law(p, q, 7, state)):
            for got, weight in zip(law, exact, strict=True):
                if weight * 2**900 > total:  # what floating point can hold without underflow
                    assert abs(Fraction(got) * total / weight - 1) < 3 * 15 * 2.0**-53


def test_largest_tables_fit_their_bound() -> None:
    """127 cells need the most columns; their laws still sum to one as closely as they must."""
    p, q = probabilities("rr", 0.5)
    weights = sum_tables(p, q, 127).weights(0)
    assert sum(weights) == 2**64
    assert weights[-1] < 2**28


def test_every_decision_of_a_table() -> None:
    """At each column, around each threshold, a draw follows the 64-bit weights to the digit."""
    p, q = probabilities("rr", 0.5)
    tables = sum_tables(p, q, 2)
    bits, symbols = tables._bits, 7
    remainders = tables.remainders(1)
    for column in range(1 << bits):
        entry, lower = int(tables._entries[1, column]), int(tables._lower[1, column])
        upper, partner = entry >> bits, entry & ((1 << bits) - 1)
        threshold = upper << 32 | lower
        for digits in {threshold - 1, threshold, threshold + 1, 0, 2 ** (64 - bits) - 1}:
            if not 0 <= digits < 2 ** (64 - bits):
                continue
            first = column << (32 - bits) | digits >> 32
            choice = column if digits < threshold else partner
            script = [word(first)]
            if digits >> 32 == upper:
                script.append(word(digits & (2**32 - 1)))
            if choice == symbols:
                ticket = sum(remainders) * 2 // 3
                size = ((sum(remainders) - 1).bit_length() + 7) // 8
                spare = 8 * size - (sum(remainders) - 1).bit_length()
                script.append(word(ticket << spare, size))
                choice = bisect_right(list(accumulate(remainders)), ticket)
            entropy = Scripted(*script)
            out = np.empty(1, np.int16)
            tables.draw(np.array([-1], np.int16), entropy, out)
            assert out[0] == choice - largest_sum(2)
            assert entropy.left == 0


def test_tails_at_epsilon_100_come_from_the_remainder() -> None:
    """Pr[S != state] is about 1e-44: 64 bits never show it, the remainder does, in proportion."""
    p, q = probabilities("rr", 100.0)
    tables = sum_tables(p, q, 2)
    weights, remainders = tables.weights(3), tables.remainders(3)
    sums = range(-largest_sum(2), largest_sum(2) + 1)
    assert [s for s, w in zip(sums, weights, strict=False) if w] == [1]
    assert all(r > 0 for r in remainders)
    # One wrong bit of the five, -2..2 and the own one: S = 1 - 2, 1 - 1, 1 (bit 0), 1 + 2, 0.
    exact = exact_sum_law(p, q, 2, 1)
    for s, codes in ((-1, 1), (0, 2), (3, 1)):
        share = Fraction(exact[s + 3], sum(exact))
        assert share / q == pytest.approx(codes, rel=1e-12)
        scale = Fraction(weights[-1], 2**64 * sum(remainders))
        assert remainders[s + 3] * scale == share


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.5, 4.8])
@pytest.mark.parametrize(("cells", "state"), [(1, 1), (3, -2), (50, 0), (50, 50)])
def test_draws_follow_the_law(kind: str, eps: float, cells: int, state: int) -> None:
    p, q = probabilities(kind, eps)
    out = np.empty(200_000, np.int16)
    states = np.full(len(out), state, np.int16)
    sum_tables(p, q, cells).draw(states, Seeded(11, kind, cells, state), out)
    largest = largest_sum(cells)
    counts = np.bincount(out.astype(np.int64) + largest, minlength=2 * largest + 1)
    assert_follows(counts.tolist(), sum_law(p, q, cells, state))


def test_compiled_and_numpy_draws_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both paths, over several blocks and with undecided draws among them."""
    numpy_path = getattr(alias_table._pick, "numpy_path", None)
    if numpy_path is None:
        pytest.skip("there is no numba here")
    p, q = probabilities("rr", 0.5)
    tables = sum_tables(p, q, 100)  # 18 bits a threshold: a draw in 2^18 is undecided
    states = np.arange(700_000, dtype=np.int64) % 201 - 100
    compiled, plain = np.empty(len(states), np.int16), np.empty(len(states), np.int16)
    entropy = Seeded(5)
    tables.draw(states.astype(np.int16), entropy, compiled)
    after = entropy.token(16)
    monkeypatch.setattr(alias_table, "_pick", numpy_path)
    entropy = Seeded(5)
    tables.draw(states.astype(np.int16), entropy, plain)
    np.testing.assert_array_equal(compiled, plain)
    assert entropy.token(16) == after
    read = (len(states) * 4 + 15) // 16 * 16
    assert Seeded(5).token(read + 16)[-16:] != after, "no draw was undecided"


def test_draws_from_one_row_are_those_of_that_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undecided draws among them, in one block and with and without numba."""
    tables = sum_tables(*probabilities("rr", 0.5), 100)
    alone, among = np.empty(60_000, np.int16), np.empty(60_000, np.int16)
    seed = next(seed for seed in range(100) if _undecided(tables, seed))
    tables.draw(np.full(60_000, 7, np.int16), Seeded(seed), among)
    tables.draw_from(7, Seeded(seed), alone)
    np.testing.assert_array_equal(alone, among)
    plain = getattr(alias_table._pick_from, "numpy_path", None) or alias_table._pick_from
    monkeypatch.setattr(alias_table, "_pick_from", plain)
    tables.draw_from(7, Seeded(seed), alone)
    np.testing.assert_array_equal(alone, among)


def _undecided(tables: AliasTables, seed: int) -> bool:
    words = np.empty(60_000, np.uint32)
    Seeded(seed).fill(words)
    return bool(alias_table._tied(tables._entries[107], tables._bits, words).any())


def test_a_table_refuses_what_is_no_law() -> None:
    with pytest.raises(ArithmeticError, match="do not sum to one"):
        AliasTables(np.array([[0.5, 0.25]]), exact=lambda row: [2, 1])
    too_much = AliasTables(np.array([[0.5, 0.5]]), exact=lambda row: [1, 2])
    with pytest.raises(ArithmeticError, match="more than its true probability"):
        too_much.remainders(0)
