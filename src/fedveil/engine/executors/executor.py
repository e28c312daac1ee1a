"""The interface of all executors. An executor delivers the messages of a run to its clients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import Carrier


class Executor(Carrier):
    """Delivers the messages of each round."""

    @abstractmethod
    def open(self, context: RoundContext) -> None:
        """Start a round, whose global weights are in `context`."""

    def shown(self) -> dict[str, Any]:
        """Return the round record's entries about where its clients were trained."""
        return {}

    def close(self) -> None: ...
