"""Draws that their first 32 bits do not decide, forced column by column."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedveil.entropy import Seeded
from fedveil.mechanisms.exact.alias_table import AliasTables

LAW, EXACT, ROW, SYMBOL = np.array([[0.5, 0.2, 0.2, 0.1]]), [5, 2, 2, 1], 4, -3


class Begins(Seeded):
    """Yields these words first, then those of a seed."""

    def __init__(self, words: np.ndarray, seed: int) -> None:
        super().__init__(seed)
        self._words: np.ndarray | None = words

    def fill(self, out: Any) -> None:
        if self._words is None:
            super().fill(out)
            return
        out[:] = self._words
        self._words = None


def test_a_tie_has_a_symbol_from_the_first_on_whoever_draws() -> None:
    tables = AliasTables(LAW, lambda row: EXACT, ROW, SYMBOL)
    columns = np.arange(tables._entries.shape[1], dtype=np.uint32)
    tied = columns << np.uint32(32 - tables._bits) | tables._entries[0] >> np.uint32(tables._bits)
    found = set()
    for seed in range(40):
        one, other = (np.zeros(len(tied), np.int64) for _ in range(2))
        tables.draw_from(ROW, Begins(tied, seed), one)
        tables.draw(np.full(len(tied), ROW), Begins(tied, seed), other)
        assert one.tolist() == other.tolist()
        found |= set(one.tolist())
    assert found == {-3, -2, -1, 0}
