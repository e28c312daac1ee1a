"""A file of lines that only the holder of a key can extend.

Each line has a code, the HMAC-SHA-256 of the previous code and the line's body. The code reveals a
changed, moved or missing line. A counter (`account_counter`) in another place reveals that the file
was deleted or replaced by an older copy.

A line charges the account for one message. `append` writes the line, then the number of lines, to
disk before it returns. The message is sent afterwards, so no message is sent without its charge.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedveil.base.files import locked, sync_to_disk, write_new
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_LINES_BYTES, opened
from fedveil.errors import AccountInvalid, InvalidValue
from fedveil.site.account_counter import AccountCounter, append

SUFFIX = ".account"
#: The least length of a key.
KEY_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CODE = 64


class AccountFile:
    """The lines of the account `name` in `folder`.

    `counter` is the file that counts the lines. If it is None, this file is in `folder`.
    """

    def __init__(self, folder: Path, name: str, key: bytes, counter: Path | None) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidValue(
                f"name = {name!r} is no name of an account: use up to 64 letters, digits, - and _"
            )
        if len(key) < KEY_BYTES:
            raise InvalidValue(f"key has {len(key)} bytes, at least {KEY_BYTES} are needed")
        self.path = folder / f"{name}{SUFFIX}"
        self._key = key
        self._counter = AccountCounter(counter or folder / "counter", name, key)
        self._start = self._mac(f"fedveil site account {name}".encode())
        self.forget()

    def forget(self) -> None:
        """Forget all lines, so that `bodies` yields them again."""
        self._code = self._before = self._start
        self._count = self._size = 0
        self._inode: int | None = None
        self._void = True

    @property
    def code(self) -> str:
        """The authentication code of the account's last line. It depends on all lines."""
        return self._code

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the account in a `with` block. System errors inside become `AccountInvalid`."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self.path):
                yield
        except OSError as error:
            raise AccountInvalid(
                f"{error.filename or self.path} cannot be used: {error.strerror or error}"
            ) from error

    def bodies(self) -> Iterator[tuple[bool, bytes]]:
        """Yield a flag and the body of each line that this object has not read yet.

        The flag is True for the first line of a new or replaced file: then forget all lines that
        were read before. Call inside `locked`. Raises `AccountInvalid` if a line is missing, or was
        not written with the key.
        """
        found = self.path.stat().st_ino if self.path.exists() else None
        if self._inode not in (None, found):
            self.forget()
        if found is not None:
            for body in self._unread():
                yield self._void, body
                self._void = False
        self._check_counter()
        if found is not None and self.path.stat().st_size > self._size:
            os.truncate(self.path, self._size)  # an incomplete line, which was never counted

    def append(self, body: bytes) -> None:
        """Append the line `body`, and count it. First call `bodies` in the same `locked` block."""
        if not self.path.exists():
            write_new(self.path, b"")
            sync_to_disk(self.path.parent)
            self._inode = self.path.stat().st_ino
        line = self._line(body)
        append(self.path, line)
        # If this fails, as on a full disk, `bodies` yields the line the next time.
        self._counter.put(self._count + 1, _code_of(line))
        self._passed(line)
        self._void = False

    def _unread(self) -> Iterator[bytes]:
        with opened(self.path, MOST_LINES_BYTES) as file:
            status = os.fstat(file.fileno())
            self._inode = status.st_ino
            if status.st_size < self._size:
                had = quantity(self._count, "line")
                raise AccountInvalid(f"{self.path} was cut: it had {had} before")
            file.seek(self._size)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                body = line[_CODE + 1 : -1]
                if not hmac.compare_digest(line, self._line(body)):
                    raise AccountInvalid(
                        f"{self.path}, line {self._count + 1}: it was edited, moved or written "
                        "with another key, or a line before it is missing. Put the file back"
                    )
                self._passed(line)
                yield body

    def _check_counter(self) -> None:
        """Raise AccountInvalid unless the counter has counted all lines, or all but the last one.

        A killed process may have left the last line uncounted. This method then counts the line.
        """
        count, code = self._counter.last()
        code = code or self._start
        if (count, code) == (self._count, self._code):
            return
        if (count, code) == (self._count - 1, self._before):
            self._counter.put(self._count, self._code)
            return
        lines = f"has {quantity(self._count, 'line')}" if self.path.exists() else "is missing"
        raise AccountInvalid(
            f"{self.path} {lines}, but {self._counter.path} has counted {count}: one of them is an "
            "older copy, or was deleted. Put the newest of both back"
        )

    def _passed(self, line: bytes) -> None:
        self._before, self._code = self._code, _code_of(line)
        self._count, self._size = self._count + 1, self._size + len(line)

    def _line(self, body: bytes) -> bytes:
        return f"{self._mac(f'{self._code} '.encode() + body)} ".encode() + body + b"\n"

    def _mac(self, data: bytes) -> str:
        return hmac.digest(self._key, data, "sha256").hex()


def _code_of(line: bytes) -> str:
    return line[:_CODE].decode()
