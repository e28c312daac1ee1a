"""S by way of the lies: the law of the gaps, and of what they add up to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.mechanisms.unary import bit_flips
from fedveil.mechanisms.unary.bit_flips import PerturbedSums, exact_gap_law, gap_law
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.mechanisms.unary.state_sum import sum_law
from statistical_checks import assert_follows

KINDS = ("rr", "oue")
EPS = (0.5, 4.8, 30.0)


def bits_of(kind: Any, eps: float, cells: int) -> tuple[PerturbedSums, UnaryEncoding]:
    encoding = UnaryEncoding(kind, eps, cells)
    return PerturbedSums(encoding.exact_p, encoding.exact_q, cells), encoding


@pytest.mark.parametrize("eps", EPS)
def test_the_law_of_gaps_is_geometric_and_exact(eps: float) -> None:
    """Pr[g] = (1 - q)^g q, all longer ones together: weights and remainders add up to it."""
    bits, encoding = bits_of("rr", eps, 1)
    exact, tables = exact_gap_law(encoding.exact_q), bits._gaps
    total, longest = sum(exact), bit_flips._LONGEST_GAP
    lie, both = encoding.exact_q.as_integer_ratio()
    for gap in (0, 1, 2, longest - 1):
        assert exact[gap] * both ** (gap + 1) == (both - lie) ** gap * lie * total
    assert exact[longest] * both**longest == (both - lie) ** longest * total
    for got, weight in zip(gap_law(encoding.exact_q)[0].tolist(), exact, strict=True):
        top, bottom = got.as_integer_ratio()
        assert abs(top * total - weight * bottom) << 43 < weight * bottom
    weights, remainders = tables.weights(0), tables.remainders(0)
    rest = sum(remainders)
    for gap in (0, 1, 100, longest - 1, longest):
        drawn = weights[gap] * rest + weights[-1] * remainders[gap]
        assert drawn * total == exact[gap] * rest << 64


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("eps", "cells", "state"), [
    (0.5, 1, 1), (0.5, 3, -2), (4.8, 50, 0), (4.8, 50, 50), (4.8, 50, -50), (6.0, 127, 3)
])  # fmt: skip
def test_sums_follow_the_law(kind: Any, eps: float, cells: int, state: int) -> None:
    bits, encoding = bits_of(kind, eps, cells)
    states, out = np.full(200_000, state, np.int16), np.empty(200_000, np.int16)
    bits.draw(states, Seeded(8, kind, cells, state), out)
    law = sum_law(encoding.exact_p, encoding.exact_q, cells, state)
    counts = np.bincount(out.astype(np.int64) + encoding.largest_sum, minlength=len(law))
    assert_follows(counts.tolist(), law)


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_are_independent(kind: Any) -> None:
    """One parameter's last state and the next one's first lie side by side among the codes."""
    bits, encoding = bits_of(kind, 1.0, 1)
    states, out = np.tile(np.array([1, -1], np.int16), 150_000), np.empty(300_000, np.int16)
    bits.draw(states, Seeded(9), out)
    left, right = (sum_law(encoding.exact_p, encoding.exact_q, 1, state) for state in (1, -1))
    for first, second, law in (
        (out[::2], out[1::2], np.outer(left, right)),
        (out[1:-1:2], out[2::2], np.outer(right, left)),
    ):
        counts = np.bincount((first + 1) * 3 + second + 1, minlength=9)
        assert_follows(counts.tolist(), law.reshape(-1))


@pytest.mark.parametrize("count", [0, 1, 7, 5003])
def test_blocks_and_lengths(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report needs several blocks; where no bit lies it is the states, however long."""
    monkeypatch.setattr(bit_flips, "_BLOCK", 100)
    states = (np.arange(count) % 401 - 200).astype(np.int16)
    out = np.full(count, -1, np.int32)
    bits_of("rr", 80.0, 200)[0].draw(states, Seeded(1), out)
    np.testing.assert_array_equal(out, states)
    bits_of("oue", 80.0, 200)[0].draw(states, Seeded(1), out)
    assert ((out == states) | (out == 0)).all()
    assert count < 100 or 0.4 < (out == 0).mean() < 0.6


def test_tables_are_for_bits_that_often_lie() -> None:
    assert UnaryEncoding("rr", 4.8, 50)._lies is not None
    assert UnaryEncoding("rr", 3.0, 50)._lies is None
