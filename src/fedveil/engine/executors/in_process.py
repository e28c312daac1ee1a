"""An executor that trains every client in the calling process, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from fedveil.base.message import Message
from fedveil.engine.executors.client_side import ClientSide
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.reports import encoded, folded
from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import MergeableHalf
from fedveil.rounds.outcomes import Answer, ClientId


class InProcess(Executor):
    """An executor that starts no process or thread."""

    def __init__(self, side: ClientSide) -> None:
        self._side = side

    def open(self, context: RoundContext) -> None:
        self._side.model = context.sent  # not copied: nothing changes it
        self._side.open(context.round)

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """Yield the clients' answers. Clients are trained in groups, one group after another."""
        return self._answers(messages, encoded)

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        """Yield the answers without their reports, which are added to `server` directly."""
        return self._answers(messages, lambda answer: folded(answer, server))

    def _answers(
        self, messages: Mapping[ClientId, Message], treat: Callable[[Answer], Answer]
    ) -> Iterator[Answer]:
        asked = list(messages.items())
        for start in range(0, len(asked), self._side.chunk):
            part = dict(asked[start : start + self._side.chunk])
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                answers = [treat(answer) for answer in self._side.answers(part)]
            finally:
                torch.set_num_threads(threads)
            yield from answers
