"""The terminal output of a deployed job's server, without a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedveil.entry import server_app
from fedveil.errors import RunStopped
from fedveil.flower.job import server_app as job_app
from fedveil.flower.job.flower_engine import FOLDER
from flower_parts import job


class Display:
    """Notes what it is asked to show."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.told.append((name, *given))

    def __enter__(self) -> None:
        self.told.append("opened")

    def __exit__(self, *error: object) -> None:
        self.told.append("closed")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of what a server passes to its display. Its engine is the `start` below."""
    told: list[Any] = []
    monkeypatch.setattr(server_app, "read_job", lambda folder: job(rounds=7))
    monkeypatch.setattr(server_app, "run_path", lambda job, named: Path("runs", named))
    monkeypatch.setattr(server_app, "read_run", lambda folder: f"what was read in {folder}")
    monkeypatch.setattr(server_app, "open_folder", lambda path, job: (path, job.rounds))
    monkeypatch.setattr(server_app, "FlowerEngine", lambda grid, folder: (grid, folder))

    def display(console: Any, rounds: int) -> Display:
        told.append((console.width, console.is_terminal, rounds))
        return Display(told)

    monkeypatch.setattr(server_app, "RunDisplay", display)
    return told


def serve() -> Any:
    return server_app.serve(Path("app"), "grid", SimpleNamespace(run_config={FOLDER: "third"}))


def test_a_server_tells_how_it_starts_what_it_warns_of_and_how_it_ends(
    told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(job: Any, engine: Any, opened: Any, stack: Any, *, warn: Any, **_: Any) -> Any:
        told.append((job.rounds, engine, opened()))
        warn("a thin promise")
        return SimpleNamespace(run=lambda show: show("a record") or run)

    run = SimpleNamespace(folder="the run")
    monkeypatch.setattr(server_app, "start", start)
    assert serve() is run
    assert told == [
        (200, False, 7),
        ("starting", "waiting for clients and reports of round 1/7"),
        "opened",
        (7, ("grid", Path("app")), (Path("runs/third"), 7)),
        ("warn", "a thin promise"),
        ("show", "a record"),
        "closed",
        ("summary", "what was read in the run"),
    ]


def test_a_server_that_fails_says_why_and_how_to_go_on_in_one_line(
    told: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = RunStopped("[bold]client 3 " + 60 * "waits, ")
    error.add_note("start it again")

    def start(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(server_app, "start", start)
    with pytest.raises(RunStopped):
        serve()
    assert capsys.readouterr().out == f"error: {error}; start it again\n"
    assert told[-1] == "closed"


def test_an_installed_app_serves_the_job_of_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(server_app, "serve", lambda *given: served.append(given))
    grid: Any = "grid"
    context: Any = "context"
    for folder in (tmp_path / "apps" / "mine", str(tmp_path / "apps" / "other")):
        job_app(folder)(grid, context)
        assert served.pop() == (Path(folder), grid, context)
