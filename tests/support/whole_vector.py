"""Vectors of secure aggregation that clients make part by part."""

from __future__ import annotations

import numpy as np

from fedveil.secagg.masked_vector import MadeInParts, Vector


def whole(vector: Vector) -> np.ndarray:
    """Return all entries of a vector as one array."""
    if isinstance(vector, MadeInParts):
        return np.concatenate([part.copy() for part in vector.numbers(slice(0, vector.length))])
    return vector
