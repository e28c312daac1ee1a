"""Files of a client that are refused if they were edited, deleted or replaced by an older copy.

The file `folder.seal` contains a digest of every other file, and a keyed digest of these digests.
The key is a file of the same folder. Three changes are not detected: deleting all files, replacing
all files together, including the key, for example by an older copy of the folder, and deleting a
file together with the key and `folder.seal`. After the last, the folder's other files are refused.
A program that can read the key can also make a valid `folder.seal` for any change.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import Path

from fedveil.base.files import locked, write_whole
from fedveil.base.untrusted import MOST_KEY_BYTES, MOST_STATE_BYTES, read_bytes
from fedveil.entropy import Secure
from fedveil.errors import DeploymentError

#: The folder's files with the key, and with the digests of all its other files.
KEY, SEALS = "seal-key", "folder.seal"
_KEY_BYTES = 32
_NOTHING = bytes(32)
_LINE = re.compile(r"([0-9a-f]{64}) ([0-9a-f]{64}) ([^\n]+)\n")
_NUMBER = re.compile(rb"[0-9]{1,30}")


class OwnFile:
    """A file in a client's state folder. Its digest must be in the list of digests, `folder.seal`.

    The argument `folder` is the folder that contains the list. The default is the folder of `path`.
    Only one process at a time may write the file. If a process is killed during a write, the file
    is still accepted.
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        self.path = path
        self._seals = _Seals(folder or path.parent)
        self._name = path.relative_to(self._seals.folder).as_posix()

    def read(self) -> bytes | None:
        """Return the content, or None if the file was never written.

        Raises `DeploymentError` if the file was edited, deleted or replaced by an older copy.
        """
        data = _content(self.path, MOST_STATE_BYTES) if self.path.exists() else None
        allowed = self._seals.read().get(self._name)
        if allowed is None:
            if data is None:
                return None
            raise DeploymentError(f"{self._seals.path} does not vouch for {self.path}")
        if _digest(data) not in allowed:
            happened = "is missing" if data is None else "was edited or replaced by an older copy"
            raise DeploymentError(f"{self.path} {happened}: its seal names another content")
        return data

    def write(self, data: bytes) -> None:
        """Replace the content by `data`.

        Raises `DeploymentError` if `read` refuses the old content.
        """
        old, new = _digest(self.read()), _digest(data)
        self._seals.put(self._name, (old, new))
        write_whole(self.path, data, 0o600)
        self._seals.put(self._name, (new, new))

    def remove(self) -> None:
        """Delete the file and its line in `folder.seal`, so that it counts as never written."""
        self.path.unlink(missing_ok=True)
        self._seals.put(self._name, None)


def sealed_names(folder: Path, seals: Path) -> list[str]:
    """Return the names of the files in `folder` that `folder.seal` lists, including deleted files.

    `seals` is the folder that contains the file `folder.seal`.
    """
    within = folder.relative_to(seals).as_posix()
    paths = map(Path, _Seals(seals).read())
    return [path.name for path in paths if path.parent.as_posix() == within]


class _Seals:
    """The file `folder.seal`: for each file, digests of its content before and after a write."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / SEALS
        self._key_file = folder / KEY

    def read(self) -> dict[str, tuple[bytes, bytes]]:
        """Return each file's two accepted digests (before and after its last write), by its path.

        The paths are relative to the folder of `folder.seal`.
        """
        with locked(self.path):
            return self._read()

    def _read(self) -> dict[str, tuple[bytes, bytes]]:
        key = self._key()
        if not self.path.exists():
            if key is None:
                return {}
            raise DeploymentError(f"{self.path} is missing: it vouches for the files of the folder")
        sealed = _content(self.path, MOST_STATE_BYTES)
        lines, mac = sealed[: -len(_NOTHING)], sealed[-len(_NOTHING) :]
        if key is None and not lines:
            return {}
        if key is None or not hmac.compare_digest(mac, _mac(key, lines)):
            raise DeploymentError(f"{self.path} was edited, or made with another {KEY}")
        found = _LINE.findall(lines.decode())
        return {name: (bytes.fromhex(old), bytes.fromhex(new)) for old, new, name in found}

    def put(self, name: str, digests: tuple[bytes, bytes] | None) -> None:
        """Save the old and new digest of the file `name`. Remove its entry if `digests` is None."""
        with locked(self.path):
            sealed, key = self._read(), self._key()
            if key is None:
                key = Secure().token(_KEY_BYTES)
                self._write(key, {})
                write_whole(self._key_file, key, 0o600)
            sealed.pop(name, None)
            self._write(key, sealed if digests is None else {**sealed, name: digests})

    def _write(self, key: bytes, sealed: Mapping[str, tuple[bytes, bytes]]) -> None:
        named = sealed.items()
        lines = "".join(f"{old.hex()} {new.hex()} {name}\n" for name, (old, new) in named).encode()
        write_whole(self.path, lines + _mac(key, lines), 0o600)

    def _key(self) -> bytes | None:
        if not self._key_file.exists():
            return None
        key = _content(self._key_file, MOST_KEY_BYTES)
        if len(key) != _KEY_BYTES:
            raise DeploymentError(f"{self._key_file} is damaged: it does not hold a key")
        return key


def _mac(key: bytes, lines: bytes) -> bytes:
    return hmac.digest(key, b"fedveil state folder" + lines, "sha256")


def _digest(data: bytes | None) -> bytes:
    return _NOTHING if data is None else hashlib.sha256(data).digest()


def _content(path: Path, most: int) -> bytes:
    try:
        return read_bytes(path, most)
    except OSError as error:
        raise DeploymentError(f"{path} cannot be read: {error.strerror}") from None


def number_in(path: Path) -> int | None:
    data = OwnFile(path).read()
    if data is None:
        return None
    if not _NUMBER.fullmatch(data):
        raise DeploymentError(f"{path} is damaged: it does not hold a number")
    return int(data)
