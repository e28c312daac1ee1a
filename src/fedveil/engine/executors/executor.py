"""Who carries the messages of a run: what every executor does."""

from __future__ import annotations

from abc import abstractmethod

from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import Carrier


class Executor(Carrier):
    """Carries the messages of one round after another."""

    @abstractmethod
    def open(self, context: RoundContext) -> None:
        """Begin a round, with its global weights."""

    def close(self) -> None:
        """Let go of processes and memory."""
