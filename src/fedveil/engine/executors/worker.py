"""A worker process of the simulator: `python -m fedveil.engine.executors.worker DESCRIPTOR`.

DESCRIPTOR is the file descriptor of a pipe to the simulator.
"""

from __future__ import annotations

import gc
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

from fedveil.base import own_code
from fedveil.base.message import Message, decode
from fedveil.engine.assembly import make_client_side
from fedveil.engine.executors.client_side import ClientsData, ClientSide
from fedveil.engine.executors.pool import InSlot, WorkerSetup
from fedveil.engine.executors.reports import Folding, encoded
from fedveil.engine.executors.shared_block import SharedBlock
from fedveil.errors import FedveilError
from fedveil.protections.own_errors import own_errors
from fedveil.record.run_folder import ENDING
from fedveil.rounds.outcomes import Answer, Report


def main(descriptor: int) -> None:
    """Train clients for the calling process until the pipe with this descriptor closes."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # the calling process handles them
    torch.set_num_threads(1)
    connection = Connection(descriptor)
    inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
    setup: WorkerSetup = inbox.get()[1]
    exchange = SharedBlock(*setup.exchange)
    try:
        side = _client_side(setup, exchange)
        gc.freeze()  # a garbage collection of permanent objects takes as long as a small round
        connection.send(("ready", side.least))
        slots, sums = (exchange.array(name)[setup.number] for name in ("slots", "sums"))
        with own_errors(side.protection):
            _serve(connection, inbox, side, slots, sums)
    except FedveilError as error:
        connection.send(("error", error))


def _read(connection: Connection, inbox: SimpleQueue[tuple[Any, ...]]) -> None:
    """Move messages from the pipe to `inbox`. Ends the process when the pipe closes."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def _client_side(setup: WorkerSetup, exchange: SharedBlock) -> ClientSide:
    sys.path[:] = [p for p in setup.import_path if p not in sys.path] + sys.path
    own_code.unpack(setup.own)
    block = SharedBlock(*setup.data)
    data = ClientsData(**{name: block.array(name) for name in block.spans})
    return make_client_side(setup.job, setup.shape, data, exchange.array("model"), setup.run)


def _serve(
    connection: Connection,
    inbox: SimpleQueue[tuple[Any, ...]],
    side: ClientSide,
    slots: npt.NDArray[np.uint8],
    sums: npt.NDArray[np.uint8],
) -> None:
    common: Message = {}
    folding = Folding(side.protection, side.weights)
    while True:
        word, *rest = inbox.get()
        if word == "open":
            folding.open(rest[0])
            side.open(rest[0].round)
        elif word == "say":
            common = decode(rest[0])
        elif word == "sums":
            connection.send(("sums", *folding.sums(sums)))
        else:
            slot, items = rest
            asked = {c: common if message is None else decode(message) for c, message in items}
            treat = folding.fold if word == "fold" else encoded
            answers = [treat(answer) for answer in side.answers(asked)]
            connection.send(("answers", slot, _into_slot(answers, slots[slot])))


def _into_slot(answers: list[Answer], slot: npt.NDArray[np.uint8]) -> list[Answer]:
    """Copy the reports that fit into the shared memory `slot`, and replace each by an `InSlot`."""
    used = 0
    for i, answer in enumerate(answers):
        if isinstance(answer, Report) and used + len(answer.data) <= len(slot):
            end = used + len(answer.data)
            slot[used:end] = np.frombuffer(answer.data, np.uint8)
            answers[i] = InSlot(answer.client, used, end, effort=answer.effort)
            used = end
    return answers


if __name__ == "__main__":
    main(int(sys.argv[1]))
