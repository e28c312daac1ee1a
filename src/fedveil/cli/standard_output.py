"""Reports failed writes to standard output as user errors, and escapes unprintable characters."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedveil.errors import OutputLost, ReaderGone


@contextmanager
def explained_output() -> Iterator[None]:
    """Context manager: a failed write to standard output raises `OutputLost`.

    If the reader of a pipe has ended, this is a `ReaderGone`. A character that the output's
    encoding lacks is written as an escape sequence, such as `\\xe9`.
    """
    stream: Any = sys.stdout
    if stream is None:  # it was closed before the program started
        yield
        return
    if stream.errors in ("strict", "surrogateescape"):
        with suppress(AttributeError):  # a stream that is not a file
            stream.reconfigure(errors="backslashreplace")
    sys.stdout = _Explained(stream)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = stream
        _forget_unwritten(stream)


class _Explained:
    """A text stream whose failed writes raise `OutputLost`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _explained():
            written: int = self._stream.write(text)
            return written

    def flush(self) -> None:
        with _explained():
            self._stream.flush()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone("the program that reads the output has ended") from error
    except OSError as error:
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from error


def _forget_unwritten(stream: Any) -> None:
    """Flush `stream`, or redirect it to the null device if this fails.

    Otherwise, the interpreter would report the failed write once more at exit.
    """
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
