"""An exception in a user's own protection is one sentence in a deployed client's log."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from fedveil.errors import InvalidValue, RunStopped
from fedveil.flower import ProtectedStrategy, ProtectMod
from flower_app_parts import FakeGrid, Node, client_app, record_of
from flower_parts import CLIENTS, LocalGrid, app_of, job, serve
from folders import DOCS

PAGE = (DOCS / "own-protection.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
NAME = "ready:Ready"
#: A place in the page's example, and the same place with an error. Each runs on clients alone.
FAULTS = {
    "a phase without an update": ("return {}", "return 1 / 0"),
    "the client's half": ("return ReadyClient(", "return 1 / 0, ReadyClient("),
    "what is kept": ("class ReadyClient(PhasedClient):\n", "{0}    def keep(self): return 1 / 0\n"),
    "the report": ('return {"update":', 'return 1 / 0, {"update":'),
}
#: An error for all updates but the one of zero, which is then reported.
AT_UPDATES = ('return {"update":', 'return update.any() and 1 / 0 or {"update":')


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ready", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    with caplog.at_level(logging.WARNING, "flwr"):
        yield


def written(folder: Path, fault: tuple[str, str]) -> str:
    """Write the example with a fault, and return the sentence that names it, as a pattern."""
    before, after = fault
    spoilt = CODE.replace(before, after.format(before) if "{0}" in after else after)
    (folder / "ready.py").write_text(spoilt)
    line = 1 + next(n for n, text in enumerate(spoilt.splitlines()) if "1 / 0" in text)
    return (
        f"protection.name = {NAME}: it raised ZeroDivisionError: division by zero "
        rf"\(\S*ready\.py, line {line}\)"
    )


def lines(caplog: pytest.LogCaptureFixture, begins: str) -> set[str]:
    """Return the log's lines that begin so. None has a traceback."""
    found = [record for record in caplog.records if record.getMessage().startswith(begins)]
    assert [record.exc_info for record in found] == [None] * len(found)
    return {record.getMessage() for record in found}


@pytest.mark.parametrize("where", FAULTS)
def test_in_a_deployed_job(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sentence = written(tmp_path, FAULTS[where])
    app, _ = app_of(tmp_path / "app", job(protection=NAME))
    grid = LocalGrid(app, tmp_path / "state")
    with pytest.raises(RunStopped, match="every client of round 1 failed"):
        serve(app, grid, tmp_path / "run")
    (said,) = lines(caplog, "this client cannot answer: ")
    assert re.fullmatch(f"this client cannot answer: {sentence}", said)
    assert {reply.error.reason for reply in grid.replies if reply.has_error()} == {"failed"}
    assert "1 / 0" not in caplog.text


def test_a_deployed_client_reports_zero_for_an_update_that_its_protection_cannot_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = written(tmp_path, AT_UPDATES)
    app, _ = app_of(tmp_path / "app", job(protection=NAME, rounds=1))
    result = serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert result.metrics[0]["reports"] == CLIENTS
    (said,) = lines(caplog, "an update of zero is reported: ")
    assert re.fullmatch(f"an update of zero is reported: {sentence}", said)
    assert "1 / 0" not in caplog.text


def trained(arrays: dict[str, np.ndarray], _: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return {name: array + 0.25 for name, array in arrays.items()}, {"num-examples": 5}


def federation() -> tuple[ProtectedStrategy, FakeGrid]:
    nodes = (Node(n, client_app(trained, [ProtectMod(protection=NAME)])) for n in range(1, 4))
    return ProtectedStrategy(FedAvg(), protection=NAME), FakeGrid(nodes)


@pytest.mark.parametrize("where", FAULTS)
def test_in_somebodys_flower_app(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = written(tmp_path, FAULTS[where])
    strategy, grid = federation()
    strategy.start(grid, record_of({"w": np.zeros(4, np.float32)}), num_rounds=1)
    assert strategy.rounds[0].reports == 0
    (reason,) = strategy.rounds[0].failed
    assert "ZeroDivisionError" not in reason
    (said,) = lines(caplog, "fedveil: this client sends no report: ")
    assert re.fullmatch(f"fedveil: this client sends no report: {sentence}", said)


def test_a_constructor_that_raises_in_somebodys_flower_app(tmp_path: Path) -> None:
    init = "{0}        return 1 / 0\n"
    written(tmp_path, ("    def __init__(self, settings, context):\n", init))
    strategy, grid = federation()
    with pytest.raises(InvalidValue) as said:
        strategy.start(grid, record_of({"w": np.zeros(4, np.float32)}), num_rounds=1)
    assert str(said.value).startswith(
        f"protection = '{NAME}': the class raised ZeroDivisionError: division by zero ("
    )
