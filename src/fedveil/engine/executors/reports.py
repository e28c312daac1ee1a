"""Encodes a report in the process that made it, or adds it to a sum of reports in that process."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fedveil.base import reused_memory
from fedveil.base.message import encoded_bytes, encoded_parts
from fedveil.engine.executors.client_side import Made
from fedveil.errors import ReportRejected
from fedveil.protections.base import Protection, RoundContext, ServerRound, Update
from fedveil.rounds.loop import MergeableHalf
from fedveil.rounds.outcomes import Answer, Folded, Refused, Report


def encoded(answer: Answer) -> Answer:
    if not isinstance(answer, Made):
        return answer
    began = time.perf_counter()
    pieces = encoded_parts(answer.message)
    data, done = reused_memory.empty(sum(map(len, pieces)), np.uint8).data, 0
    for piece in pieces:
        data[done : done + len(piece)] = piece
        done += len(piece)
    answer.effort.protection_s += time.perf_counter() - began
    return Report(answer.client, data, effort=answer.effort)


def folded(answer: Answer, server: MergeableHalf) -> Answer:
    """Add a report to the sum in `server`. Returns `Folded`, or `Refused` if it is invalid.

    If `answer` is not a report, returns it unchanged.
    """
    if not isinstance(answer, Made):
        return answer
    began, client, effort = time.perf_counter(), answer.client, answer.effort
    size = encoded_bytes(answer.message)
    try:
        server.receive(client, answer.message)
    except ReportRejected as rejected:
        return Refused(client, size, rejected.reason, effort=effort)
    finally:
        effort.aggregation_s += time.perf_counter() - began
    return Folded(client, size, effort=effort)


class Folding:
    """Adds up the reports of one worker's clients. Each round has a new sum."""

    def __init__(self, protection: Protection, model: Update) -> None:
        self._protection = protection
        self._model = model
        self._context: RoundContext
        self._server: ServerRound | None = None

    def open(self, context: RoundContext) -> None:
        """Start a round. `context.model` is replaced by the worker's own copy of the weights."""
        self._context, self._server = replace(context, model=self._model), None

    def fold(self, answer: Answer) -> Answer:
        """Add a report to the worker's sum. Returns `Folded`, or `Refused` if it is invalid.

        If `answer` is not a report, returns it unchanged.
        """
        return folded(answer, self._half())

    def sums(self, room: npt.NDArray[np.uint8]) -> tuple[bytes, list[bytes | tuple[int, int]]]:
        """Remove the worker's sum. Returns its pickle without the arrays, and the arrays.

        An array that fits into the shared memory `room` is copied there, and returned as the pair
        of positions where its bytes begin and end. Any other array is returned as bytes.
        """
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(self.take(), protocol=5, buffer_callback=buffers.append)
        places: list[bytes | tuple[int, int]] = []
        used = 0
        for buffer in buffers:
            raw = buffer.raw()
            end = used + len(raw)
            if end > len(room):
                places.append(bytes(raw))
                continue
            room[used:end] = np.frombuffer(raw, np.uint8)
            places.append((used, end))
            used = end
        return pickled, places

    def take(self) -> ServerRound:
        """Remove and return the worker's sum of reports."""
        half, self._server = self._half(), None
        return half

    def _half(self) -> ServerRound:
        if self._server is None:
            self._server = self._protection.server_round(self._context)
        return self._server


def merge_sums(
    server: MergeableHalf,
    pickled: bytes,
    places: list[bytes | tuple[int, int]],
    room: npt.NDArray[np.uint8],
) -> None:
    """Add a worker's sum of reports to `server`.

    `pickled` is the pickle of the sum without its arrays. `places` has an entry for each array: its
    bytes, or the positions of its begin and end in the shared memory `room`.
    """
    buffers = [place if isinstance(place, bytes) else room[slice(*place)] for place in places]
    server.merge(pickle.loads(pickled, buffers=buffers))  # noqa: S301  # our own process
