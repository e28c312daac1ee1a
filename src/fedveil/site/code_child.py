"""Trains a job that brings its own code. Runs in a separate process that the site starts."""

from __future__ import annotations

import io
import os
import resource
from typing import Any

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.message import Message, Value, decode, encode, take
from fedveil.site import system_calls

_LENGTH_BYTES = 8
_MOST_FILES, _MOST_FILE_BYTES = 256, 1 << 26


def main(asked: str, said: str, memory: str, seconds: str) -> None:
    """Train once. Reads requests from the pipe `asked` and writes answers to the pipe `said`.

    The arguments are numbers as text: the pipes' file descriptors, the limit `memory` of this
    process in bytes, and the limit `seconds` of its processor time.
    """
    confine(int(memory), int(seconds))
    from fedveil.engine.assembly import make_task
    from fedveil.engine.executors.client_side import ClientsData
    from fedveil.federated.job import Job
    from fedveil.flower.job.client_training import Training
    from fedveil.settings import yaml_file

    request = _received(int(asked))
    job = Job.read(yaml_file.mapping(take(request, "job", str), "job"), ())
    if job.training.engine == "auto":  # compiled code would be lost with the process
        job = job.with_({"training.engine": "loop"})
    _send(int(said), {"targets": make_task(job).targets})
    rows, client = _received(int(asked)), take(request, "client", int)
    data = ClientsData.of_one(client, unpacked(rows, "x"), unpacked(rows, "y"))
    training = Training(job, decode(take(request, "common", bytes)), _no_states, lambda: data)
    update, _ = training.update(client, None)
    _send(int(said), {"update": np.ascontiguousarray(update, np.float32)})


def confine(memory: int, seconds: int) -> None:
    """Limit this process's memory (bytes), processor time (seconds), files and system calls."""
    limits = {
        resource.RLIMIT_AS: memory, resource.RLIMIT_CPU: seconds, resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _MOST_FILES, resource.RLIMIT_FSIZE: _MOST_FILE_BYTES,
    }  # fmt: skip
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    if system_calls.can_forbid():
        system_calls.forbid()


def packed(array: Array) -> bytes:
    """Return an array of examples in NumPy's .npy format. Raises ValueError for Python objects."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def unpacked(message: Message, name: str) -> Array:
    array: Array = np.load(io.BytesIO(take(message, name, bytes)), allow_pickle=False)
    return array


def _no_states(client: int) -> Any:
    raise AssertionError("a job with states is refused")


def _received(pipe: int) -> dict[str, Value]:
    with os.fdopen(os.dup(pipe), "rb") as file:
        return decode(file.read(int.from_bytes(file.read(_LENGTH_BYTES))))


def _send(pipe: int, message: Message) -> None:
    data = encode(message)
    with os.fdopen(os.dup(pipe), "wb") as file:
        file.write(len(data).to_bytes(_LENGTH_BYTES) + data)
