"""The interface of all executors, which deliver the messages of a run."""

from __future__ import annotations

from abc import abstractmethod

from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import Carrier


class Executor(Carrier):
    """Delivers the messages of each round."""

    @abstractmethod
    def open(self, context: RoundContext) -> None:
        """Start a round with its global weights."""

    def close(self) -> None:
        """Release processes and memory."""
