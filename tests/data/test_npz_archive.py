"""NumPy archives: plain arrays by name, or a sentence."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from data_files import npz, refused, write
from fedveil.data import npz_archive
from fedveil.data.npz_archive import read_npz
from hostile_files import bounded

BITS = np.arange(300 * 600).reshape(300, 600) % 7 % 2
LABELS = np.arange(300) % 100


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not an .npz archive of plain arrays"),
        (b"PK\x03\x04 not really", "is not an .npz archive of plain arrays"),
        (npz(features=BITS, labels=LABELS)[:-300], "is not an .npz archive of plain arrays"),
        (npz(x=BITS), "holds x, but an array features is needed"),
        (npz(features=BITS), "holds features, but an array labels is needed"),
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
    with refused("file.npz is one array, but an .npz archive is needed"):
        read_npz(path, "features", "labels")


def archive(header: bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An archive of one array `x` with a header of somebody's own."""
    length = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", b"\x93NUMPY" + version + length + header + data)
    return stream.getvalue()


def header(descr="'<f8'", shape="(3,)") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()


def test_an_array_is_read_in_its_order_and_version(tmp_path):
    turned = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    path = write(tmp_path / "file.npz", npz(x=turned, y=np.array(4, ">i2"), z=np.zeros((0, 5))))
    x, y, z = read_npz(path, "x", "y", "z")
    assert np.array_equal(x, turned)
    assert (y, y.shape, z.shape) == (4, (), (0, 5))
    content = archive(header(), np.arange(3.0).tobytes(), b"\x02\x00")
    assert read_npz(write(path, content), "x")[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(1000000,)", "(2,)", "(-3,)", "(2, -1)"])
def test_a_header_that_announces_more_than_there_is_is_refused(tmp_path, shape, monkeypatch):
    """Let nothing take memory for what is not there."""
    path = write(tmp_path / "file.npz", archive(header(shape=shape), bytes(24)))
    monkeypatch.setattr(npz_archive.np, "empty", None)
    with bounded(), refused("x.npy has 24 bytes of data, but its header announces -?[0-9,]+$"):
        read_npz(path, "x")


def test_zeros_that_were_packed_are_not_unpacked_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(npz_archive, "MOST_DATA_BYTES", 100_000)
    path = write(tmp_path / "file.npz", npz(x=np.zeros(20_000)))
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros(20_000))
    with refused("x.npy has 160,000 bytes; the limit is 100,000"):
        read_npz(write(path, stream.getvalue()), "x")


@pytest.mark.parametrize(
    "head",
    [
        b"(" * 5_000,
        b"-" * 9_000,
        b"{'a': (" * 1_000,
        b"{'descr': '<f8',\n\"\"\"",
        b"[" * 150 + b"1L",
        header(descr=repr([("a", "<f8")] * 2)),
        header(descr="'|O'"),
        header(descr="'V0'", shape="(1000000000000,)"),
        header(shape="(True, 'a')"),
        header()[:-9],
        header() + b" " * 20_000,
        b"",
    ],
)
@pytest.mark.parametrize("version", [b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x07"])
def test_a_header_that_is_no_header_is_refused(tmp_path, head, version):
    path = write(tmp_path / "file.npz", archive(head, b"", version))
    with bounded(), refused("file.npz is not an .npz archive of plain arrays: "):
        read_npz(path, "x")


def test_a_password_is_no_traceback(tmp_path):
    content = bytearray(archive(header(), bytes(24)))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + at] |= 1
    with refused("file.npz is not an .npz archive of plain arrays: "):
        read_npz(write(tmp_path / "file.npz", bytes(content)), "x")
