"""A worker process of the simulator: `python -m fedveil.runtime.worker DESCRIPTOR`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.errors import FedveilError
from fedveil.message import Message, decode
from fedveil.runtime.assembly import make_client_side
from fedveil.runtime.client_side import Answer, ClientsData, ClientSide
from fedveil.runtime.pool import WorkerSetup
from fedveil.runtime.shared import SharedBlock


def main(descriptor: int) -> None:
    """Serve until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the calling process decides what it means
    torch.set_num_threads(1)
    connection = Connection(descriptor)
    inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    setup: WorkerSetup = inbox.get()[1]
    exchange = SharedBlock(*setup.exchange)
    try:
        side = _client_side(setup, exchange)
    except FedveilError as error:
        connection.send(("error", error))
        return
    connection.send(("ready", side.chunk))
    _serve(connection, inbox, side, exchange.array("slots")[setup.number])


def _read(connection: Connection, inbox: SimpleQueue[tuple[Any, ...]]) -> None:
    """Move messages to the inbox, so that the calling process never waits to send one.

    When the pipe closes nobody wants an answer any more: end at once, also in the middle of a
    client's training.
    """
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _client_side(setup: WorkerSetup, exchange: SharedBlock) -> ClientSide:
    sys.path[:] = [p for p in setup.import_path if p not in sys.path] + sys.path
    block = SharedBlock(*setup.data)
    data = ClientsData(**{name: block.array(name) for name in block.places})
    return make_client_side(setup.job, setup.task, data, exchange.array("model"))


def _serve(
    connection: Connection,
    inbox: SimpleQueue[tuple[Any, ...]],
    side: ClientSide,
    slots: npt.NDArray[np.uint8],
) -> None:
    common: Message = {}
    while True:
        word, *rest = inbox.get()
        if word == "open":
            side.open(rest[0])
        elif word == "say":
            common = decode(rest[0])
        else:
            slot, items = rest
            asked = [(c, common if message is None else decode(message)) for c, message in items]
            connection.send(("answers", slot, _into_slot(side.answer(asked), slots[slot])))


def _into_slot(answers: list[Answer], slot: npt.NDArray[np.uint8]) -> list[Answer]:
    """Move the reports that fit into shared memory, and leave their places in the answers."""
    used = 0
    for answer in answers:
        if isinstance(answer.report, bytes) and used + len(answer.report) <= len(slot):
            end = used + len(answer.report)
            slot[used:end] = np.frombuffer(answer.report, np.uint8)
            answer.report = (used, end)
            used = end
    return answers


if __name__ == "__main__":
    main(int(sys.argv[1]))
