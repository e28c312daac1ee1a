"""fedveil's protections inside anybody's Flower app, of the Message API, in two lines.

app = ClientApp(mods=[ProtectMod()])
strategy = ProtectedStrategy(FedAvg(...), protection="signds")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedveil._lazy import lazy

if TYPE_CHECKING:
    from fedveil.flower.app.mod import ProtectMod
    from fedveil.flower.app.round_record import RoundRecord
    from fedveil.flower.app.strategy import ProtectedStrategy

__all__ = ["ProtectMod", "ProtectedStrategy", "RoundRecord"]

__getattr__, __dir__ = lazy(__name__, needs=("flwr", "flower"))
