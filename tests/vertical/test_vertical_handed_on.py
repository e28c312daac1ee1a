"""The arguments of a vertical run in one process, and what reaches its parties."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedveil.entry import vertical
from fedveil.vertical import VerticalJob, one_process, resume, train


class Reached(Exception):
    """Stops a run where its parties are made or entered."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of arguments with which parties are made, each with its number of threads."""
    seen: list[Any] = []

    class Parties:
        def __init__(self, job: VerticalJob, old: Path | None, encoded: bool) -> None:
            seen.append((job.name, old, encoded, torch.get_num_threads()))

        def enter(self, folder: Any, stack: Any, progress: Any, say: Any) -> None:
            seen.append((folder.path, progress, say))
            raise Reached

    monkeypatch.setattr(vertical, "Parties", Parties)
    monkeypatch.setattr(one_process, "Parties", Parties)
    return seen


def small() -> VerticalJob:
    three = torch.get_num_threads() + 2
    return VerticalJob(name="small", task="vertical_parts:bottoms", threads=three)


def test_a_run_has_the_threads_the_encoding_and_the_listeners_that_were_asked_for(
    seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_num_threads()
    closed: list[str] = []

    def create(*asked: Any) -> Any:
        return SimpleNamespace(path=asked, close=lambda: closed.append("closed"))

    monkeypatch.setattr(vertical, "RunFolder", SimpleNamespace(create=create))
    with pytest.raises(Reached):
        train(small(), "out", progress=print, say=repr, encoded=True)  # type: ignore[arg-type]
    command = ("out", "small", "fedveil vertical run")
    assert seen == [("small", None, True, before + 2), (command, print, repr)]
    assert closed == ["closed"]
    assert torch.get_num_threads() == before


def test_a_resumed_run_has_them_too(seen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    folder = SimpleNamespace(path=Path("old"))
    monkeypatch.setattr(one_process, "reopen", lambda path, load, stack: (folder, small()))
    with pytest.raises(Reached):
        resume("old", progress=print, say=repr, encoded=True)  # type: ignore[arg-type]
    assert seen == [("small", Path("old"), True, before + 2), (Path("old"), print, repr)]
    assert torch.get_num_threads() == before
