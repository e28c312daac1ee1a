"""The loops that scale and round a vector give the same bytes, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.entropy import Seeded
from fedveil.mechanisms import vector_rounding


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares the compiled loop with its NumPy path")
def test_compiled_or_not_it_rounds_alike() -> None:
    draw = Seeded(4).generator()
    scaled = (draw.normal(size=999) * 40).astype(np.float32)
    uniform = draw.integers(0, 1 << 32, 999, dtype=np.uint32)
    one, other = np.empty(999, np.int64), np.empty(999, np.int64)
    total = vector_rounding.round_at_random(scaled, uniform, one)
    assert total == vector_rounding._round_at_random_numpy(scaled, uniform, other)
    assert (one == other).all()


@pytest.mark.skipif(not HAVE_NUMBA, reason="compares the compiled loop with its NumPy path")
def test_compiled_or_not_it_scales_alike() -> None:
    draw = Seeded(4).generator()
    vector = (draw.normal(size=999) * 40).astype(np.float32)
    signs = np.where(draw.random(999) < 0.5, -1, 1).astype(np.int8)
    one, other = np.full(1001, 7, np.float32), np.full(1001, 7, np.float32)
    vector_rounding.scale_with_signs(vector, 1 / 3, signs, one)
    vector_rounding._scale_with_signs_numpy(vector, 1 / 3, signs, other)
    assert one.tobytes() == other.tobytes()
    product = (vector.astype(np.float64) * (1 / 3)).astype(np.float32)  # also before NumPy 2
    assert one[:999].tolist() == (product * signs).tolist()
    assert one[999:].tolist() == [7, 7]
