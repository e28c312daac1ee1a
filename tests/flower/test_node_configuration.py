"""A SuperNode that is configured wrongly: one sentence in its log says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedveil.entry import server_app
from fedveil.errors import DeploymentError, FedveilError, JobError, RunStopped
from fedveil.flower.job.signing_key_file import make_identity
from fedveil.flower.sealed_state import StateFolder
from fedveil.statistics import flower_app
from flower_parts import CLIENTS, PW, LocalGrid, app_of, context, job, serve

ACTIVE = {"name": "pw_encrypt", "pw_encrypt": {**PW["pw_encrypt"], "active_security": True}}  # type: ignore[dict-item]


@pytest.mark.parametrize("named", ["", "state", "./state", "~/state", 5, True])
def test_a_state_folder_that_a_restart_might_not_find_is_refused(
    named: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperNode that starts in another folder would begin a new account, with nothing spent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for make in (StateFolder.for_accounts, StateFolder.for_keys):
        with pytest.raises(DeploymentError, match=r"state-folder = .*an absolute path is needed"):
            make(named)
    assert not list(tmp_path.iterdir())


def test_a_client_of_a_relative_state_folder_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = job(rounds=1, protection="rr", deployment={"wait_s": 0.1, "start_clients": 1})
    app, _ = app_of(tmp_path / "app", settings)
    grid = LocalGrid(app, tmp_path / "state")
    grid.contexts[100].node_config["state-folder"] = "state-0"
    (record,) = serve(app, grid, tmp_path / "run").metrics
    assert record["reports"] == CLIENTS - 1
    assert "state-folder = 'state-0', an absolute path is needed" in caplog.text
    assert not (tmp_path / "state-0").exists()


def test_a_client_without_its_private_key_is_told_which_key_to_add(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = app_of(tmp_path / "app", job(rounds=1, protection=ACTIVE))
    roster = f'client-0: "{make_identity(tmp_path / "client.pem")}"\n'
    for file in (app / "roster.yaml", own := tmp_path / "own.yaml"):
        file.write_text(roster)
    grid = LocalGrid(app, tmp_path / "state")
    for node in grid.contexts.values():
        node.node_config["roster"] = str(own)
    with pytest.raises(RunStopped):
        serve(app, grid, tmp_path / "run")
    assert "needs this client's private key: add identity=" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{a: [b\n", "job.yaml, line 2"), ("ruonds: 2\n", "ruonds = 2 is not a known key")],
)
def test_a_server_shows_what_is_wrong_with_the_apps_job(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its sentence stands apart from the traceback that Flower logs."""
    app, _ = app_of(tmp_path / "app", job())
    grid = LocalGrid(app, tmp_path / "state")
    (app / "job.yaml").write_text(text)
    with pytest.raises(JobError):
        serve(app, grid, tmp_path / "run")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error: ")]
    assert sentence in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("asks", ["a job", "a question"])
def test_flower_logs_an_error_of_the_server_without_the_way_to_it(
    asks: str, tmp_path: Path
) -> None:
    """Flower logs the traceback of every error: the sentence was lost below forty lines."""
    app, _ = app_of(tmp_path / "app", job(deployment={"wait_s": 0.1}))
    grid = LocalGrid(app, tmp_path / "state", [0])
    make, why = server_app.make_app, "1 of 6 clients were connected"
    if asks == "a question":
        make, why = flower_app.server_app, "question.yaml cannot be read"
    with pytest.raises(FedveilError, match=why) as raised:
        make(app)(grid, context(0, {"folder": str(tmp_path / "run")}, {}))
    fedveils = [entry.path for entry in raised.traceback if "/fedveil/" in str(entry.path)]
    assert [path.name for path in map(Path, fedveils)] == [Path(make.__code__.co_filename).name]
    assert raised.value.__suppress_context__
    resumable = "resumes after the last complete round" in str(
        getattr(raised.value, "__notes__", "")
    )
    assert resumable == (asks == "a job")
