"""The account of a data set: the privacy that all jobs on it together cost one client or one row.

A job is a training or a file of questions (`fedveil.statistics`). It charges the account before it
asks for reports, and stops if the charge would exceed the limit. Charges are never taken back. The
charges are those of a client (or row) that takes part in everything, so they bound every cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedveil.base.files import locked, refuse_link, write_whole
from fedveil.base.message import MAGIC, Value, prefixed, take, within
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_DATA_BYTES, read_bytes
from fedveil.errors import LimitReached, RunFolderError
from fedveil.privacy.adaptive_sum import AdaptiveSum
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import Ledger, Line, Spendings
from fedveil.privacy.loss import exactly
from fedveil.record.run_folder import explained, make_folder
from fedveil.record.sealed_message import intact, sealed, unsealed

_PART = "composed"
_CLIENT = 0


class DataAccount:
    """The account in the file `path`. Only one process at a time may charge it.

    `unit` says whose data it covers, "client" or "row". `privacy.adaptive_sum` composes the
    charges, because each may depend on the results of earlier charges. If the file later has fewer
    charges than this object has seen, the methods raise `RunFolderError`: it was deleted, or
    replaced by an older copy.
    """

    def __init__(self, path: Path, unit: str) -> None:
        self.path, self._unit = path, unit
        self._seen = 0

    def charge(self, spendings: Spendings, limit: float | None, delta: float, what: str) -> None:
        """Charge `spendings`, the losses of one round, to the account, and save the account.

        Raises `LimitReached`, and charges nothing, if the total would exceed `limit` at `delta`.
        The error calls this round `what`.
        """
        make_folder(self.path.parent)
        with explained(self.path), locked(self.path):
            refuse_link(self.path)
            rounds, ledger = self._read()
            ledger.record_many(spendings, round=rounds + 1, clients=[_CLIENT])
            figure = AdaptiveSum.of(ledger).figure(delta)
            if limit is not None and figure.epsilon > limit:
                raise LimitReached(
                    f"{what} would bring the account {self.path} to {figure}, above max_epsilon = "
                    f"{exactly(limit)}"
                )
            state: dict[str, Value] = {"rounds": rounds + 1, "unit": self._unit}
            state |= prefixed(_PART, ledger.to_state())
            write_whole(self.path, sealed(state))
            self._seen = rounds + 1

    def figure(self, delta: float) -> Figure:
        """Return the epsilon at `delta` of everything that was charged."""
        return AdaptiveSum.of(self._read()[1]).figure(delta)

    def line(self, delta: float) -> Line:
        """Return the account's epsilon at `delta` as a line for people, with a description."""
        whose = "a client" if self._unit == "client" else "a row"
        said = f"{whose} in all trainings and questions of the account {self.path}"
        return Line(*self.figure(delta), said)

    def _read(self) -> tuple[int, Ledger]:
        rounds, ledger = self._held()
        if rounds < self._seen:
            happened = "is an older copy" if self.path.exists() else "is missing"
            raise RunFolderError(
                f"{self.path} {happened}: it had {quantity(self._seen, 'charge')}, and a new "
                "account would leave them out. Put the newest copy back"
            )
        self._seen = rounds
        return rounds, ledger

    def _held(self) -> tuple[int, Ledger]:
        if not self.path.exists():
            return 0, Ledger()
        with intact(self.path):
            raw = read_bytes(self.path, MOST_DATA_BYTES)
            if not raw.startswith(MAGIC):
                other = "is not an account: name a new file or an account"
                raise RunFolderError(f"{self.path} {other}")
            state: dict[str, Any] = unsealed(raw)
            ledger = Ledger.from_state(within(_PART, state))
            rounds, unit = take(state, "rounds", int), take(state, "unit", str)
        if unit != self._unit:
            raise RunFolderError(
                f"{self.path} is the account of each {unit}, and losses of each {self._unit} do "
                "not add up with those: use another file"
            )
        return rounds, ledger
