"""A counter that only grows: how many lines each account had at last.

Each line of the file has the name of an account, its number of lines, its last code, and a code of
this line itself. Only the last line of a name counts. A line that a killed process left unfinished
is ignored.
"""

from __future__ import annotations

import hmac
import os
import re
from pathlib import Path

from fedveil.base.files import alone, open_to_append, sync_to_disk, write_new
from fedveil.base.untrusted import MOST_LINES_BYTES, opened

#: Bytes at the end of the file in which the line of an account is searched first.
_TAIL = 1 << 16
_LINE = re.compile(rb"(\S+) ([0-9]{1,18}) ([0-9a-f]{64}) ([0-9a-f]{64})")


class AccountCounter:
    """The lines of the account `name` in the counter file `path`."""

    def __init__(self, path: Path, name: str, key: bytes) -> None:
        self.path, self._name, self._key = path, name, key

    def last(self) -> tuple[int, str] | None:
        """Return the number of lines and the last code, or None if nothing was counted."""
        if not self.path.exists():
            return None
        with opened(self.path, MOST_LINES_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            for start in dict.fromkeys((max(0, size - _TAIL), 0)):
                file.seek(start)
                for line in reversed(file.read(size - start).split(b"\n")[:-1]):
                    found = _LINE.fullmatch(line)
                    if found and self._vouched(found):
                        return int(found[2]), found[3].decode()
        return None

    def put(self, count: int, code: str) -> None:
        """Append a line, which is on disk when this returns."""
        with alone(self.path):
            if not self.path.exists():
                write_new(self.path, b"")
                sync_to_disk(self.path.parent)
            said = f"{self._name} {count} {code}"
            start = "" if _whole(self.path) else "\n"
            append(self.path, f"{start}{said} {self._code(said)}\n".encode())

    def _vouched(self, line: re.Match[bytes]) -> bool:
        said, code = line[0].decode("ascii", "replace").rsplit(" ", 1)
        return line[1].decode("ascii", "replace") == self._name and hmac.compare_digest(
            code, self._code(said)
        )

    def _code(self, said: str) -> str:
        return hmac.digest(self._key, f"fedveil site counter {said}".encode(), "sha256").hex()


def append(path: Path, line: bytes) -> None:
    """Append a line to a file, and wait until it is on disk."""
    with open_to_append(path) as file:
        left = memoryview(line)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())


def _whole(path: Path) -> bool:
    """Return True if the file ends with the end of a line."""
    with opened(path, MOST_LINES_BYTES) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - 1))
        return file.read(1) in (b"", b"\n")
