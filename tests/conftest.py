"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The tests' own processes share the cores: threads of torch's would be in each other's way.
os.environ["OMP_NUM_THREADS"] = "1"

from compile_once import compile_once
from long_tests import listed
from warm_workers import warm_workers as warm_workers

# They share compiled modules too, even where the machine keeps Python from writing them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
compile_once()
# Collecting the tests makes many objects, and frees few.
gc.disable()

# A killed process loses nothing that it wrote; only a power failure does. Syncing costs minutes.
os.fsync = lambda descriptor: None
# Tests make many small folders: in memory, where there is room for them.
if Path("/dev/shm").is_dir() and shutil.disk_usage("/dev/shm").free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

# The first call of a compiled loop compiles it; machines are noisy: no test is timed.
settings.register_profile("fedveil", deadline=None, derandomize=True)
settings.load_profile("fedveil")

Command = Callable[..., tuple[int, str, str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `-m long --turn 10/8` run an eighth of the long tests."""
    parser.addoption("--turn", metavar="N/PARTS", help="mark one part of the long tests alone")


@pytest.hookimpl(tryfirst=True)  # before -m chooses by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the long tests, and start processes late."""
    long_tests = set(listed(config.getoption("--turn")))
    for item in items:
        if item.nodeid in long_tests:
            item.add_marker("long")
    _start_processes_late(items)


def _start_processes_late(items: list[pytest.Item]) -> None:
    """Put the tests that start and kill processes late, but not last.

    A new process then finds the compiled code that other tests have cached, and other tests run
    while these wait.
    """
    late = [item for item in items if item.path.stem == "test_interruptions"]
    others = [item for item in items if item.path.stem != "test_interruptions"]
    place = len(others) * 5 // 6  # each worker begins with a third of its own
    items[:] = [*others[:place], *late, *others[place:]]


def pytest_collection_finish() -> None:
    """Spare every garbage collection from now on what the tests have imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed every generator, so that a test's draws do not depend on earlier tests.

    Models' weights are drawn from torch's generator, and Flower's clients from Python's.
    """
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)  # other devices have none here


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A test's own folder. Modules imported from it are forgotten: the next test has its own."""
    before = set(sys.modules)
    yield tmp_path
    inside = f"{tmp_path}{os.sep}"
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(inside):
            del sys.modules[name]


@pytest.fixture(scope="session")
def click_commands() -> Callable[..., Any]:
    """Make click's commands of the program's functions once: they keep nothing of a call."""
    import typer.main

    return cache(typer.main.get_command)


@pytest.fixture
def command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    warm_workers: None,
    click_commands: Callable[..., Any],
) -> Command:
    """Call the program in an empty folder: its exit status, and what it said where."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("typer.main.get_command", click_commands)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> tuple[int, str, str]:
        from fedveil.cli import main as cli

        monkeypatch.setattr(sys, "argv", ["fedveil", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """Record the clients that any ledger charges at the end of a round, by round."""
    from fedveil.privacy.ledger import Ledger

    told: dict[int, set[int]] = {}
    record = Ledger.record_many

    def spy(self: Ledger, *arguments: Any, **named: Any) -> None:
        if not named.get("ahead"):  # what an interrupted round would cost
            told.setdefault(named["round"], set()).update(map(int, named["clients"]))
        record(self, *arguments, **named)

    monkeypatch.setattr(Ledger, "record_many", spy)
    return told
