"""Arrays between pages of memory that must not be accessed."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_PAGE = mmap.PAGESIZE


def fenced(array: np.ndarray) -> np.ndarray:
    """Copy an array, with protected pages before its first page and after its last."""
    if not array.size:
        return array
    whole = -(-array.nbytes // _PAGE) * _PAGE
    memory = mmap.mmap(-1, whole + 2 * _PAGE)
    first = np.frombuffer(memory, np.uint8).ctypes.data
    for page in (first, first + _PAGE + whole):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), _PAGE, 0) == 0
    begin = _PAGE + whole - array.nbytes
    inside = np.frombuffer(memory, array.dtype, array.size, begin).reshape(array.shape)
    inside[...] = array
    return inside
