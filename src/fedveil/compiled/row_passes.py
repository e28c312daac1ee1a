"""Simple loops over rows of numbers, which many operations share.

A row is given by the position of its first entry in the float memory `m`.
"""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Float32s
from fedveil.base.kernels import compiled


@compiled()
def fill(m: Float32s, begin: int, count: int, value: np.float32) -> None:
    for i in range(begin, begin + count):
        m[i] = value


@compiled()
def add_rows(m: Float32s, total: int, a: int, row: int, count: int, length: int) -> None:
    """Add `count` rows to one row. Each has `length` entries.

    Row i begins at m[a + i * row], and the row to which they are added begins at m[total].
    """
    for i in range(count):
        for j in range(length):
            m[total + j] += m[a + i * row + j]


@compiled(reorder=True)
def total(m: Float32s, begin: int, count: int) -> float:
    found = np.float32(0)
    for i in range(begin, begin + count):
        found += m[i]
    return found  # type: ignore[return-value]


@compiled(reorder=True)
def are_finite(m: Float32s, begin: int, count: int) -> bool:
    odd = np.float32(0)
    for i in range(begin, begin + count):
        odd += m[i] * np.float32(0)
    return odd == 0  # type: ignore[no-any-return]


@compiled(reorder=True)
def inner_product(m: Float32s, a: int, b: int, count: int) -> float:
    """Return the inner product of the rows m[a : a + count] and m[b : b + count]."""
    found = np.float32(0)
    for i in range(count):
        found += m[a + i] * m[b + i]
    return found  # type: ignore[return-value]


@compiled()
def has_zeros(
    m: Float32s, dy: int, ys: int, x: int, xs: int, rows: int, outputs: int, inputs: int
) -> bool:
    """Return True if skipping the zeros of dy makes a product of dy and x faster, and is exact.

    Skipping is faster if more than a third of dy is zero. It is exact if all of x is finite. dy and
    x are in the float memory `m` and have `rows` rows. Row n of dy begins at m[dy + n ys] and has
    `outputs` entries. Row n of x begins at m[x + n xs] and has `inputs` entries.
    """
    zeros, finite = 0, True
    for n in range(rows):
        for i in range(dy + n * ys, dy + n * ys + outputs):
            zeros += m[i] == 0
        finite &= are_finite(m, x + n * xs, inputs)
    return 3 * zeros > rows * outputs and finite
