"""A site's tasks of its SuperNode, without a SuperNode: what is taken, answered and closed."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedveil.errors import SiteError
from fedveil.site import supernode

PORT = 8123


class Steps:
    """Stands for Flower's client of the SuperNode, and notes what is done with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: str = "") -> None:
        self.done: list[Any] = []
        self.answer = SimpleNamespace(answer=self._answer)

        def step(name: str) -> Any:
            def noted(*arguments: Any, **named: Any) -> Any:
                self.done.append((name, *arguments, *named.values()))
                if name == fails:
                    raise ValueError("the node is gone")
                return "message", "context", "run", SimpleNamespace(content=b"archive")

            return noted

        for name in ("pull_task_input", "push_message", "push_task_output"):
            monkeypatch.setattr(supernode, name, step(name))
        beat = SimpleNamespace(start=step("start"), stop=step("stop"))
        monkeypatch.setattr(supernode, "HeartbeatSender", lambda beats: beat)
        monkeypatch.setattr(supernode, "make_task_heartbeat_fn_http", lambda client: client)
        monkeypatch.setattr(supernode.time, "sleep", step("sleep"))

    def _answer(self, read: Any, message: Any, context: Any) -> str:
        self.done.append(("answer", read(), message, context))
        return "reply"


def test_a_message_is_answered_by_the_door_and_handed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, client = Steps(monkeypatch), object()
    supernode._answer(client, steps.answer)  # type: ignore[arg-type]
    handed_in = ("push_task_output", client, "context", supernode.SubStatus.COMPLETED, "")
    assert steps.done == [
        ("start",), ("pull_task_input", client), ("answer", b"archive", "message", "context"),
        ("push_message", client, "reply", "context"), handed_in, ("stop",),
    ]  # fmt: skip


@pytest.mark.parametrize("fails", ["pull_task_input", "push_message"])
def test_the_heartbeat_stops_if_a_message_is_lost(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    steps = Steps(monkeypatch, fails=fails)
    with pytest.raises(ValueError, match="the node is gone"):
        supernode._answer(object(), steps.answer)  # type: ignore[arg-type]
    assert steps.done[-1] == ("stop",)


@pytest.mark.parametrize("fails", ["", "push_message"])
def test_a_task_is_taken_with_its_own_token(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    steps, made, lines = Steps(monkeypatch, fails=fails), [], []
    client = SimpleNamespace(close=lambda: steps.done.append("closed"))
    monkeypatch.setattr(supernode, "_client", lambda *words: (made.append(words), client)[1])
    monkeypatch.setattr(supernode, "RuntimeTokenHttpInterceptor", lambda token: token)
    kinds: list[Any] = []

    def tasks(token: str) -> Any:
        taken = SimpleNamespace(HasField=lambda name: name == "task", token=token)
        ask = lambda request: (kinds.append(list(request.supported_task_types)), taken)[1]  # noqa: E731
        return SimpleNamespace(AcquireTask=ask)

    log: Any = SimpleNamespace(line=lines.append)
    supernode._look(tasks(""), steps.answer, log, PORT)  # type: ignore[arg-type]
    assert (steps.done, made) == ([("sleep", supernode._LOOK_S)], [])
    supernode._look(tasks("secret"), steps.answer, log, PORT)  # type: ignore[arg-type]
    ((port, _, token),) = made
    assert (port, token, steps.done[-1]) == (PORT, "secret", "closed")
    assert lines == (["lost a message: ValueError: the node is gone"] if fails else [])
    assert kinds == [[supernode.TaskType.CLIENT_APP, supernode.TaskType.AGENT_APP]] * 2


def test_a_supernode_that_ends_or_never_listens_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, now = Steps(monkeypatch), iter(range(0, 900, 25))
    monkeypatch.setattr(supernode.time, "monotonic", lambda: float(next(now)))
    with socket.create_server(("127.0.0.1", 0)) as listens:
        node: Any = SimpleNamespace(poll=lambda: None)
        port = listens.getsockname()[1]
        supernode._wait_for(node, port)
    assert steps.done == []
    for code in (None, 1):
        node = SimpleNamespace(poll=lambda code=code: code)
        with pytest.raises(SiteError, match="the SuperNode did not start"):
            supernode._wait_for(node, port)
        assert len(steps.done) == 2  # in a minute, and no more after its end
