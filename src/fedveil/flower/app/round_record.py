"""The outcome of one round of a `ProtectedStrategy`, for its user and for the log.

It contains the numbers of clients, reports and failures, the reason if the round has no aggregate,
and the metrics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from fedveil.base.quantity import quantity
from fedveil.flower.app.clear_metrics import Metric


@dataclass
class RoundRecord:
    """The outcome of a round.

    `rejected`, `withheld` and `failed` count replies without a usable report by reason: the server
    refuses the report, the client refuses to send it, or the client failed. `dropped` is the number
    of clients that were asked and did not reply in time. `void` says why there is no aggregate, and
    is None if there is one.
    """

    round: int
    clients: int
    reports: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    withheld: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    void: str | None = None
    bytes_up: int = 0
    metrics: dict[str, Metric] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [
            f"round {self.round}: {quantity(self.reports, 'report')} of "
            f"{quantity(self.clients, 'client')}"
        ]
        for name in ("rejected", "withheld", "failed"):
            parts += [f"{n} {name} ({reason})" for reason, n in getattr(self, name).items()]
        if self.dropped:
            parts.append(f"{self.dropped} without a reply")
        if self.void:
            parts.append(self.void)
        return "; ".join(parts)
