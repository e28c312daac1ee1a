"""Reads the IDX format of MNIST and similar sets, and verifies the content by its MD5.

    content := 0 0 type dimensions  size*  number*    sizes are 4 bytes each, big endian

Type 8 is an unsigned byte. Type 12 is a signed integer of 4 bytes, big endian.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.untrusted import MOST_STREAMED_BYTES, opened
from fedveil.data.data_folders import find, reading
from fedveil.errors import DataInvalid

_GZIP = b"\x1f\x8b"
_TYPES: dict[int, np.dtype[Any]] = {8: np.dtype(np.uint8), 12: np.dtype(">i4")}


@dataclass(frozen=True)
class IdxFile:
    """A published file: its name, its content's shape and MD5, and its download size in bytes.

    `number_bytes` is the size of each number in the content.
    """

    name: str
    shape: tuple[int, ...]
    md5: str
    download_bytes: int
    number_bytes: int = 1

    @property
    def content_bytes(self) -> int:
        return 4 + 4 * len(self.shape) + self.number_bytes * math.prod(self.shape)


@dataclass(frozen=True)
class IdxSet:
    """The published files of the data set `name`.

    `mirrors` are the URLs of folders with these files, in the order in which they are tried. In
    `files`, the training part precedes the test part. In each part, images precede labels.
    """

    name: str
    files: tuple[IdxFile, ...]
    mirrors: tuple[str, ...]

    def path(self, file: IdxFile) -> Path | None:
        """Return the path of `file` on this machine, compressed or not. None if it is missing."""
        return find(self.name, file.name, f"{file.name}.gz")

    def missing(self) -> list[IdxFile]:
        return [file for file in self.files if self.path(file) is None]


def read_idx(path: Path, file: IdxFile) -> Array:
    """Return the array in the file `path`. Raises `DataInvalid` if its MD5 is not `file.md5`."""
    content = _content(path, file.content_bytes)
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != file.md5:
        raise DataInvalid(
            f"{path} is not the published {file.name}: the MD5 of its content is {found}, but "
            f"{file.md5} is needed"
        )
    return parse_idx(content, str(path))


def _content(path: Path, longest: int) -> bytes:
    """Return at most `longest` + 1 bytes of the content of a file, decompressed if it is gzip.

    The additional byte shows that the content is longer than `longest`. Raises `DataInvalid` for a
    damaged gzip file.
    """
    with reading(path), opened(path, MOST_STREAMED_BYTES) as stream:
        if stream.read(len(_GZIP)) != _GZIP:
            stream.seek(0)
            return stream.read(longest + 1)
        stream.seek(0)
        try:
            with gzip.GzipFile(fileobj=stream) as unpacked:
                return unpacked.read(longest + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataInvalid(f"{path} is a damaged gzip file: {error}") from None


def parse_idx(content: bytes, origin: str) -> Array:
    """Return the array of integers in `content`, the bytes of an IDX file.

    Raises `DataInvalid`, which names the file `origin`, if the bytes are not IDX.
    """
    number = _TYPES.get(content[2]) if len(content) >= 4 and content[:2] == bytes(2) else None
    if number is None:
        raise DataInvalid(f"{origin} is not an IDX file of unsigned bytes or of 4-byte numbers")
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataInvalid(f"{origin} ends inside its IDX header")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], ">u4"))
    if len(content) - start != number.itemsize * math.prod(shape):
        raise DataInvalid(
            f"{origin} holds {len(content) - start} bytes of data, but its IDX header announces "
            f"{' x '.join(map(str, shape))}"
        )
    return np.frombuffer(content, number, offset=start).reshape(shape)
