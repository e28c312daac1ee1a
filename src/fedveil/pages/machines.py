"""Work of each machine of a cluster in a run: clients, working time and idle share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedveil.base.quantity import quantity
from fedveil.engine.run_records import MACHINES
from fedveil.record.recorder import Record


@dataclass
class MachineTotals:
    """One machine's totals over all rounds in which it was available.

    `clients` counts the clients that the machine simulated. A client counts once in each round.
    `busy_s` is the time in seconds during which the machine worked. `wall_s` is the time in seconds
    during which at least one machine of the cluster worked.
    """

    clients: int = 0
    busy_s: float = 0.0
    wall_s: float = 0.0

    @property
    def idle(self) -> float:
        """The share of time in which the machine waited for other machines."""
        return 1 - self.busy_s / self.wall_s if self.wall_s else 0.0

    def __str__(self) -> str:
        return (
            f"{quantity(self.clients, 'client')}, {self.busy_s:,.1f} s, idle {100 * self.idle:.0f}%"
        )


def machine_totals(records: Iterable[Record]) -> dict[str, MachineTotals]:
    """Return each machine's totals over the rounds. The result is empty without a cluster."""
    totals: dict[str, MachineTotals] = {}
    for record in records:
        machines = record.get(MACHINES, {})
        # All machines' idle shares refer to one duration. A share of 1 does not reveal it.
        times = (busy_s / (1 - idle) for _, busy_s, idle in machines.values() if idle < 1)
        wall_s = max(times, default=0.0)
        for name, (clients, busy_s, _) in machines.items():
            machine = totals.setdefault(name, MachineTotals())
            machine.clients += clients
            machine.busy_s += busy_s
            machine.wall_s += wall_s
    return dict(sorted(totals.items()))
