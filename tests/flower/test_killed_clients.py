"""A client's process is killed in the middle of an answer: it drops out of this round alone."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as Encoded
from flwr.supercore.exit import register_signal_handlers

from fedveil.base.message import decode, encode, take_array
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.flower.job.client_training import Training
from fedveil.record.sealed_message import unsealed
from flower_parts import CLIENTS, PW, LocalGrid, app_of, job, serve

MORTAL, ROUND, ROUNDS = 1, 2, 3
RR = {"name": "rr", "unary": {"eps": 0.5}}


class MortalGrid(LocalGrid):
    """Makes each answer of client `MORTAL` in a process of its own, and kills one of these.

    In round `ROUND`, the process that answers `phase` dies just before it opens, renames or deletes
    a file whose name ends with `at`. If `after` is True, it dies at the first change of a file
    after another file was renamed to or from such a name.
    """

    def __init__(self, app: Path, state: Path, phase: str, at: str, after: bool) -> None:
        super().__init__(app, state)
        self._answer, self._phase, self._at, self._after = self.app, f"train.{phase}", at, after
        self.app = self._apart  # type: ignore[assignment]
        #: The number of processes that died, and the answers of each client in each round.
        self.died, self.left = 0, Counter[tuple[int, str, str]]()

    def _apart(self, message: Message, context: Context) -> Message:
        told = message.metadata
        mine = context.node_id == 100 + MORTAL
        reply = self._forked(message, context) if mine else self._answer(message, context)
        if not reply.has_error():
            self.left[context.node_id - 100, told.group_id, told.message_type] += 1
        return reply

    def _forked(self, message: Message, context: Context) -> Message:
        told = message.metadata
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(read)
            try:
                if (told.group_id, told.message_type) == (str(ROUND), self._phase):
                    _die(self._at, self._after)
                self._send(write, self._answer(message, context), context)
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            sent = pipe.read()
        if os.WIFSIGNALED(os.waitpid(process, 0)[1]):
            self.died += 1
            return Message(Error(3, "the process was killed"), reply_to=message)
        found = decode(sent)
        context.state = _records(found["state"])
        if found["error"]:
            return Message(Error(200, str(found["error"])), reply_to=message)
        return Message(_records(found["content"]), reply_to=message)

    def _send(self, pipe: int, reply: Message, context: Context) -> None:
        content = RecordDict() if reply.has_error() else reply.content
        said = {
            "error": reply.error.reason if reply.has_error() else "",
            "content": recorddict_to_proto(content).SerializeToString(),
            "state": recorddict_to_proto(context.state).SerializeToString(),
        }
        with os.fdopen(pipe, "wb") as file:
            file.write(encode(said))


def _records(sent: Any) -> RecordDict:
    encoded = Encoded()
    encoded.ParseFromString(bytes(sent))
    return recorddict_from_proto(encoded)


def _die(at: str, after: bool) -> None:
    """Kill this process before, or after, the change of a file whose name ends with `at`."""
    changed = [False]

    def seen(event: str, arguments: tuple[Any, ...]) -> None:
        changes = event in ("os.rename", "os.remove")
        if event == "open" and isinstance(arguments[2], int):
            changes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        name = str(arguments[0]) if changes else ""
        if changes and (changed[0] if after else name.endswith(at)):
            os.kill(os.getpid(), signal.SIGKILL)
        changed[0] |= event == "os.rename" and any(str(n).endswith(at) for n in arguments[:2])

    sys.addaudithook(seen)


@pytest.mark.parametrize(
    ("phase", "at", "after"),
    [
        ("advertise", ".key", False),
        ("share", ".key", False),
        ("share", ".key", True),
        ("masked", ".answered.part", False),
        ("masked", ".answered", True),
        ("masked", f"/{MORTAL}-{ROUND}", True),
        ("unmask", ".key", False),
    ],
)
def test_a_client_of_a_secure_sum_that_keeps_a_state(
    tmp_path: Path, phase: str, at: str, after: bool
) -> None:
    """No key is left behind, and the server's variate stays the mean of the clients' variates."""
    training = {"algorithm": "scaffold", "batch_size": 10}
    settings = job(
        rounds=ROUNDS, protection=PW, training=training, model="parts:linear",
        clients={"number": CLIENTS, "fraction": 1.0}, deployment={"wait_s": 0.1},
    )  # fmt: skip
    app, _ = app_of(tmp_path / "app", settings)
    grid = MortalGrid(app, tmp_path / "state", phase, at, after)
    records = serve(app, grid, tmp_path / "run").metrics
    assert grid.died == 1
    in_the_sum = CLIENTS if phase == "unmask" else CLIENTS - 1
    assert [record["reports"] for record in records] == [CLIENTS, in_the_sum, CLIENTS]
    assert [record["void"] for record in records] == [None] * ROUNDS
    assert not list((tmp_path / "state").glob("*.key*"))
    assert max(grid.left.values()) == 1
    saved = Checkpoint.at(tmp_path / "run")
    assert saved is not None
    kept = [_vector(path) for path in (tmp_path / "state").glob(f"*.kept/**/*-{ROUNDS}")]
    assert len(kept) == CLIENTS
    np.testing.assert_allclose(saved.weights[len(kept[0]) :], np.mean(kept, 0), atol=1e-3)
    assert np.linalg.norm(kept[0]) > 1e-2


def _vector(path: Path) -> Any:
    return take_array(unsealed(path.read_bytes()), "kept", np.float32, (None,))


@pytest.mark.parametrize(
    ("at", "after"), [(".reports.part", False), (".reports", True), (".account", True)]
)
def test_a_client_that_counts_its_reports_counts_no_fewer_than_have_left(
    tmp_path: Path, at: str, after: bool
) -> None:
    limited = {"max_epsilon": 400.0, "delta": 0.0}
    settings = job(rounds=ROUNDS, protection=RR, privacy=limited, deployment={"wait_s": 0.1})
    app, _ = app_of(tmp_path / "app", settings)
    grid = MortalGrid(app, tmp_path / "state", "report", at, after)
    run = serve(app, grid, tmp_path / "run")
    assert grid.died == 1
    assert [record["reports"] for record in run.metrics] == [CLIENTS, CLIENTS - 1, CLIENTS]
    for client in range(CLIENTS):
        (file,) = (tmp_path / "state").glob(f"*-{client}.reports")
        left = sum(n for (who, _, _), n in grid.left.items() if who == client)
        introductions, lost = 1, int(client == MORTAL and after)
        assert int(file.read_text()) == left - introductions + lost


ENDED, ANSWERED = 3, 4


def _status_of(answer: Callable[[], Message]) -> int:
    """Return the status of a process that answers as a `flwr-clientapp` does."""
    process = os.fork()
    if process == 0:
        status = ANSWERED
        try:
            register_signal_handlers(None, "the node ends")  # type: ignore[arg-type]
            answer()
        except SystemExit:
            status = ENDED
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@pytest.mark.parametrize("after_s", [None, 0.5])
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_client_that_is_told_to_end_reports_no_update_of_zero(
    by: int, after_s: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower raises SystemExit on a signal. As an error of training, it became a report of zero."""

    def told_to_end(*arguments: object) -> object:
        os.kill(os.getpid(), by)
        time.sleep(2)
        raise ValueError("the signal has ended nothing")

    waits = {"wait_s": 0.1, "answer_s": 1.0, "answer_after_s": after_s}
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=RR, deployment=waits))
    grid, statuses = LocalGrid(app, tmp_path / "state"), list[int]()

    def tamper(message: Message) -> Message | None:
        told = message.metadata
        if told.reply_to_message_id or (told.dst_node_id, told.group_id) != (100 + MORTAL, "1"):
            return message
        with monkeypatch.context() as patch:
            patch.setattr(Training, "update", told_to_end)
            statuses.append(_status_of(lambda: grid.app(message, grid.contexts[100 + MORTAL])))
        return None

    grid.tamper = tamper
    (record,) = serve(app, grid, tmp_path / "run").metrics
    assert statuses == [ENDED]
    assert (record["reports"], record["dropped"]) == (CLIENTS - 1, 1)
    (file,) = (tmp_path / "state").glob(f"*-{MORTAL}.reports")
    assert file.read_text() == "1"  # a charge is never taken back
