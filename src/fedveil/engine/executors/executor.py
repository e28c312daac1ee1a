"""The interface of all executors. An executor delivers the messages of a run to its clients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from fedveil.base.message import Message
from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import Carrier


class Executor(Carrier):
    """Delivers each round's messages to the clients. Base class of all executors."""

    @abstractmethod
    def open(self, context: RoundContext) -> None:
        """Start a round. `context` contains its global weights."""

    @property
    def told(self) -> Message:
        """The fields that clients receive for training beside the weights, equal for all clients.

        Empty if the clients know them without being told, as in a simulation.
        """
        return {}

    def shown(self) -> dict[str, Any]:
        """Return entries for the round's record, such as the machines that trained clients."""
        return {}

    def close(self) -> None: ...
