"""An executor that trains every client in the calling process, one after another."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from fedveil.base import reused_memory
from fedveil.base.message import Message
from fedveil.engine.executors.client_side import ClientSide, Trained
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.reports import encoded, folded
from fedveil.learning.trained_part import one_torch_thread
from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import MergeableHalf
from fedveil.rounds.outcomes import Answer, ClientId

#: From this many entries on, making a report takes longer than passing it to another thread.
_LONG = 1 << 20
#: The most reports that wait for the second thread or are being made by it, each from a copy of the
#: update.
_WAITING = 3
#: From this many entries on, memory is scarcer than time: a second thread needs copies of updates.
_SCARCE = 1 << 28


@dataclass(frozen=True)
class _Waiting:
    """A report not yet made. A second thread calls `make`, and `future` then holds the report."""

    make: Callable[[], Answer]
    future: Future[Answer]


class InProcess(Executor):
    """An executor that starts no process. With a large model, a second thread makes some reports.

    `cores` is the number of cores to use (default: all). There is no second thread with one core,
    or with a model so large that memory is scarcer than time.
    After the last client has trained, both threads make the reports that are still missing.
    """

    beside_server = True

    def __init__(self, side: ClientSide, cores: int | None = None) -> None:
        self._side = side
        cores = cores or len(os.sched_getaffinity(0))
        long = _LONG <= side.protection.dimension < _SCARCE and not side.protection.plain_reports
        apart = long and cores > 1 and not side.keeps_state
        self._pool = ThreadPoolExecutor(1, "reports") if apart else None
        reused_memory.start_reusing()
        #: Held while a report is encoded or added up.
        self._adding = threading.Lock()

    def open(self, context: RoundContext) -> None:
        self._side.model = context.sent  # not copied: it changes only between two rounds
        self._side.open(context.round)

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        return self._answers(messages, encoded)

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        """Send the messages of `phase` to the clients, and add their reports to a sum.

        `server` has the sum. Yields `Folded` for each report, or `Refused` if the report is
        invalid. Yields all other answers unchanged.
        """
        return self._answers(messages, lambda answer: folded(answer, server))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        reused_memory.stop_reusing()

    def _answers(
        self, messages: Mapping[ClientId, Message], treat: Callable[[Answer], Answer]
    ) -> Iterator[Answer]:
        def finish(client: ClientId, trained: Answer | None) -> Answer:
            answer = self._side.answer(client, messages[client], trained)
            with self._adding:
                return treat(answer)

        asked, waiting = list(messages.items()), deque[_Waiting]()
        for start in range(0, len(asked), self._side.chunk):
            answers = []
            with one_torch_thread():
                for client, trained in self._side.trained(
                    dict(asked[start : start + self._side.chunk])
                ):
                    while waiting and waiting[0].future.done():
                        answers.append(waiting.popleft().future.result())
                    if not isinstance(trained, Trained) or not self._has_room(waiting):
                        answers.append(finish(client, trained))
                    else:
                        waiting.append(self._handed_over(finish, trained))
            yield from answers
        while waiting and waiting[-1].future.cancel():  # the other thread has not begun it
            yield waiting.pop().make()
        yield from (each.future.result() for each in waiting)

    def _has_room(self, waiting: deque[_Waiting]) -> bool:
        return self._pool is not None and len(waiting) < _WAITING

    def _handed_over(
        self, finish: Callable[[ClientId, Answer], Answer], trained: Trained
    ) -> _Waiting:
        """Queue a client's report for the second thread, so that this thread can train clients.

        Returns the queued report. `finish` makes it, from a copy of the update in `trained`.
        """
        copy = reused_memory.empty(len(trained.update), np.float32)
        copy[:] = trained.update

        def make() -> Answer:
            return finish(trained.client, replace(trained, update=copy))

        assert self._pool is not None
        return _Waiting(make, self._pool.submit(make))
