"""Runs a study's own code in a separate process to train for a site.

The process returns only an update. The site checks the update's type and length. It then clips,
protects and charges the update like any other.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import get_args

import numpy as np

from fedveil.base.example_arrays import Targets
from fedveil.base.message import Message, decode, encode, only_fields, take, take_array
from fedveil.data.datasets import load
from fedveil.errors import MessageInvalid, SiteRefused
from fedveil.federated.job import Job
from fedveil.protections.base import Protection, Update
from fedveil.rounds.outcomes import ClientId
from fedveil.site import code_child, ends_with_parent
from fedveil.site.code_folder import Module
from fedveil.site.isolation import Interpreter, Means, isolated

#: The folder in which the process finds the study's code.
_CODE = "/code"
_LENGTH_BYTES = 8
_SMALL = 1 << 10
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    f"from {code_child.__name__} import main; main(*sys.argv[2:])"
)


class Process:
    """A pair of pipes to a process that runs a job's own code for the site.

    `send` and `receive` are file descriptors of the pipes. `end` is the deadline on the monotonic
    clock. A pipe that is used after it raises `SiteRefused`.
    """

    def __init__(self, send: int, receive: int, end: float) -> None:
        self._send, self._receive, self._end = send, receive, end
        os.set_blocking(send, False)
        os.set_blocking(receive, False)

    def send(self, message: Message) -> None:
        """Send a message. Raises `SiteRefused` if the process does not read it in time."""
        data = encode(message)
        left = memoryview(len(data).to_bytes(_LENGTH_BYTES) + data)
        while left:
            self._wait(self._send, select.POLLOUT)
            try:
                left = left[os.write(self._send, left) :]
            except BrokenPipeError:
                raise _ended() from None

    def receive(self, most: int) -> dict[str, object]:
        """Receive a message. Raises `SiteRefused` if it is late, invalid or above `most` bytes."""
        size = int.from_bytes(self._bytes(_LENGTH_BYTES))
        if size > most:
            raise SiteRefused(f"the job's code sent {size:,} bytes; the limit is {most:,}")
        try:
            return dict(decode(self._bytes(size), most))
        except MessageInvalid as error:
            raise SiteRefused(f"the job's code sent no message: {error}") from None

    def _bytes(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait(self._receive, select.POLLIN)
            piece = os.read(self._receive, min(size - len(data), 1 << 20))
            if not piece:
                raise _ended()
            data += piece
        return bytes(data)

    def _wait(self, file: int, event: int) -> None:
        poll = select.poll()
        poll.register(file, event)
        left_s = self._end - time.monotonic()
        if left_s <= 0 or not poll.poll(1000 * left_s):
            raise SiteRefused("the job's code was not ready in time, and was ended")


@contextmanager
def running(
    modules: list[Module], means: Means | None, memory: int, seconds: float
) -> Iterator[Process]:
    """Start a process that can import `modules`, for the duration of a `with` block.

    At the end, the process and all its children are killed. `means` is the tool that isolates the
    process (`isolation`). If it is None, only resource limits and forbidden system calls isolate
    it. `memory` is a limit in bytes. `seconds` limits the processor time and the whole duration.
    """
    with tempfile.TemporaryDirectory(prefix="fedveil-code-") as folder:
        code, scratch = Path(folder, "code"), Path(folder, "scratch")
        scratch.mkdir()
        code.mkdir()
        for module in modules:
            module.write(code)
        (asked, send), (receive, said) = os.pipe(), os.pipe()
        try:
            words = _words(str(code) if means is None else _CODE, asked, said, memory, seconds)
            if means is not None:
                words = isolated(words, means, {_CODE: code}, scratch)
            process = subprocess.Popen(
                ends_with_parent.command(words),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(asked, said), cwd=scratch, start_new_session=True,
                env={"HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},  # noqa: S108
            )  # fmt: skip
        except BaseException:
            os.close(send)
            os.close(receive)
            raise
        finally:
            os.close(asked)
            os.close(said)
        try:
            yield Process(send, receive, time.monotonic() + seconds)
        finally:
            os.close(send)
            os.close(receive)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, SIGKILL)
            process.wait()


def _words(code: str, asked: int, said: int, memory: int, seconds: float) -> list[str]:
    of = Interpreter.own()
    limits = [str(memory), str(int(seconds) + 1)]
    path = json.dumps([*of.path, code])
    return [of.file, "-I", "-S", "-B", "-c", _BOOT, path, str(asked), str(said), *limits]


@dataclass(frozen=True)
class CodeSandbox:
    """The permitted modules of a job, and the limits of the process that runs them.

    `means` is the tool that isolates the process, or None if only the limits do. `memory` is in
    bytes. `seconds` limits the processor time and the duration.
    """

    modules: list[Module]
    means: Means | None
    memory: int
    seconds: float


class CodeTraining:
    """One round of a client's training by the job's own code, in a separate process."""

    def __init__(self, sandbox: CodeSandbox, job: Job, common: Message) -> None:
        self.sandbox, self._job, self._common = sandbox, job, common
        weights = take_array(common, "weights", "float32", (take(common, "dimension", int),))
        self.model = weights.copy()

    def compile(self) -> None:
        """Do nothing. The process in which the code trains uses no compiled code."""

    def update(
        self, client: ClientId, reader: str | None, given_up: Callable[[], bool] = lambda: False
    ) -> tuple[Update, int]:
        """Train as client number `client`. Returns the update and the number of examples.

        The training runs in a separate process. Raises `SiteRefused` if that process fails.
        `reader` names the site's own function, `package.module:function`, which reads the examples
        in this process. An error in this function is raised. `reader` is never None here, because
        the policy demands a reader. `given_up` is not called: the process has a limit of its own.
        """
        assert reader is not None, "the policy demands a reader"
        of = self.sandbox
        with running(of.modules, of.means, of.memory, of.seconds) as process:
            return self.exchanged(process, client, reader)

    def exchanged(self, process: Process, client: ClientId, reader: str) -> tuple[Update, int]:
        """Send the examples of client number `client` to `process`, which trains with them.

        Returns the process's update and the number of examples. `reader` names the site's function
        that reads the examples. An error in this function is raised. Raises `SiteRefused` if
        `process` fails.
        """
        due = self._job.training.report_length(len(self.model))
        common = encode(self._common)
        process.send({"job": self._job.to_yaml(), "client": client, "common": common})
        train = load(reader, _targets(process.receive(_SMALL))).train
        process.send({"x": code_child.packed(train.x), "y": code_child.packed(train.y)})
        answer = process.receive(4 * due + _SMALL)
        try:
            only_fields(answer, "update")  # type: ignore[arg-type]
            update = take_array(answer, "update", "float32", (due,))  # type: ignore[arg-type]
        except MessageInvalid as error:
            raise SiteRefused(f"the job's code returned no update: {error}") from None
        return np.array(update), len(train.y)

    def reported(self, protection: Protection, asked: Message) -> None:
        """Do nothing. Engines call this method after a report, for trainings that keep a state."""


def _targets(answer: Mapping[str, object]) -> Targets:
    """Return the kind of targets that the job's task needs, from the process's first answer.

    The process gives this answer before it receives any data.
    """
    for known in get_args(Targets):
        if answer == {"targets": known}:
            targets: Targets = known
            return targets
    raise SiteRefused("the job's code did not say what its targets are")


def _ended() -> SiteRefused:
    return SiteRefused("the job's code ended without an update")
