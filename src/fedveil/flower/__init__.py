"""fedveil's protections inside any Flower app that uses the Message API, in two lines.

    app = ClientApp(mods=[ProtectMod()])
    strategy = ProtectedStrategy(FedAvg(...), protection="signds")

app/      for such an app: the client's side (mod.py), the server's side (strategy.py), and what
          both exchange: settings, a round's offer, arrays and metrics in clear
job/      a fedveil job on Flower: the app that `fedveil deploy` writes, its server and clients

Both folders use:

exchange.py      sends messages over Flower's grid and reads the replies one by one
records.py       encodes a fedveil message in Flower's records
sealed_state.py  a client's encrypted state between the messages of a round
own_account.py   a client's own account of its reports in a run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil.base.lazy import lazy

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
