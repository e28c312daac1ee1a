"""A grid in this process that runs the real ClientApp for every message, and jobs for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedveil.entry import server_app
from fedveil.federated.job import Job
from fedveil.flower.job import client_app
from fedveil.flower.job.deploy import deployable, write_app

CLIENTS = 6

PW = {
    "name": "pw_encrypt",
    "pw_encrypt": {"reconstruct_secrets_threshold": 4, "cipher_time_window": 1000},
}

SHARES = {
    "name": "distributed_dp",
    "distributed_dp": {"reconstruct_secrets_threshold": 4, "cipher_time_window": 1000},
}
MOVING = {
    "name": "distributed_dp",
    "distributed_dp": {**SHARES["distributed_dp"], "clip_quantile": 0.4},
}
#: All protections, and a clip that moves.
POSITIONS: list[Any] = [
    "not_encrypt", "dp_encrypt", "central_gaussian", "signds", "rr", "oue", PW, SHARES, MOVING,
]  # fmt: skip


def named(position: Any) -> str:
    return position if isinstance(position, str) else position["name"]


def weights(result: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in result.model.state_dict().items()}


def same(one: Any, other: Any) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(a[k].tobytes() == b[k].tobytes() for k in a)


def job(**changes: Any) -> Job:
    """Return a job of six owners of a small data set, with all of them in every round."""
    settings: dict[str, Any] = {
        "name": "small",
        "rounds": 2,
        "clients": {"number": CLIENTS, "fraction": 1.0},
        "data": {"name": "parts:data", "split": "iid"},
        "model": "parts:plain",
        "training": {"epochs": 1, "batch_size": 10},
        "simulation": {"workers": 0},
    }
    waiting = {"wait_s": 5.0, "answer_s": 5.0, **changes.pop("deployment", {})}
    return Job(**{**settings, "deployment": waiting, **changes})


def app_of(folder: Path, settings: Job, *, seeded: bool = False) -> tuple[Path, Job]:
    """Write the app of a job to `folder`. Returns its path, and the job that is deployed."""
    deployed = deployable(settings, seeded=seeded)
    write_app(folder, deployed)
    return folder, deployed


def context(node: int, run_config: dict[str, Any], node_config: dict[str, Any]) -> Context:
    """Return the context that Flower passes to an app."""
    return Context(
        run_id=1, node_id=node, node_config=node_config, state=RecordDict(), run_config=run_config
    )


class LocalGrid(Grid):
    """SuperNodes of this process. Node 100 + N is client N.

    `tamper` is called with every message before its client receives it, and with every reply before
    the server receives it. It returns the message to deliver, or None to drop it.
    """

    def __init__(self, app: Path, state: Path, clients: Iterable[int] = range(CLIENTS)) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.app: ClientApp = client_app(app)
        self.contexts = {
            100 + n: context(100 + n, {}, {"client": n, "state-folder": str(state), "seeded": True})
            for n in clients
        }
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.tamper: Callable[[Message], Message | None] = lambda message: message
        self._ready: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        name = str(uuid.uuid4())
        message.metadata.__dict__["_message_id"] = name
        self.sent.append(message)
        node = message.metadata.dst_node_id
        passed = self.tamper(message)
        if passed is None:
            return name
        if node not in self.contexts:
            reply: Message | None = Message(Error(5, "node unavailable"), reply_to=passed)
        else:
            reply = self.app(travelled(passed), self.contexts[node])
            self.replies.append(reply)
            reply = self.tamper(reply)
        if reply is not None:
            self._ready[name] = travelled(reply)
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._ready.pop(name) for name in message_ids if name in self._ready]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: Any = None) -> Any:
        raise AssertionError("it holds a list of all replies")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated")

    def set_run(self, run: Any) -> None:
        raise AssertionError("not needed")

    @property
    def run(self) -> Any:
        raise AssertionError("not needed")


def travelled(message: Message) -> Message:
    """Return the message with its records encoded and decoded."""
    if message.has_content():
        message.content = recorddict_from_proto(recorddict_to_proto(message.content))
    return message


def serve(app: Path, grid: LocalGrid, folder: Path) -> Any:
    """Run the app's ServerApp with the grid."""
    return server_app.serve(app, grid, context(0, {"folder": str(folder)}, {}))


def kinds(messages: Sequence[Message]) -> list[str]:
    """Return the kinds of the messages, in order and without repetition."""
    return list(dict.fromkeys(message.metadata.message_type for message in messages))
