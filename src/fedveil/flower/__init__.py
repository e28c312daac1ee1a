"""fedveil's protections inside anybody's Flower app, of the Message API, in two lines.

app = ClientApp(mods=[ProtectMod()])
strategy = ProtectedStrategy(FedAvg(...), protection="signds")

app/      such an app: the client's side (mod.py), the server's (strategy.py), and between them
          the settings, the offer of a round, its arrays and the metrics that travel in clear
job/      a fedveil job on Flower: the app that `fedveil deploy` writes, its server and clients

What both have under them:

exchange.py      one exchange over Flower's grid, reply by reply
records.py       a fedveil message in Flower's records, and back
sealed_state.py  what a client keeps between the messages of a round
own_account.py   what a client has given in a run, by its own account
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
        "fedveil.flower.app.mod": ["ProtectMod"],
        "fedveil.flower.app.round_record": ["RoundRecord"],
        "fedveil.flower.app.strategy": ["ProtectedStrategy"],
    },
    needs=("flwr", "flower"),
)
