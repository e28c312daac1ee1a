"""NumPy archives: plain arrays by name, or a sentence."""

from __future__ import annotations

import io

import numpy as np
import pytest

from data_files import npz, refused, write
from fedveil.data.npz_archive import read_npz

BITS = np.arange(300 * 600).reshape(300, 600) % 7 % 2
LABELS = np.arange(300) % 100


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not an .npz archive of plain arrays"),
        (b"PK\x03\x04 not really", "is not an .npz archive of plain arrays"),
        (npz(features=BITS, labels=LABELS)[:-300], "is not an .npz archive of plain arrays"),
        (npz(x=BITS), "holds x, an array features is needed"),
        (npz(features=BITS), "holds features, an array labels is needed"),
        (npz(features=BITS, labels=np.array([{}] * 300)), "is not an .npz archive of plain arr"),
    ],
)
def test_what_is_no_archive_of_these_arrays_is_told(tmp_path, content, sentence):
    path = write(tmp_path / "file.npz", content)
    with refused(f"file.npz {sentence}"):
        read_npz(path, "features", "labels")


def test_an_array_file_is_no_archive(tmp_path):
    stream = io.BytesIO()
    np.save(stream, BITS)
    path = write(tmp_path / "file.npz", stream.getvalue())
    with refused("file.npz is one array, an .npz archive is needed"):
        read_npz(path, "features", "labels")
