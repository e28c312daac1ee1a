"""The digest of named arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.base.array_digest import digest


@pytest.mark.parametrize(
    ("array", "changed"),
    [
        (np.array(["2020-01-01"], "datetime64[D]"), np.array(["2020-01-02"], "datetime64[D]")),
        (np.zeros((0, 3)), np.zeros((3, 0))),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(3, 2)),
        (np.array(1.0), np.array([1.0])),
    ],
)
def test_a_digest_is_of_every_kind_of_array(array: Any, changed: Any) -> None:
    """Neither dates nor empty arrays have a buffer that can be hashed as it is."""
    assert digest({"x": array}) == digest({"x": array.copy()}) != digest({"x": changed})
