"""`fedveil vertical check`: whose log was edited, and how many others say so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.record.event_log import EventLog, anchor

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three parties. Two others have recorded the bank's log, and the shop the leader's.

    A fourth party keeps its log in a folder of its own.
    """
    logs = {}
    for party in ("bank", "lead", "shop"):
        (tmp_path / "run" / party).mkdir(parents=True)
        logs[party] = EventLog(tmp_path / "run" / party / "events.log")
        for number in range(3):
            logs[party].append(f"0 step {number} of {party}")
    (tmp_path / "elsewhere").mkdir()
    logs["far"] = EventLog(tmp_path / "elsewhere" / "events.log")
    heads = {party: log.head for party, log in logs.items()}
    for party, others in {"lead": ["bank"], "shop": ["bank", "lead"], "far": ["bank"]}.items():
        for other in others:
            logs[party].append(f"0 {anchor(other, heads[other])}")
    for log in logs.values():
        log.close()
    return tmp_path / "run"


def test_each_log_is_told_with_the_records_of_it_elsewhere(command: Command, run: Path) -> None:
    code, out, err = command("vertical", "check", "run")
    whole = "no line was removed or edited"
    assert (code, err, out.splitlines()) == (0, "", [
        f"run/bank/events.log: {whole}; it agrees with 2 records in other logs",
        f"run/lead/events.log: {whole}; it agrees with 1 record in other logs",
        f"run/shop/events.log: {whole}",
    ])  # fmt: skip
    against = ("--against", "elsewhere/events.log")
    _, out, _ = command("vertical", "check", "run", *against)
    assert f"run/bank/events.log: {whole}; it agrees with 3 records in other logs" in out
    _, out, _ = command("vertical", "check", "run", "--json")
    logs = [f"run/{party}/events.log" for party in ("bank", "lead", "shop")]
    assert json.loads(out) == {"logs": logs, "bundles": [], "unchecked": {}}


def test_a_log_that_was_written_anew_contradicts_the_others(
    command: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a chain of its own it is whole by itself: only the other parties' records tell."""
    for file in (run / "bank").iterdir():
        file.unlink()
    forged = EventLog(run / "bank" / "events.log")
    for number in range(3):
        forged.append(f"0 another step {number}")
    forged.close()
    code, out, err = command("vertical", "check", "run")
    assert code == 1
    assert "run/bank" not in out
    assert "run/bank/events.log" in err
    assert len(out.splitlines()) == 2
    monkeypatch.chdir(run / "bank")
    code, out, err = command("vertical", "check", ".", "--against", "../lead/events.log")
    assert (code, out) == (1, "")
    assert "another party saw other lines: they ended in " in err
    monkeypatch.chdir(run.parent)
    (run / "bank" / "events.chain").unlink()
    (run / "lead" / "events.log").write_text("")
    assert command("vertical", "check", "run")[0] == 1


def test_a_log_that_is_compared_with_nothing_is_not_called_whole(
    command: Command, run: Path
) -> None:
    (run / "bank").rename(run.parent / "copy")
    for path, other in (("copy", "elsewhere/events.log"), ("run/shop", "run/shop/events.log")):
        code, _, err = command("vertical", "check", path, "--against", other)
        assert code == 1
        assert "and " + path + " has none of these logs: a log's folder must have" in err.replace(
            "\n", " "
        )
    assert command("vertical", "check", "copy")[0] == 0


def test_a_folder_without_logs_has_nothing_to_check(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = command("vertical", "check", "empty")
    assert code == 1
    assert err == "error: empty has no events.log and no model bundle to check\n"


@pytest.mark.parametrize("name", ["run/lead/events.log", "run/lead/events.chain", "other.log"])
def test_a_log_that_is_no_file_is_one_sentence(command: Command, run: Path, name: str) -> None:
    (run.parent / name).unlink(missing_ok=True)
    os.mkfifo(run.parent / name)
    against = ("--against", name) if name == "other.log" else ()
    code, _, err = command("vertical", "check", "run", *against)
    assert code == 1
    assert err == f"error: {name} cannot be read: it is a named pipe, not a regular file\n"
