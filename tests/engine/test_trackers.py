"""MLflow and Weights & Biases, against the files that they write themselves; where installed."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

import fedveil
from fedveil.engine.callbacks import Beginning, Callback
from fedveil.engine.trackers import MLflow, WandB, _flat
from fedveil.errors import MissingExtra
from fedveil.federated.job import Job


def job(tracker: str) -> Job:
    return Job(
        name="tracked",
        rounds=2,
        clients={"number": 4, "fraction": 0.5},
        data={"name": "parts:data"},
        model="parts:linear",
        training={"epochs": 1},
        simulation={"workers": 0},
        record={"callbacks": [f"fedveil.engine.trackers:{tracker}"]},
    )


def test_mlflow_has_the_jobs_keys_and_every_rounds_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = fedveil.simulate(job("MLflow"), tmp_path / "run")
    with sqlite3.connect(run.folder / "mlflow.db") as base:
        found = base.execute("select step, value from metrics where key = 'loss' order by step")
        assert found.fetchall() == [(r["round"], pytest.approx(r["loss"])) for r in run.metrics]
        rounds = base.execute("select value from params where key = 'rounds'").fetchall()
        assert rounds == [("2",)]
        assert base.execute("select status from runs").fetchall() == [("FINISHED",)]


def test_wandb_writes_offline_into_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run = fedveil.simulate(job("WandB"), tmp_path / "run")
    wandb.teardown()  # its own process has written all then
    (file,) = (run.folder / "wandb").glob("offline-run-*/run-*.wandb")
    written = file.read_bytes()
    assert b"epsilon_run_most_drawn" in written
    assert written.count(b"accuracy") >= 2


class Recorded:
    """Stands for a tracker's client: records each call's name and arguments."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: self.calls.append((name, values, named))


@pytest.mark.parametrize(("run", "code", "status"), [(None, 1, "KILLED"), ("a run", 0, "FINISHED")])
def test_a_tracker_learns_whether_the_run_was_interrupted(run: Any, code: int, status: str) -> None:
    """Without the packages: only the arguments of their functions."""
    client, figures = Recorded(), {"round": 7, "loss": 0.5, "reports": 3, "void": None}
    wandb, mlflow = WandB.__new__(WandB), MLflow.__new__(MLflow)
    wandb._run = mlflow._mlflow = client
    for tracker in (wandb, mlflow):
        tracker.round(figures)
        tracker.end(run)
    assert client.calls == [
        ("log", ({"loss": 0.5, "reports": 3.0},), {"step": 7}),
        ("finish", (), {"exit_code": code}),
        ("log_metrics", ({"loss": 0.5, "reports": 3.0},), {"step": 7}),
        ("end_run", (status,), {}),
    ]


def test_a_tracker_gets_every_key_with_its_whole_path() -> None:
    keys = dict(_flat({"seed": 3, "a": {"b": {"c": 1.5}, "d": [2]}}))
    assert keys == {"seed": "3", "a.b.c": "1.5", "a.d": "[2]"}


@pytest.mark.parametrize("unset", ["", None])
def test_a_tracker_keeps_its_data_in_the_runs_folder_unless_the_user_says_otherwise(
    unset: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began = Beginning(job("WandB"), Path("runs") / "first", 0)
    held = began.job.model_dump(mode="json")
    calls = []
    for name, variable, own in (
        ("mlflow", "MLFLOW_TRACKING_URI", "http://tracker"), ("wandb", "WANDB_MODE", "online"),
    ):  # fmt: skip
        client = Recorded()
        monkeypatch.setitem(sys.modules, name, client)
        for value in (unset, own):
            if value is None:
                monkeypatch.delenv(variable, raising=False)
            else:
                monkeypatch.setenv(variable, value)
            (MLflow if name == "mlflow" else WandB)().begin(began)
        calls.append(client.calls)
    place = ("set_tracking_uri", (f"sqlite:///{tmp_path.resolve()}/runs/first/mlflow.db",), {})
    usual = [
        ("set_experiment", ("tracked",), {}),
        ("start_run", (), {"run_name": "first"}),
        ("log_params", (dict(_flat(held)),), {}),
    ]
    assert calls[0] == [place, *usual, *usual]
    named = {"project": "tracked", "name": "first", "dir": "runs/first", "config": held}
    assert [given for name, _, given in calls[1] if name == "init"] == [
        {**named, "mode": mode, "settings": None} for mode in ("offline", "online")
    ]


@pytest.mark.parametrize("tracker", [MLflow, WandB])
def test_a_missing_tracker_is_told_with_what_installs_it(
    tracker: type[Callback], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tracker.__name__.lower()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as missing:
        tracker()
    needs = f"record.callbacks needs the package {package}: pip install 'fedveil[trackers]'"
    assert str(missing.value).startswith(needs)
