"""Runs that end by what they measure, and runs that leave their best model."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.base import plain_text
from fedveil.engine.evaluation import ModelTest
from fedveil.engine.stopping import Stopping
from fedveil.errors import InvalidValue, JobError, MessageInvalid
from fedveil.federated.job import Job
from fedveil.federated.stopping_settings import StoppingSettings
from fedveil.pages.read_run import read_run
from fedveil.record.metric_names import USUAL
from fedveil.run_display import RunDisplay

#: The round after which the figure of `wandering` is best.
BEST = 4


def job(**changes: Any) -> Job:
    base: dict[str, Any] = {
        "rounds": 6,
        "clients": {"number": 4, "fraction": 0.5},
        "data": {"name": "parts:data"},
        "model": "parts:linear",
        "training": {"epochs": 1, "batch_size": 20, "lr": 0.3},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    return Job(**base | changes)


def measured(*figures: float, metric: str = "accuracy") -> list[dict[str, Any]]:
    """The records of rounds with these figures; NaN: not tested."""
    tested = [{} if f == -1 else {"loss": 1.0, "accuracy": 0.0} | {metric: f} for f in figures]
    return [{"round": number, **figure} for number, figure in enumerate(tested, start=1)]


def test_a_checkpoint_restores_the_best_model_of_the_records_alone() -> None:
    records, weights = measured(0.5, 0.75, 0.9, 0.6), np.arange(3, dtype=np.float32)
    best = Stopping(StoppingSettings(keep="best"), USUAL)
    for round in (2, 4):
        with pytest.raises(InvalidValue, match=rf"^round = {round} is outside \[3, 3\]"):
            best.restore({"round": round, "weights": weights}, records, 3)
        assert best.kept(weights) == (weights, None), "nothing was restored"
    best.restore({"round": 3, "weights": weights}, records, 3)
    assert best.kept(-weights)[0].tolist() == weights.tolist()


def test_a_target_ends_a_run() -> None:
    stopping = Stopping(StoppingSettings(target=0.9), USUAL)
    assert stopping.why(measured(0.5, 0.89)) is None
    assert stopping.why(measured(0.5, -1, 0.9)) == (
        "accuracy 90.0% in round 3 reaches stopping.target = 0.9"
    )
    lower = Stopping(StoppingSettings(metric="loss", target=0.5), {})
    assert lower.why(measured(0.6, metric="loss")) is None
    assert lower.why(measured(0.6, 0.4, metric="loss")) == (
        "loss 0.400 in round 2 reaches stopping.target = 0.5"
    )


def test_a_metric_that_does_not_decide_has_its_own_better_direction() -> None:
    def why(r2: float, rmse: float, metric: str, target: float) -> str | None:
        tested: dict[str, Any] = {"r2": "higher", "rmse": "lower"}
        stopping = Stopping(StoppingSettings(metric=metric, target=target), tested)
        figures = {"round": 1, "loss": 9.0, "r2": r2, "rmse": rmse, "measures": tested}
        return stopping.why([figures])

    assert why(0.3, 0.75, "rmse", 0.5) is None
    assert why(0.3, 0.25, "rmse", 0.5) == "rmse 0.250 in round 1 reaches stopping.target = 0.5"
    assert why(0.3, 0.25, "r2", 0.5) is None
    assert why(0.75, 9.0, "r2", 0.5) == "r2 0.750 in round 1 reaches stopping.target = 0.5"


def test_patience_counts_tests_without_a_better_figure() -> None:
    stopping = Stopping(StoppingSettings(patience=2), USUAL)
    assert stopping.why(measured(0.5, 0.7, 0.6)) is None
    assert stopping.why(measured(0.5, 0.7, 0.6, -1, 0.8)) is None
    assert stopping.why(measured(0.5, 0.7, -1, -1, 0.6)) is None
    assert stopping.why(measured(0.5, 0.7, float("nan"), -1, 0.7)) == (
        "accuracy was best in round 2 and has not improved in stopping.patience = 2 tests"
    )


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 4), ("loss", 2)])
def test_a_figure_that_is_no_number_is_never_the_best(metric: str, best: int) -> None:
    """It comes first, where any comparison with it would fail."""
    stopping = Stopping(StoppingSettings(keep="best", metric=metric, patience=3), USUAL)
    for nothing in (math.nan, -math.nan):
        records = measured(nothing, 0.3, nothing, 0.7, metric=metric)
        assert stopping.best_round(records) == best
        assert stopping.why(records) is None
    assert stopping.best_round(measured(math.nan, math.nan, metric=metric)) == 1


def test_of_equally_good_rounds_the_first_is_kept() -> None:
    stopping = Stopping(StoppingSettings(keep="best"), USUAL)
    records = measured(0.5, 0.7, 0.6, 0.7, 0.7)
    for count in range(1, 6):
        stopping.saw(records[:count], np.full(3, count, np.float32))
    weights, said = stopping.kept(np.full(3, 5, np.float32))
    assert (weights.tolist(), said) == (
        [2] * 3,
        "the model is that of round 2, the best one tested",
    )


def test_a_figure_that_is_not_measured_is_named_before_anybody_trains(tmp_path: Path) -> None:
    stopping = StoppingSettings(metric="rmse", target=0.1)
    with pytest.raises(
        JobError, match=r"metric = 'rmse' is not in .*\. Use one of loss, accuracy, auc$"
    ):
        fedveil.simulate(Job(model="logistic", stopping=stopping), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_reached_its_target_ends_and_says_why(tmp_path: Path) -> None:
    whole = fedveil.simulate(job(), tmp_path / "whole")
    third = whole.metrics[2]["loss"]
    assert all(record["loss"] > third for record in whole.metrics[:2])
    run = fedveil.simulate(
        job(stopping={"metric": "loss", "target": third + 1e-9}), tmp_path / "run"
    )
    assert len(run.metrics) == 3
    assert run.stopped is not None
    assert run.stopped.startswith("loss ")
    again = fedveil.resume(run.folder)
    assert (len(again.metrics), again.stopped) == (3, run.stopped)


@pytest.fixture
def wandering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that the weights decide, and that goes up and down."""
    original = ModelTest.quality

    def quality(self: ModelTest, weights: np.ndarray) -> dict[str, float]:
        return original(self, weights) | {"accuracy": float(abs(np.sin(99 * weights[0])))}

    monkeypatch.setattr(ModelTest, "quality", quality)


