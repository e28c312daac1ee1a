"""What a client has spent in a run, by its own account, in the context that its node keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedveil.errors import MessageInvalid
from fedveil.message import Value, decode, encode
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import format_epsilon
from fedveil.protections.base import Spending

_RECORD = "fedveil.ledger"
_FIELD = "encoded"
_ME = 0


class OwnLedger:
    """Counts the client's reports by itself: the server's rounds may repeat or skip numbers.

    While all reports cost the same, their number is all that a server decides, and they are
    composed; once they differ it may have chosen them in view of earlier ones, and they add up
    plainly, in epsilon and in delta.
    """

    def __init__(self, records: RecordDict) -> None:
        self._records = records
        self._reports = 0
        self._alike, self._any = Ledger(), Ledger(adaptive=True)
        kept = records.get(_RECORD)
        if isinstance(kept, ConfigRecord):
            state: dict[str, Any] = decode(kept[_FIELD])  # type: ignore[arg-type]
            self._reports = state["reports"]
            self._alike, self._any = (Ledger.from_state(_part(state, p)) for p in _PARTS)

    def check(self, spending: Sequence[Spending], limits: Sequence[tuple[float, float]]) -> None:
        """Raise `MessageInvalid` where one more such report would pass a limit."""
        if not limits:
            return
        ahead = self._alike.copy()
        ahead.record_many(spending, round=self._reports, clients=[_ME])
        if ahead.to_state()["kind.sizes"].size > 1:  # type: ignore[union-attr]
            ahead = self._any.copy()
            ahead.record_many(spending, round=self._reports, clients=[_ME])
        for most, delta in limits:
            figure = ahead.figures(delta)["run_most_drawn"]
            if figure.epsilon > most:
                raise MessageInvalid(
                    f"one more report would bring this client to epsilon "
                    f"{format_epsilon(figure.epsilon)} at delta {figure.delta:g}, above its "
                    f"max_epsilon = {most:g}"
                )

    def record(self, spending: Sequence[Spending]) -> None:
        """One more report has left, or is about to."""
        state: dict[str, Value] = {"reports": self._reports + 1}
        for part, ledger in zip(_PARTS, (self._alike, self._any), strict=True):
            ledger.record_many(spending, round=self._reports, clients=[_ME])
            state |= {f"{part}{name}": value for name, value in ledger.to_state().items()}
        self._reports += 1
        self._records[_RECORD] = ConfigRecord({_FIELD: encode(state)})


_PARTS = ("alike.", "any.")


def _part(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
