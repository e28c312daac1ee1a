"""Arrays that are converted in place, part by part."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.base import array_types
from fedveil.base.array_types import into_floats


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 8, 9])
def test_every_number_becomes_a_float(
    length: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_types, "_PART", 4)
    numbers = np.arange(7, 7 + length, dtype=dtype)
    expected = [float(number) for number in numbers]
    floats = into_floats(numbers)
    assert floats.dtype == np.float64
    assert floats.tolist() == expected