@pytest.mark.usefixtures("wandering")
@pytest.mark.parametrize("every", [1, 2])
def test_the_best_model_is_kept_through_an_interruption(tmp_path: Path, every: int) -> None:
    best_kept = job(stopping={"keep": "best"}, checkpoint={"every": every})
    run = fedveil.simulate(best_kept, tmp_path / "run")
    best = max(run.metrics, key=lambda record: record["accuracy"])["round"]
    assert best == BEST
    until_then = fedveil.simulate(job(rounds=best), tmp_path / "until then")
    assert model(run.folder) == model(until_then.folder)
    assert f"the model is that of round {best}, the best one tested" in events(run.folder)
    out = io.StringIO()
    RunDisplay(plain_text.console(file=out, width=100), 6).summary(read_run(run.folder))
    assert f"saved model  of round {best}, the best one tested" in out.getvalue()

    def cut(record: dict[str, Any]) -> None:
        if record["round"] == best + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(best_kept, tmp_path / "cut", progress=cut)
    assert model(fedveil.resume(tmp_path / "cut").folder) == model(run.folder)


def model(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def events(folder: Path) -> str:
    return (folder / "events.log").read_text()


def test_what_all_rounds_cost_is_said_of_a_run_that_may_end_early(tmp_path: Path) -> None:
    early = job(stopping={"target": 0.0}, protection="dp_encrypt", privacy={"max_epsilon": None})
    run = fedveil.simulate(early, tmp_path / "run")
    assert len(run.metrics) == 1
    (line,) = [line for line in run.others if line.what.startswith("all 6 rounds")]
    assert line.what == "all 6 rounds: holds whenever stopping ends the run"
    assert line.epsilon > 2 * run.metrics[-1]["epsilon_run_every_round"]


def test_a_best_model_that_the_job_does_not_keep_is_refused() -> None:
    last = Stopping(StoppingSettings(), USUAL)
    last.restore({}, measured(0.5, 0.75), 3)
    with pytest.raises(MessageInvalid):
        last.restore({"round": 2, "weights": np.ones(3, np.float32)}, measured(0.5, 0.75), 3)
