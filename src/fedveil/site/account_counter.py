"""A counter that only grows: the last known number of lines of each account.

The counter file may be append-only. For each account, the largest number in the file is valid.
"""

from __future__ import annotations

import hmac
import os
import re
from pathlib import Path

from fedveil.base.files import locked, open_to_append, sync_to_disk, write_all, write_new
from fedveil.base.untrusted import MOST_LINES_BYTES, ends_whole, opened

_LINE = re.compile(rb"([!-~]+) ([0-9]{1,18}) ([0-9a-f]{64}) ([0-9a-f]{64})")


class AccountCounter:
    """Records in the file `path` how many lines the account `name` has, to detect a rollback."""

    def __init__(self, path: Path, name: str, key: bytes) -> None:
        self.path, self._name, self._key = path, name, key
        self._read = 0
        self._most = (0, "")

    def last(self) -> tuple[int, str]:
        """Return the largest recorded number of lines, and the HMAC of the last of these lines.

        Returns 0 and "" if nothing was recorded.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._read:
            self._read, self._most = 0, (0, "")
        if size > self._read:
            with opened(self.path, MOST_LINES_BYTES) as file:
                file.seek(self._read)
                for line in file:
                    if line.endswith(b"\n"):
                        self._take(line[:-1])
                        self._read += len(line)
        return self._most

    def put(self, count: int, code: str) -> None:
        """Record the account's number of lines, and `code`, the HMAC of its last line, on disk."""
        with locked(self.path):
            if not self.path.exists():
                write_new(self.path, b"")
                sync_to_disk(self.path.parent)
            said = f"{self._name} {count} {code}"
            start = "" if ends_whole(self.path, MOST_LINES_BYTES) else "\n"
            append(self.path, f"{start}{said} {self._code(said)}\n".encode())

    def _take(self, line: bytes) -> None:
        found = _LINE.fullmatch(line)
        if not found or found[1] != self._name.encode() or int(found[2]) <= self._most[0]:
            return
        said, code = line.decode().rsplit(" ", 1)
        if hmac.compare_digest(code, self._code(said)):
            self._most = int(found[2]), found[3].decode()

    def _code(self, said: str) -> str:
        return hmac.digest(self._key, f"fedveil site counter {said}".encode(), "sha256").hex()


def append(path: Path, line: bytes) -> None:
    """Append a line to a file, and wait until it is on disk."""
    with open_to_append(path) as file:
        write_all(file, line)
        os.fsync(file.fileno())
