"""fedveil's protections inside anybody's Flower app, of the Message API, in two lines.

app = ClientApp(mods=[ProtectMod()])
strategy = ProtectedStrategy(FedAvg(...), protection="signds")

arrays.py     the arrays of a Flower record as one flat vector, and back
options.py    the settings, from keywords and from Flower's configurations
offer.py      what the server tells the clients about a round, and what they both make of it
pins.py       what a client insists on, whatever it is told
mod.py        the client's side: what leaves a client
strategy.py   the server's side: what is made of it, for any strategy that averages
play.py       one round over Flower's grid, and its record
exchange.py   one exchange over the grid, reply by reply
reveal.py     the metrics that travel in clear, by name
own_ledger.py what a client has spent, by its own account
wire.py       what both sides know about the messages between them
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil._lazy import lazy

if TYPE_CHECKING:
    from fedveil.flower.app.mod import ProtectMod
    from fedveil.flower.app.round_record import RoundRecord
    from fedveil.flower.app.strategy import ProtectedStrategy

__all__ = ["ProtectMod", "ProtectedStrategy", "RoundRecord"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "ProtectMod": "fedveil.flower.app.mod",
        "ProtectedStrategy": "fedveil.flower.app.strategy",
        "RoundRecord": "fedveil.flower.app.round_record",
    },
    needs=("flwr", "flower"),
)
