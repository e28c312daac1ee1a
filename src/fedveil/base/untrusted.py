"""Opens every file that a stranger may have written, and escapes the text in it.

Only regular files are read, because a named pipe would block its reader forever. A file is read up
to the size that it had when it was opened. Every refusal is an OSError with a plain reason.
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
from typing import Any, Final, TextIO, TypeAlias

#: The errors that parsers of files raise for malformed content: Python's own, NumPy's (`tokenize`
#: and SyntaxError, for an array's header) and those of archives. A bug in fedveil may raise one of
#: them too, so they are caught around a parser but not around the code that uses its result.
MALFORMED: Final = (
    ValueError, TypeError, ArithmeticError, LookupError, AttributeError, EOFError, MemoryError,
    RecursionError, NotImplementedError, SyntaxError, tokenize.TokenError, struct.error,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip

#: A job with every key written out has 3 KB. PyYAML reads 1 MiB in about a second.
MOST_JOB_BYTES: Final = 1 << 20
#: A key, a certificate or a run's name has a few KB at most.
MOST_KEY_BYTES: Final = 1 << 20
#: Revocation lists of all authorities in a chain. A revoked certificate takes some 40 bytes.
MOST_LISTS_BYTES: Final = 1 << 28
#: A line of metrics has about 2 KB, so this is a run of half a million rounds.
MOST_LINES_BYTES: Final = 1 << 30
#: Weights, two moments of an optimiser and the best model: 1 billion parameters of 4 bytes.
MOST_STATE_BYTES: Final = 1 << 34
#: Files that are mapped or read piece by piece, so that memory does not grow with their size.
MOST_STREAMED_BYTES: Final = 1 << 42
#: Data set files that are read whole. LEAF's largest have some 100 MB, and Purchase-100 as 64-bit
#: numbers has 950 MB.
MOST_DATA_BYTES: Final = 1 << 31

#: All text of a language model, which is loaded into memory unchanged.
MOST_TEXT_BYTES: Final = 1 << 34

#: Changes when a file is edited or replaced: its device, inode, size and time of modification.
Version: TypeAlias = tuple[int, int, int, int]

_KINDS = (
    (stat.S_ISFIFO, "a named pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)  # fmt: skip


#: Characters that control a terminal or reorder a line instead of being shown (control characters
#: except tabs and line ends, separators, and marks of writing direction), and characters that files
#: or XML must not contain.
_UNSHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069"
    "\\ud800-\\udfff\\ufffe\\uffff]"
)


def escaped(text: str) -> str:
    """Return `text` with terminal control characters written as text, such as `\\x1b`."""
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def read_bytes(path: str | Path, most: int) -> bytes:
    """Return a file's content. Raises OSError unless it is regular and has at most `most` bytes."""
    with opened(path, most) as file:
        try:
            return file.read(os.fstat(file.fileno()).st_size)
        except MemoryError:
            raise OSError(errno.ENOMEM, "there is not enough memory for it", str(path)) from None


def read_text(path: str | Path, most: int) -> str:
    """Return the text of a regular file of at most `most` bytes. Raises OSError for any other file.

    Raises UnicodeDecodeError if the file is not UTF-8.
    """
    return read_bytes(path, most).decode()


@contextmanager
def opened(
    path: str | Path, most: int, version: Version | None = None
) -> Iterator[io.BufferedReader[_Snapshot]]:
    """Open a regular file of at most `most` bytes. Raises OSError for any other file.

    If `version` is given, also raises OSError if the file has another version when it is opened or
    closed.
    """
    check_regular(path, most)
    # Without O_NONBLOCK, a pipe that has replaced the file in the meantime would block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with io.BufferedReader(_Snapshot(descriptor)) as file:
        _check(os.fstat(descriptor), path, most)
        _check_version(descriptor, path, version)
        yield file
        _check_version(descriptor, path, version)


def version_of(path: str | Path) -> Version:
    return _version(_status(path))


def _version(status: os.stat_result) -> Version:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_version(descriptor: int, path: str | Path, version: Version | None) -> None:
    if version is not None and _version(os.fstat(descriptor)) != version:
        raise OSError(errno.EBUSY, "it has changed while fedveil was reading it", str(path))


def ends_whole(path: str | Path, most: int) -> bool:
    """Return True if a regular file of at most `most` bytes is empty or ends with a line break.

    Raises OSError for any other file.
    """
    with opened(path, most) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 1))
        return file.read(1) in (b"", b"\n")


def check_regular(path: str | Path, most: int) -> None:
    """Raise OSError unless `path` is a regular file of at most `most` bytes.

    Use this function only if a library must open the file, otherwise use `opened`. After this
    check, another file may take the place of the checked one.
    """
    _check(_status(path), path, most)


def _status(path: str | Path) -> os.stat_result:
    try:
        return Path(path).stat()
    except ValueError as error:  # a NUL character or a lone surrogate, which no file name contains
        raise OSError(errno.EINVAL, str(error), str(path)) from None


def lines(file: TextIO, most: int) -> Iterator[str]:
    """Yield a text file's lines. Raises ValueError for a line of more than `most` characters."""
    for number in count(1):
        line = file.readline(most + 1)
        if len(line) > most:
            raise ValueError(f"line {number} has more than {most:,} characters")
        if not line:
            return
        yield line


def check_kind(status: os.stat_result, path: str | Path) -> None:
    """Raise OSError unless `status` describes a regular file. The error names `path`."""
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
    """A file that is read only up to the size that it had when it was opened.

    System files (/proc, /sys) read as empty, because they report no size.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb")
        self._size = os.fstat(descriptor).st_size

    def readinto(self, buffer: Any) -> int | None:
        return super().readinto(memoryview(buffer)[: self._left()])

    def readall(self) -> bytes:
        parts = []
        while part := super().read(self._left()):  # each read returns at most 2 GiB
            parts.append(part)
        return b"".join(parts)

    def _left(self) -> int:
        return max(self._size - self.tell(), 0)
