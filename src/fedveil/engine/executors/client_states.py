"""The state that clients keep between rounds, as files in the folder of the run or of the client.

A round reads only the files of earlier rounds, so a repeated round starts from the same state. When
a round ends, the states of clients whose reports are not in its sum are deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedveil.base.array_types import Float32s, Int64s
from fedveil.base.files import make_inner_folder, write_whole
from fedveil.base.message import only_fields, take_array
from fedveil.base.untrusted import MOST_STATE_BYTES, read_bytes
from fedveil.base.validate import finite_vector
from fedveil.errors import RunFolderError
from fedveil.record.run_folder import CLIENTS, explained
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.rounds.outcomes import ClientId

_NAME = re.compile("[0-9]+-[0-9]+")


def open_states(run: Path, done: int, last: Int64s) -> ClientStates:
    """Open the clients' states in the run folder `run`. Deletes states of rounds after `done`.

    `last` has the round of each client's newest state, or 0 for none. Raises `RunFolderError`, and
    deletes nothing, if one of these states is missing.
    """
    if done and not (run / CLIENTS).is_dir():
        raise RunFolderError(
            f"{run / CLIENTS} is missing. Restore it from a copy: the clients' states are there"
        )
    states = ClientStates(run)
    states.check(last)
    states.forget_after(done)
    return states


class ClientStates:
    """The clients' states in a folder. Every process of the run can read and write them."""

    def __init__(self, run: Path) -> None:
        self._folder = run / CLIENTS
        #: The last round in which a state was loaded, and the states that the folder then had.
        self._listed, self._listing = -1, dict[ClientId, list[int]]()
        with explained(run):
            make_inner_folder(self._folder)

    def load(self, client: ClientId, round: int, dimension: int) -> Float32s | None:
        """Return the client's newest state (`dimension` entries) from before `round`, or None."""
        before = [number for number in self._rounds(client, round) if number < round]
        if not before:
            return None
        path = self._path(client, max(before))
        with intact(path):
            held = unsealed(self._read(path))
            only_fields(held, "kept")
            kept = take_array(held, "kept", np.float32, (dimension,)).copy()
            finite_vector("kept", kept)
        return kept

    def save(self, client: ClientId, round: int, kept: Float32s) -> None:
        """Save `kept`, the client's state after `round`."""
        with explained(self._folder):
            self._write(self._path(client, round), sealed({"kept": kept}))
        self._listing.setdefault(client, []).append(round)

    def clients(self) -> list[ClientId]:
        return sorted({client for client, _ in self._files()})

    def check(self, last: Int64s) -> None:
        """Raise `RunFolderError` if a client's state of the round `last[client]` is missing."""
        for client, round in enumerate(last.tolist()):
            if round and not self._path(client, round).exists():
                raise RunFolderError(
                    f"{self._path(client, round)} is missing. Restore it from a copy: it is the "
                    f"state of client {client}, as the checkpoint needs it"
                )

    def settle(self, round: int, summed: set[ClientId]) -> set[ClientId]:
        """Delete the states of `round`, except those of the clients in its sum, `summed`.

        Returns the clients whose states remain. A client in the sum may have saved none, such as
        one whose training failed.
        """
        written = {client for client, at in self._files(f"*-{round}") if at == round}
        self._drop((client, round) for client in written - summed)
        return written & summed

    def forget_after(self, done: int) -> None:
        """Delete the states of all rounds after `done`. These rounds will be repeated."""
        self._drop((client, round) for client, round in self._files() if round > done)

    def forget_before(self, done: int) -> None:
        """Delete each client's states up to round `done`, except for the newest of them."""
        files, newest = list(self._files()), dict[ClientId, int]()  # reading a large folder is slow
        for client, round in files:
            if newest.get(client, 0) < round <= done:
                newest[client] = round
        self._drop((client, round) for client, round in files if round < newest.get(client, 0))

    def _drop(self, files: Iterator[tuple[ClientId, int]]) -> None:
        with explained(self._folder):
            for client, round in list(files):
                self._remove(self._path(client, round))
        self._listed = -1

    def _rounds(self, client: ClientId, round: int) -> list[int]:
        """Return the rounds of which the folder has a state of the client.

        The result may lack `round`, the current round. Reading a large folder is slow, so this
        object reads it only once per round. Later, other processes add only states of `round`
        itself, which are not needed.
        """
        if self._listed != round:
            self._listed, self._listing = round, {}
            for other, at in self._files():
                self._listing.setdefault(other, []).append(at)
        return self._listing.get(client, [])

    def _files(self, names: str = "*-*[0-9]") -> Iterator[tuple[ClientId, int]]:
        for path in self._folder.glob(names):
            if _NAME.fullmatch(path.name):  # other files are ignored
                client, _, round = path.name.partition("-")
                yield int(client), int(round)

    # A subclass overrides these if the files belong to a client.

    def _read(self, path: Path) -> bytes:
        return read_bytes(path, MOST_STATE_BYTES)

    def _write(self, path: Path, data: bytes) -> None:
        write_whole(path, data, 0o600)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def _path(self, client: ClientId, round: int) -> Path:
        return self._folder / f"{client}-{round}"
