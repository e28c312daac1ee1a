"""A Flower app in one process: real ClientApps with a grid that encodes every message."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from fedveil.flower import ProtectedStrategy

RUN = 7
Arrays = dict[str, np.ndarray]
Train = Callable[[Arrays, int], tuple[Arrays, dict[str, Any]]]


def record_of(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Return an ArrayRecord of NumPy arrays."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def arrays_of(record: ArrayRecord) -> Arrays:
    """Return the NumPy arrays of a record."""
    return {name: array.numpy() for name, array in record.items()}


def over_the_wire(message: Message) -> Message:
    """Return the message as the receiver gets it: encoded and decoded by Flower's own objects."""
    contents = {i: thing.deflate() for i, thing in get_all_nested_objects(message).items()}
    copy = inflate_object_from_contents(message.object_id, contents)
    copy.metadata.__dict__["_message_id"] = message.metadata.message_id
    return copy


class Node:
    """A SuperNode: one ClientApp and its context."""

    def __init__(
        self,
        node_id: int,
        app: ClientApp,
        run_config: Mapping[str, Any] | None = None,
        node_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.app = app
        self.context = Context(
            RUN, node_id, dict(node_config or {}), RecordDict(), dict(run_config or {})
        )

    def answer(self, message: Message) -> Message:
        """Return the app's reply, or an error message if the app raises, as Flower does."""
        try:
            return self.app(message, self.context)
        except Exception as error:
            return Message(Error(2, f"{type(error)}: {error}"), reply_to=message)


class FakeGrid(Grid):
    """Delivers messages at once, and replies in reverse order.

    `tamper` is called with every message before its client receives it, and drops it by returning
    None; `tamper_reply` is called with every reply before the server receives it.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        # Flower sets this in a ServerApp's process and needs it to create messages.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        self.nodes = {node.context.node_id: node for node in nodes}
        self.silent: set[int] = set()
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.most_pulled = 0
        self.tamper: Callable[[Message], Message | None] = lambda message: message
        self.tamper_reply: Callable[[Message], Message] = lambda reply: reply
        self._ids = itertools.count(1)
        self._waiting: dict[str, Message] = {}

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=RUN)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self._ids)}"
            ids.append(message.metadata.message_id)
            self._deliver(message)
        return ids

    def _deliver(self, message: Message) -> None:
        received = self.tamper(over_the_wire(message))
        if received is None or message.metadata.dst_node_id in self.silent:
            return
        self.sent.append(deepcopy(received))
        reply = over_the_wire(self.nodes[message.metadata.dst_node_id].answer(received))
        self.replies.append(reply)
        self._waiting[message.metadata.message_id] = self.tamper_reply(deepcopy(reply))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ready = [i for i in message_ids if i in self._waiting]
        self.most_pulled = max(self.most_pulled, len(ready))
        return [self._waiting.pop(i) for i in reversed(ready)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def client_app(train: Train, mods: Sequence[Any] = (), calls: list[int] | None = None) -> ClientApp:
    """Return an app as in Flower's quickstart: arrays and a config in, arrays and metrics out."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        if calls is not None:
            calls.append(context.node_id)
        assert set(message.content) == {"arrays", "config"}, "the app sees its own records alone"
        arrays, metrics = train(arrays_of(message.content["arrays"]), context.node_id)
        content = RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"loss": 0.5, "accuracy": 0.25, "num-examples": 10})
        extra = ConfigRecord({"secret": "text"})
        return Message(RecordDict({"metrics": metrics, "extra": extra}), reply_to=message)

    @app.query()
    def _query(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    return app


def charged_at_last(strategy: ProtectedStrategy) -> set[int]:
    """Return the clients that the ledger has charged for the last round, now that it has ended."""
    rounds = strategy.ledger._open
    return {int(node) for members in rounds[max(rounds)].values() for node in members}
