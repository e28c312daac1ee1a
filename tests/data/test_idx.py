"""IDX files: the published content or a sentence, compressed or not."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_files import TINY, TINY_SET, idx, refused, write
from fedveil.data.idx import parse_idx, read_idx
from fedveil.errors import DataInvalid, DataUnavailable

GOOD = idx(TINY["train-labels-idx1-ubyte"])


def test_the_first_bytes_tell_what_is_compressed(folder):
    name, array = "train-labels-idx1-ubyte", TINY["train-labels-idx1-ubyte"]
    file = TINY_SET.files[1]
    for path, content in (
        (folder / f"{name}.gz", idx(array)),
        (folder / name, gzip.compress(idx(array))),
    ):
        assert list(read_idx(write(path, content), file)) == [3, 1, 9]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (GOOD[:-1] + b"\x08", "is not the published train-labels-idx1-ubyte: the MD5 of its cont"),
        (GOOD + b"\x00", "is not the published"),
        (b"", "is not the published"),
        (gzip.compress(GOOD[:-1], mtime=0), "is not the published"),
        (gzip.compress(GOOD + b"\x00", mtime=0), "is not the published"),
        (gzip.compress(GOOD, mtime=0)[:-9], "is a damaged gzip file"),
        (gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), "is a damaged gzip file"),
        (b"\x1f\x8b" + bytes(40), "is a damaged gzip file"),
    ],
)
def test_what_is_not_the_published_file_is_refused(tmp_path, content, sentence):
    path = write(tmp_path / "file", content)
    with refused(f"{path} {sentence}"):
        read_idx(path, TINY_SET.files[1])


def test_no_more_is_unpacked_than_the_published_file_has(tmp_path):
    path = write(tmp_path / "file", gzip.compress(bytes(64 << 20)))
    tracemalloc.start()
    with refused("is not the published"):
        read_idx(path, TINY_SET.files[1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    with refused("file cannot be read: Is a directory", DataUnavailable):
        (tmp_path / "file").mkdir()
        read_idx(tmp_path / "file", TINY_SET.files[1])


@given(st.binary(max_size=40))
def test_any_bytes_are_an_array_or_refused(content):
    try:
        array = parse_idx(content, "bytes")
    except DataInvalid:
        return
    assert idx(array, content[2]) == content


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "bytes is not an IDX file of unsigned bytes or of"),
        (b"\x00\x00\x0c\x01\x00\x00\x00\x01\x07", "bytes holds 1 bytes of data"),
        (b"\x00\x00\x08", "bytes is not an IDX file of unsigned bytes"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x01", "bytes ends inside its IDX header"),
        (
            b"\x00\x00\x08\x01\x00\x00\x00\x02\x07",
            "bytes holds 1 bytes of data, but its IDX header a",
        ),
        (
            b"\x00\x00\x08\x01\x00\x00\x00\x01\x07\x08",
            "bytes holds 2 bytes of data, but its IDX header",
        ),
    ],
)
def test_a_wrong_idx_header_is_told(content, sentence):
    with refused(sentence):
        parse_idx(content, "bytes")


@pytest.mark.parametrize("start", [b"\x01\x00", b"\x00\x01"])
def test_content_that_begins_with_other_bytes_than_zeros_is_no_idx(start):
    with refused("file is not an IDX file of unsigned bytes or of 4-byte numbers"):
        parse_idx(start + GOOD[2:], "file")
