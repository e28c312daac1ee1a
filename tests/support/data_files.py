"""Hand-written files of the data sets, and a check of the error for a bad one."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fedveil.data.idx import IdxFile, IdxSet
from fedveil.errors import DataInvalid

GENUINE = Path(os.environ.get("FEDVEIL_DATA", "/nowhere"))


@contextmanager
def refused(sentence, error=DataInvalid):
    """Expect an error with one sentence that matches."""
    with pytest.raises(error, match=sentence) as caught:
        yield
    assert "\n" not in str(caught.value)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def idx(array, code=8):
    header = bytes((0, 0, code, array.ndim)) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return header + array.astype({8: np.uint8, 12: ">i4"}[code]).tobytes()


TINY = {
    "train-images-idx3-ubyte": np.arange(3 * 784).reshape(3, 28, 28) % 256,
    "train-labels-idx1-ubyte": np.array([3, 1, 9]),
    "t10k-images-idx3-ubyte": np.arange(2 * 784).reshape(2, 28, 28) % 251,
    "t10k-labels-idx1-ubyte": np.array([0, 1]),
}
TINY_SET = IdxSet(
    "tiny",
    tuple(
        IdxFile(name, array.shape, hashlib.md5(idx(array)).hexdigest(), 0)
        for name, array in TINY.items()
    ),
    (),
)
#: Column 2 is the writer. The test part has more rows than images, as QMNIST's has.
TINY_WRITERS = {
    "qmnist-train-labels-idx2-int": np.array([[3, 4, 70_123], [1, 4, -5], [9, 0, 70_123]]),
    "qmnist-test-labels-idx2-int": np.array([[0, 4, 9], [1, 4, 9], [5, 0, 70_123]]),
}
TINY_WRITERS_SET = IdxSet(
    "tiny",
    tuple(
        IdxFile(name, array.shape, hashlib.md5(idx(array, 12)).hexdigest(), 0, number_bytes=4)
        for name, array in TINY_WRITERS.items()
    ),
    (),
)


def place_tiny(folder):
    for number, (name, array) in enumerate(TINY.items()):
        if number % 2:
            write(folder / "tiny" / name, idx(array))
        else:
            write(folder / "tiny" / f"{name}.gz", gzip.compress(idx(array)))


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


_modules = itertools.count()


def new_module():
    """Return a module name that was never used, since an imported module stays imported."""
    return f"own_data_{next(_modules)}"
