"""A file of a client's own that was edited, deleted or replaced by an older copy is refused.

Beside each file lies its seal: a keyed digest of the content that it must have. The key is a file
of the same folder. A program that cannot read the key cannot make a seal, and one file alone cannot
be deleted or set back. Whoever may read and write the whole folder can still set all of it back.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from fedveil.base.files import alone, write_whole
from fedveil.base.untrusted import MOST_KEY_BYTES, MOST_STATE_BYTES, read_bytes
from fedveil.entropy import Secure
from fedveil.errors import DeploymentError

#: The folder's file that seals are made with.
KEY = "seal-key"
_KEY_BYTES = 32
_SEAL = ".seal"
_NOTHING = bytes(32)
_NUMBER = re.compile(rb"[0-9]{1,30}")


class OwnFile:
    """A sealed file in a client's state folder. Of several processes, one may write at a time.

    The seal names the content before and after a write until the write is done: a process that is
    killed in between leaves a file that is accepted.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path = path
        self._seal = path.with_name(path.name + _SEAL)
        self._key_file = (folder or path.parent) / KEY

    def read(self) -> bytes | None:
        """Return the content, or None if there never was one."""
        data = _content(self.path, MOST_STATE_BYTES) if self.path.exists() else None
        if not self._seal.exists():
            if data is None:
                return None
            raise DeploymentError(f"{self._seal} is missing: it vouches for {self.path.name}")
        sealed = _content(self._seal, MOST_KEY_BYTES)
        digest = _NOTHING if data is None else hashlib.sha256(data).digest()
        allowed = sealed[:32], sealed[32:64]
        key = self._key()
        if not hmac.compare_digest(sealed[64:], self._mac(key, *allowed)):
            raise DeploymentError(f"{self._seal} was edited, or made with another {KEY}")
        if digest not in allowed:
            happened = "is missing" if data is None else "was edited or replaced by an older copy"
            raise DeploymentError(f"{self.path} {happened}: its seal names another content")
        return data

    def write(self, data: bytes) -> None:
        """Replace the content. Raises `DeploymentError` if the present one is not as sealed."""
        before = self.read()
        old = _NOTHING if before is None else hashlib.sha256(before).digest()
        new = hashlib.sha256(data).digest()
        self._vouch(old, new)
        write_whole(self.path, data, 0o600)
        self._vouch(new, new)

    def remove(self) -> None:
        """Delete the file and its seal."""
        self.path.unlink(missing_ok=True)
        self._seal.unlink(missing_ok=True)

    def _vouch(self, old: bytes, new: bytes) -> None:
        write_whole(self._seal, old + new + self._mac(self._key(), old, new), 0o600)

    def _mac(self, key: bytes, old: bytes, new: bytes) -> bytes:
        return hmac.digest(key, self.path.name.encode() + b"\0" + old + new, "sha256")

    def _key(self) -> bytes:
        with alone(self._key_file):
            if not self._key_file.exists():
                write_whole(self._key_file, Secure().token(_KEY_BYTES), 0o600)
        key = _content(self._key_file, MOST_KEY_BYTES)
        if len(key) != _KEY_BYTES:
            raise DeploymentError(f"{self._key_file} is damaged: it does not hold a key")
        return key


def _content(path: Path, most: int) -> bytes:
    try:
        return read_bytes(path, most)
    except OSError as error:
        raise DeploymentError(f"{path} cannot be read: {error.strerror}") from None


def number_in(path: Path) -> int | None:
    """Return the number in a client's own file, or None if there is no such file."""
    data = OwnFile(path).read()
    if data is None:
        return None
    if not _NUMBER.fullmatch(data):
        raise DeploymentError(f"{path} is damaged: it does not hold a number")
    return int(data)
