"""An executor that trains clients on threads, for trainers that run without the GIL."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch

from fedveil.base.message import Message
from fedveil.engine.executors.client_side import ClientSide
from fedveil.engine.executors.client_warnings import WarningsApart
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.reports import Folding, encoded
from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import MergeableHalf
from fedveil.rounds.outcomes import Answer, ClientId

#: The least time between two deliveries: the receiver takes processor time from training threads.
_HAND_OVER_S = 0.05


@dataclass
class _Thread:
    """The objects with which one thread serves clients.

    `side` trains the thread's clients, and `folding` adds up their reports. `mine` are the waiting
    clients that only this thread can serve, because `side` has their state from an earlier message
    of the round.
    """

    side: ClientSide
    folding: Folding
    mine: deque[ClientId] = field(default_factory=deque)


class Threads(Executor):
    """Trains clients on threads. Each thread has a `ClientSide`. All share one array of weights."""

    def __init__(self, sides: Sequence[ClientSide]) -> None:
        self._threads = [_Thread(side, Folding(side.protection, side.weights)) for side in sides]
        self._pool = ThreadPoolExecutor(len(sides), "clients")
        self._owner: dict[ClientId, _Thread] = {}
        gc.freeze()  # a garbage collection of the run's permanent objects takes as long as a round

    def open(self, context: RoundContext) -> None:
        self._threads[0].side.model[:] = context.sent
        self._owner.clear()
        for thread in self._threads:
            thread.side.open(context.round)
            thread.folding.open(context)

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """Send the messages of `phase` to the clients. Yields the answers as they arrive.

        A client is served by one thread for a whole round.
        """
        return self._answers(messages, lambda thread, answer: encoded(answer))

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        """Send the messages of `phase` to the clients, and add their reports to a sum.

        `server` has the sum. Yields `Folded` for each report, or `Refused` if the report is
        invalid. Yields all other answers unchanged.
        """
        yield from self._answers(messages, lambda thread, answer: thread.folding.fold(answer))
        for thread in self._threads:
            server.merge(thread.folding.take())

    def _answers(
        self, messages: Mapping[ClientId, Message], treat: Callable[[_Thread, Answer], Answer]
    ) -> Iterator[Answer]:
        side = self._threads[0].side
        anyone: deque[ClientId] = deque()
        for client in sorted(messages, key=side.examples, reverse=True):
            owner = self._owner.get(client)
            (anyone if owner is None else owner.mine).append(client)
        answers: SimpleQueue[list[Answer] | Future[None]] = SimpleQueue()

        def serve(thread: _Thread) -> None:
            made, handed_over = list[Answer](), time.perf_counter()
            torch.set_num_threads(1)  # a new thread's first product would use all cores
            with WarningsApart():
                for queue in (thread.mine, anyone):
                    while queue:
                        try:
                            client = queue.popleft()
                        except IndexError:  # another thread was faster
                            break
                        self._owner[client] = thread
                        asked = {client: messages[client]}
                        made += [treat(thread, answer) for answer in thread.side.answers(asked)]
                        if time.perf_counter() - handed_over > _HAND_OVER_S:
                            answers.put(made)
                            made, handed_over = [], time.perf_counter()
            answers.put(made)

        torch_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        running = [self._pool.submit(serve, thread) for thread in self._threads]
        try:
            for future in running:
                future.add_done_callback(answers.put)
            left = len(running)
            while left:
                some = answers.get()
                if isinstance(some, Future):
                    some.result()
                    left -= 1
                else:
                    yield from some
        finally:
            anyone.clear()
            for thread in self._threads:
                thread.mine.clear()
            for future in running:
                future.exception()  # waits until the running training ends
            torch.set_num_threads(torch_threads)

    def close(self) -> None:
        self._pool.shutdown()
        gc.unfreeze()
