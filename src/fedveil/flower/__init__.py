"""fedveil's protections inside any Flower app that uses the Message API, in two lines.

    app = ClientApp(mods=[ProtectMod()])
    strategy = ProtectedStrategy(FedAvg(...), protection="signds")

The folder `app` is for such an app. The folder `job` runs a fedveil job on Flower.
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
