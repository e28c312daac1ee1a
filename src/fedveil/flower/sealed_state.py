"""A client's encrypted state between the messages of a round. It can be loaded only once.

The state is an encrypted record in the client's Flower context. Each state has a key of its own, in
a file that only the client's user can read. A process that loads the state removes the key first.
So two processes cannot resume from one state, an older record cannot replace a newer one, and a
record cannot be decrypted after its round.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from secrets import token_hex

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from flwr.app import ConfigRecord, RecordDict

from fedveil.base.files import write_new
from fedveil.base.message import Message, decode, encode
from fedveil.errors import ClientWithheld, DeploymentError, MessageInvalid

#: Key of the node configuration that names the folder.
STATE_FOLDER = "state-folder"

_RECORD = "fedveil.state"
_FIELD = "sealed"
_KEY_BYTES = 32
# A key encrypts one state only, so the nonce may be constant.
_NONCE = bytes(12)


class StateFolder:
    """A folder for a client's keys or accounts, which other users must not be able to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.stat()
        except OSError as error:
            raise DeploymentError(
                f"the state folder {path} cannot be made: {error.strerror}; name another in the "
                f"node configuration, state-folder"
            ) from None
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise DeploymentError(
                f"the state folder {path} is open to other users: its mode is "
                f"{stat.S_IMODE(status.st_mode):o}, 700 and this user as its owner are needed"
            )

    def file(self, job: bytes, client: int, kind: str) -> Path:
        name = hashlib.sha256(b"fedveil client state" + job).hexdigest()[:16]
        return self.path / f"{name}-{client}.{kind}"

    @classmethod
    def for_keys(cls, named: object = None) -> StateFolder:
        """Return the folder for encryption keys: `named` if given, otherwise a default.

        The default is a folder in memory or, if the machine has no such folder, on disk.
        """
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        if named is None and runtime and Path(runtime).is_dir():
            return cls(Path(runtime, "fedveil"))
        return cls.for_accounts(named)

    @classmethod
    def for_accounts(cls, named: object = None) -> StateFolder:
        """Return the folder for privacy accounts: the path `named` if given, otherwise a default.

        The default is `fedveil` in the user's folder for state, usually ~/.local/state.
        """
        if named is not None:
            return cls(_absolute(named))
        if state := os.environ.get("XDG_STATE_HOME"):
            return cls(Path(state, "fedveil"))
        try:
            home = Path.home()
        except RuntimeError:
            raise DeploymentError(
                "there is no home folder for this client's keys and accounts: name a folder in the "
                f"node configuration, {STATE_FOLDER}"
            ) from None
        return cls(home / ".local" / "state" / "fedveil")


def _absolute(named: object) -> Path:
    """Return the path `named` of a node configuration. Raises `DeploymentError` if it is relative.

    A relative path names another folder whenever the SuperNode starts in another folder. The client
    would then forget what it has spent.
    """
    if not isinstance(named, str) or not Path(named).is_absolute():
        raise DeploymentError(
            f"the node configuration says {STATE_FOLDER} = {named!r}, an absolute path is needed: "
            "a SuperNode that starts in another folder would not find the client's account again"
        )
    return Path(named)


class SealedState:
    """A client's encrypted state in one job, stored in `records` of its Flower context."""

    def __init__(self, folder: StateFolder, job: bytes, client: int, records: RecordDict) -> None:
        self._key_file = folder.file(job, client, "key")
        self._bound = job + client.to_bytes(8, "little")
        self._records = records
        self._record = f"{_RECORD}.{client}"

    def take(self, round: int) -> Message | None:
        """Return the client's state that was saved for this round, and delete it.

        Returns None if there is none, or if it cannot be decrypted.
        """
        sealed = self._records.pop(self._record, None)
        key = self._take_key()
        if key is None or not isinstance(sealed, ConfigRecord):
            return None
        try:
            return decode(AESGCM(key).decrypt(_NONCE, sealed[_FIELD], self._data(round)))  # type: ignore[arg-type]
        except (InvalidTag, KeyError, TypeError, MessageInvalid):
            return None  # a different round or run, or a forgery without the key

    def put(self, round: int, state: Message) -> None:
        """Save `state` for the next message of the round. Replaces the client's earlier state."""
        self.erase()
        key = AESGCM.generate_key(8 * _KEY_BYTES)
        try:
            write_new(self._key_file, key)
        except FileExistsError:
            raise ClientWithheld("another process answers for this client") from None
        sealed = AESGCM(key).encrypt(_NONCE, encode(state), self._data(round))
        self._records[self._record] = ConfigRecord({_FIELD: sealed})

    def erase(self) -> None:
        """Erase the client's saved state, its key, and any files that a killed process left."""
        self._records.pop(self._record, None)
        self._take_key()
        for left in self._key_file.parent.glob(f"{self._key_file.name}.*"):
            left.unlink(missing_ok=True)

    def _data(self, round: int) -> bytes:
        return self._bound + round.to_bytes(8, "little")

    def _take_key(self) -> bytes | None:
        """Return the saved state's key, or None if there is no valid key. Erases the key's file."""
        mine = self._key_file.with_name(f"{self._key_file.name}.{token_hex(8)}")
        try:
            self._key_file.rename(mine)
            with mine.open("r+b") as file:
                key = file.read()
                # This erases the bytes in a file system in memory. A disk may still keep them.
                file.seek(0)
                file.write(bytes(len(key)))
                file.flush()
                os.fsync(file.fileno())
        except FileNotFoundError:
            return None
        finally:
            mine.unlink(missing_ok=True)
        return key if len(key) == _KEY_BYTES else None
