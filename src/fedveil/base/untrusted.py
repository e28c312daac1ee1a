"""Opens every file whose content a stranger may have made, and escapes the names in it.

Only a regular file is read: a named pipe would block its reader forever, and a device such as
/dev/zero never ends. A file is read up to the size that it had when it was opened, and no file
above the limit of its kind is read at all. Everything that is refused here is an OSError with a
plain reason, so that callers report it as they report a missing file.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, TextIO

#: What parsers of files raise for malformed content: Python's own, NumPy's (`tokenize` and
#: SyntaxError, for an array's header) and those of archives. A defect in fedveil may hide among
#: them, so a parser is guarded by this and the code that uses its result is not.
MALFORMED: Final = (
    ValueError, TypeError, ArithmeticError, LookupError, AttributeError, EOFError, MemoryError,
    RecursionError, NotImplementedError, SyntaxError, tokenize.TokenError, struct.error,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip

#: A job with every key written out has 3 KB; PyYAML reads one MiB in about a second.
MOST_JOB_BYTES: Final = 1 << 20
#: A key, certificate or run's name has a few KB at most.
MOST_KEY_BYTES: Final = 1 << 20
#: Revocation lists of all authorities of a chain. A revoked certificate takes some 40 bytes.
MOST_LISTS_BYTES: Final = 1 << 28
#: A line of metrics has about 2 KB: a run of half a million rounds.
MOST_LINES_BYTES: Final = 1 << 30
#: Weights, two moments of an optimizer and the best model: 1 billion parameters of 4 bytes.
MOST_STATE_BYTES: Final = 1 << 34
#: Files that are read a piece at a time, or mapped: memory does not grow with their size.
MOST_STREAMED_BYTES: Final = 1 << 42
#: Files of a data set that are read whole; LEAF's largest have some 100 MB, and Purchase-100 as
#: 64-bit numbers has 950 MB.
MOST_DATA_BYTES: Final = 1 << 31

#: All text of a language model, which is held in memory as it is.
MOST_TEXT_BYTES: Final = 1 << 34

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


#: Characters that act on a terminal or reorder a line instead of being shown (control characters
#: but tabs and line ends, separators and directions of lines), and those that no file or XML may
#: hold.
_UNSHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
    "\\ud800-\\udfff\\ufffe\\uffff]"
)


def escaped(text: str) -> str:
    """Return `text` with what would act on a terminal written out, as `\\x1b`."""
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def read_bytes(path: str | Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raises OSError."""
    with opened(path, most) as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)
        except MemoryError:
            raise OSError(errno.ENOMEM, "there is not enough memory for it", str(path)) from None


def read_text(path: str | Path, most: int) -> str:
    """Like `read_bytes`, but decode the content, which must be UTF-8."""
    return read_bytes(path, most).decode()


@contextmanager
def opened(path: str | Path, most: int) -> Iterator[io.BufferedReader[_Snapshot]]:
    """Open a regular file of at most `most` bytes for reading; raises OSError."""
    check_regular(path, most)
    # Without O_NONBLOCK, a pipe that has taken the file's place since would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with io.BufferedReader(_Snapshot(descriptor)) as file:
        _check(os.fstat(descriptor), path, most)
        yield file


def check_regular(path: str | Path, most: int) -> None:
    """Raise OSError unless `path` is a regular file of at most `most` bytes.

    For a library that opens files itself. All others use `opened`, which leaves no time between
    the check and the reading.
    """
    try:
        status = Path(path).stat()
    except ValueError as error:  # a NUL character, or half of one, which no name of a file has
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    _check(status, path, most)


def lines(file: TextIO, most: int) -> Iterator[str]:
    """Yield the lines of a text file, ends included; raises ValueError for a longer one.

    A file of gigabytes without a line end would otherwise be one line in memory.
    """
    for number in count(1):
        line = file.readline(most + 1)
        if len(line) > most:
            raise ValueError(f"line {number} has more than {most:,} characters")
        if not line:
            return
        yield line


def check_kind(status: os.stat_result, path: str | Path) -> None:
    """Raise OSError unless `status` is that of a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    for is_kind, what in _KINDS:
        if is_kind(status.st_mode):
            raise OSError(errno.EINVAL, f"it is {what}, not a regular file", str(path))


def _check(status: os.stat_result, path: str | Path, most: int) -> None:
    check_kind(status, path)
    if status.st_size > most:
        raise OSError(
            errno.EFBIG, f"it has {status.st_size:,} bytes; the limit is {most:,}", str(path)
        )


class _Snapshot(io.FileIO):
    """A file up to the size that it has now.

    Bytes that are appended meanwhile are not read, nor are files of the system (/proc, /sys),
    which give no size and may have no end.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb")
        self._size = os.fstat(descriptor).st_size

    def readinto(self, buffer: Any) -> int | None:
        return super().readinto(memoryview(buffer)[: self._left()])

    def readall(self) -> bytes:
        parts = []
        while part := super().read(self._left()):  # at most 2 GiB at a time
            parts.append(part)
        return b"".join(parts)

    def _left(self) -> int:
        return max(self._size - self.tell(), 0)
