"""A digest of named arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def digest(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return a digest of the names, types, shapes and values. No array may have Python objects."""
    whole = hashlib.sha256()
    for name, array in arrays.items():
        whole.update(repr((name, str(array.dtype), array.shape)).encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.digest()
