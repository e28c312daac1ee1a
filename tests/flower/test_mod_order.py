"""`ProtectMod` comes first among a client app's mods, through Flower's own chain of mods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, message_size_mod
from flwr.serverapp.strategy import FedAvg

from fedveil.flower import ProtectedStrategy, ProtectMod
from flower_app_parts import Arrays, FakeGrid, Node, client_app, record_of

RR = {"protection": "rr", "eps": 4.0}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def train(arrays: Arrays, node: int) -> tuple[Arrays, dict[str, Any]]:
    return {"w": arrays["w"] + np.float32(0.5)}, {"num-examples": 5}


def rounds(app: ClientApp) -> tuple[ProtectedStrategy, FakeGrid]:
    """Run one round of three clients with this app."""
    grid = FakeGrid(Node(n, app) for n in range(1, 4))
    strategy = ProtectedStrategy(FedAvg(), **RR)
    strategy.start(grid, record_of({"w": np.zeros(30, np.float32)}), num_rounds=1, timeout=5)
    return strategy, grid


def spy(message: Message, context: Context, call_next: Any) -> Message:
    """Act as a user's own mod."""
    return call_next(message, context)


@pytest.mark.parametrize(
    ("outside", "name"), [(spy, "spy"), (LocalDpMod(1.0, 1.0, 1.0, 1e-5), "LocalDpMod")]
)
def test_a_mod_before_it_is_refused_by_name_and_the_app_is_never_asked(
    outside: Any, name: str
) -> None:
    calls: list[int] = []
    strategy, grid = rounds(client_app(train, [outside, ProtectMod()], calls))
    (reason,) = strategy.rounds[0].withheld
    assert reason == (
        f"{name} stands before ProtectMod among the client app's mods and would see and change the "
        f"report in place of the arrays: ClientApp(mods=[ProtectMod(...), ...]), and no other mod "
        f"before it"
    )
    assert calls == []
    assert all(reply.has_error() for reply in grid.replies)


def test_so_is_one_before_a_mod_of_the_function() -> None:
    """Flower calls the mods of the app before those of its functions."""
    app = ClientApp(mods=[spy])

    @app.train(mods=[ProtectMod()])
    def _train(message: Message, context: Context) -> Message:
        raise AssertionError

    (reason,) = rounds(app)[0].rounds[0].withheld
    assert reason.startswith("spy stands before ProtectMod")


def test_a_mod_before_it_is_refused_for_other_messages_too() -> None:
    grid = FakeGrid([Node(1, client_app(train, [spy, ProtectMod()]))])
    content = RecordDict({"arrays": record_of({"w": np.zeros(3)}), "config": ConfigRecord()})
    for kind in ("evaluate", "query"):
        (reply,) = grid.send_and_receive([Message(content, 1, kind)])
        assert "spy stands before ProtectMod" in reply.error.reason


@pytest.mark.parametrize(
    "mods",
    [
        [ProtectMod()],
        [ProtectMod(), spy],
        [ProtectMod(), LocalDpMod(1.0, 1.0, 1.0, 1e-5)],
        [ProtectMod(), message_size_mod, spy],
    ],
)
def test_mods_after_it_are_welcome(mods: list[Any]) -> None:
    strategy, _ = rounds(client_app(train, mods))
    assert strategy.rounds[0].reports == 3
