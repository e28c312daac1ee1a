"""A run's account is refused by every page if it is not the one in the run's log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedveil
from fedveil.errors import RunFolderError
from fedveil.federated.job import Job
from fedveil.pages.read_run import read_run
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import ACCOUNTS
from fedveil.record.logged_account import check_logged


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = Job.read(
        {
            "rounds": 2,
            "model": "logistic",
            "clients": {"number": 12},
            "protection": {"name": "dp_encrypt"},
            "simulation": {"workers": 0},
        },
        [],
    )
    return fedveil.simulate(job, tmp_path_factory.mktemp("made") / "run").folder


def edited(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**line, "epsilon": line["epsilon"] / 2}]


@pytest.mark.parametrize("edit", [edited, lambda line: [line, line], lambda line: []])
def test_an_edited_account_is_refused_with_its_log_untouched(
    edit: Callable[[dict[str, Any]], list[dict[str, Any]]], ended: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(ended, tmp_path / "copy"))
    assert read_run(folder).accounts
    (line,) = map(json.loads, (folder / ACCOUNTS).read_text().splitlines())
    (folder / ACCOUNTS).write_text("".join(f"{json.dumps(each)}\n" for each in edit(line)))
    with pytest.raises(RunFolderError, match=r"accounts\.jsonl is not the account in"):
        read_run(folder)


def test_a_run_that_goes_on_may_have_written_its_account_after_its_log(
    ended: Path, tmp_path: Path
) -> None:
    """A page of an active run reads the files while they change."""
    folder = Path(shutil.copytree(ended, tmp_path / "copy"))
    with (folder / "events.log").open("a") as log:
        log.write("2026-01-05T10:00:00 went on after round 2\n")
    (folder / "events.chain").unlink()
    (folder / ACCOUNTS).unlink()
    assert not read_run(folder).accounts


def test_a_session_that_finished_without_an_account_leaves_none() -> None:
    """A run that its results ended early has a line that the resumed run has not."""
    early = Line(2.5, 1e-5, "a run that ended early")
    events = [
        f"0 {text}" for text in ("began: fedveil", str(early), "finished after round 3: early")
    ]
    resumed = [*events, "0 went on after round 3", "0 finished after round 7: the last"]
    assert not check_logged(Path("run"), [early], events)
    assert not check_logged(Path("run"), [], resumed)
    with pytest.raises(RunFolderError, match="is not the account in"):
        check_logged(Path("run"), [early], resumed)
    assert check_logged(Path("run"), [early], [*events, "0 went on after round 3"])
