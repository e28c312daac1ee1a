"""Packed numbers come back, and what is no packed number changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.base import packing
from fedveil.base.packing import add_packed, add_within, pack, packed_size, unpack

LOWEST, HIGHEST, WIDTH = -9, 21, 5  # 31 of the 32 numbers of 5 bits


def numbers(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(LOWEST, HIGHEST + 1, count)


@pytest.fixture(params=["compiled", "numpy"])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the compiled loops, or those of machines without numba."""
    if request.param == "numpy":
        for name in ("pack_into", "_unpack", "_add_within", "_add", "_add_packed"):
            loop = getattr(packing, name)
            monkeypatch.setattr(packing, name, getattr(loop, "numpy_path", loop))


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("count", [1, 13, 4099, 70_001])
def test_numbers_come_back_and_add_up(count: int) -> None:
    values, found = numbers(count), np.empty(count, np.int32)
    packed = pack(values, LOWEST, WIDTH)
    assert len(packed) == packed_size(count, WIDTH)
    assert unpack(packed, LOWEST, HIGHEST, WIDTH, found)
    assert found.tolist() == values.tolist()
    assert pack(values + (3 << WIDTH), LOWEST, WIDTH).tobytes() == packed.tobytes()
    wide = np.arange(count) * 76_543_211 % (1 << 31)
    assert unpack(pack(wide, 0, 31), 0, (1 << 31) - 1, 31, found)
    assert found.tolist() == wide.tolist()
    total = np.arange(count)
    assert add_within(packed, LOWEST, HIGHEST, WIDTH, total)
    assert (total - np.arange(count)).tolist() == values.tolist()
    sums = np.arange(count, dtype=np.uint64)
    add_packed(packed, WIDTH, sums)
    assert (sums - np.arange(count, dtype=np.uint64)).tolist() == (values - LOWEST).tolist()


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("count", [13, 4099])
def test_a_number_above_the_highest_or_a_bit_after_the_last_is_refused(count: int) -> None:
    beyond = []
    for place in (0, -1):
        values = numbers(count)
        values[place] = HIGHEST + 1
        beyond.append(pack(values, LOWEST, WIDTH))
    spare = pack(numbers(count), LOWEST, WIDTH)
    spare[-1] |= 0x80
    for packed in (*beyond, spare, spare[:-1]):
        assert not unpack(packed, LOWEST, HIGHEST, WIDTH, np.empty(count, np.int32))
        total = np.arange(count)
        assert not add_within(packed, LOWEST, HIGHEST, WIDTH, total)
        assert total.tolist() == list(range(count))
