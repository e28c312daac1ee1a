"""Work on a long vector covers each entry once, and may split it at multiples of a block."""

from __future__ import annotations

import pytest

from fedveil.base import two_threads
from fedveil.base.two_threads import by_halves


@pytest.mark.parametrize(
    ("count", "multiple", "slices"),
    [
        (9, 1, [(0, 4), (4, 9)]), (9, 3, [(0, 3), (3, 9)]), (11, 4, [(0, 4), (4, 11)]),
        (9, 8, [(0, 0), (0, 9)]), (7, 1, [(0, 7)]), (0, 1, [(0, 0)]),
    ],
)  # fmt: skip
def test_a_long_vector_is_halved_at_a_multiple(
    count: int, multiple: int, slices: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_threads, "_LONG", 8)
    done = by_halves(count, lambda some: (some.start, some.stop), multiple)
    assert done == slices
