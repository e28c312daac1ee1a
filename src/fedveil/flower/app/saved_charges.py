"""A strategy's charges to its clients, in a file that remains when the server's process ends."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedveil.base.files import locked, refuse_link, write_whole
from fedveil.base.message import Value, prefixed, take, within
from fedveil.base.untrusted import MOST_STATE_BYTES, read_bytes
from fedveil.base.validate import integer
from fedveil.errors import DeploymentError, RunFolderError
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.ledger_message import MAX_ROUND
from fedveil.protections.base import State
from fedveil.record.sealed_message import intact, sealed, unsealed

_LEDGER, _STATE = "ledger", "state"


class Kept(NamedTuple):
    """The content of a strategy's ledger file.

    `rounds` is the number of started rounds. `state` is the protection's state, or None before the
    first round has ended.
    """

    rounds: int
    ledger: Ledger
    state: State | None


class KeptRounds:
    """The ledger file of one strategy. `terms` is a text that describes the strategy's protection.

    Before a round's first report is requested, all of its clients are saved as charged. If the
    process is killed during the round, these charges stay. When the round ends, reports that were
    certainly not sent are no longer charged. Only one strategy at a time may write the file.
    """

    def __init__(self, path: str | Path, terms: str) -> None:
        self._path = Path(path)
        self._terms = terms
        self._written: bytes | None = None

    def read(self) -> Kept | None:
        if not self._path.parent.is_dir():
            raise DeploymentError(f"{self._path.parent} is no folder, and the ledger is kept there")
        try:
            with intact(self._path):
                refuse_link(self._path)
                if not self._path.exists():
                    return None
                self._written = read_bytes(self._path, MOST_STATE_BYTES)
                fields = unsealed(self._written)
                terms = take(fields, "terms", str)
                rounds = integer("rounds", take(fields, "rounds", int), 1, MAX_ROUND)
                ledger = Ledger.from_state(within(_LEDGER, fields))
                state = within(_STATE, fields) if take(fields, "moved", bool) else None
        except RunFolderError as error:
            raise DeploymentError(str(error)) from None
        if terms != self._terms:
            raise DeploymentError(
                f"{self._path} has the ledger of {terms}, and this strategy is for {self._terms}: "
                f"name another file for another protection"
            )
        return Kept(rounds, ledger, state)

    def write(self, kept: Kept) -> None:
        fields: dict[str, Value] = {
            "terms": self._terms, "rounds": kept.rounds, "moved": kept.state is not None,
            **prefixed(_LEDGER, kept.ledger.to_state()),
            **prefixed(_STATE, kept.state or {}),
        }  # fmt: skip
        data = sealed(fields)
        with locked(self._path):
            found = read_bytes(self._path, MOST_STATE_BYTES) if self._path.exists() else None
            if found != self._written:
                raise DeploymentError(
                    f"{self._path} was changed while this strategy ran: another one keeps its "
                    f"ledger there, and each needs a file of its own"
                )
            write_whole(self._path, data, 0o600)
        self._written = data
