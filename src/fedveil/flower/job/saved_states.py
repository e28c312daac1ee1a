"""A deployed client's state from one round to the next, on the client's own disk.

The state belongs to the job and to one run of the server. A client does not know if its report is
in the round's sum, so it saves the new state beside the old one. The server's next request names
the last round whose sum has the client's report. The client then deletes the states of later
rounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from fedveil.base.files import write_whole
from fedveil.base.message import Message, take
from fedveil.base.untrusted import MOST_KEY_BYTES, read_bytes
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.job_protection import job_digest
from fedveil.engine.round_checkpoint import LATEST
from fedveil.entropy import Secure
from fedveil.errors import DeploymentError, MessageInvalid, RunFolderError
from fedveil.federated.job import Job
from fedveil.flower.own_file import OwnFile, sealed_names
from fedveil.flower.sealed_state import StateFolder
from fedveil.record.run_folder import explained
from fedveil.record.sealed_message import intact
from fedveil.rounds.outcomes import ClientId

#: The field of a message that names the run, and the file with that name.
KEPT_FIELD = RUN = "run"
#: The field of a message with the last round that has the client's report in its sum, or 0.
SUMMED_FIELD = "summed"
_NAME = re.compile(r"[0-9a-f]{32}")


def run_name(folder: Path) -> str:
    """Return the name of the run in `folder`. The first call chooses a random name."""
    path = folder / RUN
    if path.exists():
        with intact(path):
            name = read_bytes(path, MOST_KEY_BYTES).decode("utf-8", "replace")
        if not _NAME.fullmatch(name):
            raise RunFolderError(f"{path} is damaged: it does not hold a run's name")
        return name
    if (folder / LATEST).exists():
        raise RunFolderError(f"{path} is missing: clients go on from what they keep under its name")
    name = Secure().token(16).hex()
    with explained(folder):
        write_whole(path, name.encode())
    return name


class _OwnStates(ClientStates):
    """A client's saved states in the folder `run`. Refuses edited files and older copies.

    `folder` is the client's state folder, with the file `folder.seal` that reveals such changes.
    """

    def __init__(self, run: Path, folder: Path) -> None:
        super().__init__(run)
        self._key_folder = folder

    def _files(self, names: str = "*-*[0-9]") -> Iterator[tuple[ClientId, int]]:
        """Yield the client and the round of each state file whose name matches `names`.

        A file's name is the client and the round. Files that `folder.seal` lists are yielded even
        if they are missing from the folder.
        """
        sealed = sealed_names(self._folder, self._key_folder)
        numbers = (name.split("-") for name in sealed if fnmatch(name, names))
        gone = ((int(client), int(round)) for client, round in numbers)
        yield from dict.fromkeys([*super()._files(names), *gone])

    def _read(self, path: Path) -> bytes:
        data = OwnFile(path, self._key_folder).read()
        if data is None:
            raise DeploymentError(f"{path} is missing")
        return data

    def _write(self, path: Path, data: bytes) -> None:
        OwnFile(path, self._key_folder).write(data)

    def _remove(self, path: Path) -> None:
        OwnFile(path, self._key_folder).remove()


def told_run(common: Message) -> tuple[str, int]:
    """Return the name of the run, and the last round whose sum contains the client's report.

    `common` has the server's fields for this message. Raises `MessageInvalid` if they are invalid.
    """
    name = take(common, KEPT_FIELD, str)
    if not _NAME.fullmatch(name):
        raise MessageInvalid("field run is no run's name")
    round, summed = take(common, "round", int), take(common, SUMMED_FIELD, int)
    if not 0 <= summed < round:
        raise MessageInvalid(f"field summed = {summed} is not a round before round {round}")
    return name, summed


def kept_states(job: Job, common: Message, folder: StateFolder, client: ClientId) -> ClientStates:
    """Return the client's saved states in this run.

    `common` has the server's fields for this message. They name the run, and the last round whose
    sum contains the client's report. States of later rounds, and old states that no checkpoint
    needs, are deleted.
    """
    name, summed = told_run(common)
    path = folder.file(job_digest(job) + bytes.fromhex(name), client, "kept")
    path.mkdir(mode=0o700, exist_ok=True)
    states = _OwnStates(path, folder.path)
    every, round = job.checkpoint.every, take(common, "round", int)
    states.forget_after(summed)
    states.forget_before((round - 1) // every * every)
    return states
