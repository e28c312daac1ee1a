"""A worker process of the simulator: `python -m fedveil.engine.executors.worker DESCRIPTOR`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.engine.assembly import make_client_side
from fedveil.engine.executors.client_side import Answer, ClientsData, ClientSide
from fedveil.engine.executors.pool import WorkerSetup
from fedveil.engine.executors.shared_block import SharedBlock
from fedveil.errors import FedveilError
from fedveil.message import Message, decode
from fedveil.protections.base import RoundContext, ServerRound


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
    connection.send(("ready", side.least))
    slots, sums = (exchange.array(name)[setup.number] for name in ("slots", "sums"))
    _serve(connection, inbox, side, slots, sums)


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
    sums: npt.NDArray[np.uint8],
) -> None:
    common: Message = {}
    context = RoundContext((), 0, np.empty(0, np.float32))
    server: ServerRound | None = None
    while True:
        word, *rest = inbox.get()
        if word == "open":
            context, server = rest[0], None
            side.open(context.round)
        elif word == "say":
            common = decode(rest[0])
        elif word == "sums":
            connection.send(("sums", *_pickled(server or side.server_round(context), sums)))
            server = None
        else:
            slot, items = rest
            asked = [(c, common if message is None else decode(message)) for c, message in items]
            if word == "fold":
                server = server or side.server_round(context)
                answers = side.answer(asked, server)
            else:
                answers = _into_slot(side.answer(asked), slots[slot])
            connection.send(("answers", slot, answers))


def _pickled(
    server: ServerRound, sums: npt.NDArray[np.uint8]
) -> tuple[bytes, list[bytes | tuple[int, int]]]:
    """A server half, its arrays in shared memory as far as they fit, and their places there."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(server, protocol=5, buffer_callback=buffers.append)
    places: list[bytes | tuple[int, int]] = []
    used = 0
    for buffer in buffers:
        raw = buffer.raw()
        end = used + len(raw)
        if end > len(sums):
            places.append(bytes(raw))
            continue
        sums[used:end] = np.frombuffer(raw, np.uint8)
        places.append((used, end))
        used = end
    return pickled, places


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
