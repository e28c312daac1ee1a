"""The directions of the canaries' updates: public and orthogonal."""

from __future__ import annotations

import math

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue


class Directions:
    """Orthonormal vectors, one per canary: rows of a cosine transform with random signs."""

    def __init__(self, seed: int, count: int, dimension: int) -> None:
        if count > dimension:
            raise InvalidValue(
                f"audit.canaries = {count} is more than the model's {dimension} parameters. Use at "
                f"most {dimension}: each canary needs its own direction"
            )
        draw = Seeded(seed, "canary directions")
        self._signs = np.where(draw.bernoulli(0.5, dimension), 1.0, -1.0)
        self._rows = draw.permutation(dimension)[:count].copy()

    def vector(self, number: int) -> Float64s:
        n, row = len(self._signs), int(self._rows[number])
        turns = (2 * np.arange(n, dtype=np.int64) + 1) * row % (4 * n)
        length = math.sqrt((2 if row else 1) / n)
        vector: Float64s = self._signs * length * np.cos(np.pi / (2 * n) * turns)
        return vector

    def along(self, vector: Float64s) -> Float64s:
        """Return the inner products of `vector` with all directions."""
        from scipy.fft import dct  # takes a third of a second to import

        products: Float64s = dct(self._signs * vector, norm="ortho")[self._rows]
        return products

    def combined(self, weights: Float64s) -> Float64s:
        """Return the weighted sum of all directions. `weights` has one entry for each direction."""
        from scipy.fft import idct  # takes a third of a second to import

        products = np.zeros(len(self._signs))
        products[self._rows] = weights
        vector: Float64s = self._signs * idct(products, norm="ortho")
        return vector
