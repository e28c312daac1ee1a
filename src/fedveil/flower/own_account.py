"""What a client has given in a run, by its own account, which no server sets back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedveil._files import write_whole
from fedveil.errors import ClientWithheld, DeploymentError, MessageInvalid
from fedveil.message import Value, decode, encode
from fedveil.privacy.ledger import Ledger
from fedveil.protections.base import Spending

_RECORD = "fedveil.ledger"
_FIELD = "encoded"
_PARTS = ("alike.", "any.")
_ME = 0


def count_report(path: Path, spending: Sequence[Spending], limit: int) -> None:
    """One more report of a job is about to leave; raises `ClientWithheld` beyond `limit` of them.

    The number is in a file of the client's, which outlives every restart. A report that promises
    nothing by itself is not counted: it has no loss to limit.
    """
    if any(math.isinf(spent.loss.epsilon) for spent in spending):
        return
    given = path.read_text() if path.exists() else "0"
    if not given.isdecimal():
        raise DeploymentError(f"{path} is damaged: it does not hold a number")
    if int(given) >= limit:
        raise ClientWithheld(
            f"this client has given {int(given)} reports of this job, rounds + "
            f"deployment.repeats = {limit} are all that it gives"
        )
    write_whole(path, str(int(given) + 1).encode())


class OwnLedger:
    """What a client's reports have cost, in the context that its node keeps.

    It counts them by itself: the server's rounds may repeat or skip numbers. While all reports
    cost the same, their number is all that a server decides, and they are composed; once they
    differ it may have chosen them in view of earlier ones, and they add up plainly, in epsilon
    and in delta.
    """

    def __init__(self, records: RecordDict) -> None:
        self._records = records
        self._reports = 0
        self._alike, self._any = Ledger(), Ledger(adaptive=True)
        kept = records.get(_RECORD)
        if isinstance(kept, ConfigRecord):
            state: dict[str, Any] = decode(kept[_FIELD])  # type: ignore[arg-type]
            self._reports = state["reports"]
            self._alike, self._any = (
                Ledger.from_state(
                    {n.removeprefix(p): v for n, v in state.items() if n.startswith(p)}
                )
                for p in _PARTS
            )

    def check(self, spending: Sequence[Spending], limits: Sequence[tuple[float, float]]) -> None:
        """Raise `MessageInvalid` where one more such report would pass a limit."""
        if not limits:
            return
        ahead = self._with(self._alike.copy(), spending)
        if ahead.to_state()["kind.sizes"].size > 1:  # type: ignore[union-attr]
            ahead = self._with(self._any.copy(), spending)
        for most, delta in limits:
            figure = ahead.figures(delta)["run_most_drawn"]
            if figure.epsilon > most:
                raise MessageInvalid(
                    f"one more report would bring this client to {figure}, above its "
                    f"max_epsilon = {most:g}"
                )

    def record(self, spending: Sequence[Spending]) -> None:
        """One more report has left, or is about to."""
        state: dict[str, Value] = {"reports": self._reports + 1}
        for part, ledger in zip(_PARTS, (self._alike, self._any), strict=True):
            whole = self._with(ledger, spending).to_state()
            state |= {f"{part}{name}": value for name, value in whole.items()}
        self._reports += 1
        self._records[_RECORD] = ConfigRecord({_FIELD: encode(state)})

    def _with(self, ledger: Ledger, spending: Sequence[Spending]) -> Ledger:
        ledger.record_many(spending, round=self._reports, clients=[_ME])
        return ledger
