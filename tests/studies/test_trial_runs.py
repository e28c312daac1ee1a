"""The best of several short trials."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from comparing_parts import small_job
from fedveil.engine.candidates import Candidate, candidates
from fedveil.errors import (
    InvalidValue,
    JobError,
    ModelInvalid,
    RunFailed,
    RunFolderError,
    RunStopped,
)
from fedveil.federated.job import Job
from fedveil.federated.run_blocks import RecordSettings
from fedveil.privacy.guarantee_strength import Figure
from fedveil.record.metric_names import Better
from fedveil.studies import trial_runs
from fedveil.studies.trial_runs import BARE, UNTRAINED, Trial, best


def found(better: Better, start: float, bare: float, **values: float) -> list[Trial]:
    """Return trials whose models are untrained, unprotected, or under each protection."""
    nothing = Figure(math.inf, 1e-5)
    trials = [
        Trial(UNTRAINED, None, nothing, None, "score", better, start),
        Trial(BARE, None, nothing, None, "score", better, bare),
    ]
    for one in candidates(small_job(), 83, 3.0):
        value = values.get(one.name, math.nan)
        trials.append(Trial(one.name, one, one.figure, None, "score", better, value))
    return trials


@pytest.mark.parametrize(("better", "sign"), [("higher", 1.0), ("lower", -1.0)])
def test_the_best_has_learnt_more_than_the_untrained_model(better: Better, sign: float) -> None:
    levels = {"distributed_dp": 0.88 * sign, "dp_encrypt": 0.86 * sign}
    trials = found(better, 0.87 * sign, 0.95 * sign, **levels)
    assert best(trials, "client") is None  # a gain of 0.01 of 0.08, and a loss
    worse = levels | {"dp_encrypt": 0.4 * sign}
    assert best(found(better, 0.87 * sign, 0.95 * sign, **worse), "client") is None
    chosen = best(found(better, 0.5 * sign, 0.95 * sign, **levels), "client")
    assert chosen is not None
    assert chosen.name == "distributed_dp"
    assert best(found(better, 0.5 * sign, 0.95 * sign, **levels), "example") is None


def test_a_promise_that_trusts_the_server_comes_last() -> None:
    chosen = best(found("higher", 0.1, 0.9, dp_encrypt=0.5, central_gaussian=0.8), "client")
    assert chosen is not None
    assert chosen.name == "dp_encrypt"
    alone = best(found("higher", 0.1, 0.9, central_gaussian=0.8), "client")
    assert alone is not None
    assert alone.name == "central_gaussian"


@pytest.mark.parametrize("alone", [False, True])
def test_a_trial_is_a_short_run_judged_on_what_clients_hold_out(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of one example each can hold none out: the test examples judge them."""
    played: list[Job] = []

    def simulate(job: Job, folder: Path) -> SimpleNamespace:
        played.append(job)
        if alone and job.evaluation.clients:
            raise InvalidValue("a client with at least two examples")
        return SimpleNamespace(metrics=[{}, {"clients_mean": 0.4, "accuracy": 0.9, "loss": 1.0}])

    monkeypatch.setattr(trial_runs, "simulate", simulate)
    told = {"callbacks": ["parts:told"], "tensorboard": True}
    job = small_job(
        rounds=23, privacy={"max_epsilon": 4.0}, audit={"canaries": 3}, record=told,
        simulation={"workers": 0, "masks": True}, stopping={"patience": 1, "keep": "best"},
    )  # fmt: skip
    nothing = Figure(math.inf, 1e-5)
    tried = trial_runs._tried(job, "rr", None, nothing, 0.5)
    assert (tried.metric, tried.better, tried.rounds, tried.noise) == (
        "accuracy",
        "higher",
        10,
        0.5,
    )
    assert (tried.value, tried.examples) == (
        (0.9, trial_runs.TEST) if alone else (0.4, trial_runs.VALIDATION)
    )
    short = played[-1]
    assert (short.rounds, short.evaluation.every, short.evaluation.clients) == (
        10, 10, 0.0 if alone else 0.2,
    )  # fmt: skip
    assert (short.privacy.max_epsilon, short.audit.canaries) == (None, 0)
    assert short.record == RecordSettings(page=False)
    assert short.stopping == Job().stopping, "a trial has all of its rounds"
    assert (short.simulation.masks, short.simulation.workers) == (False, 0)
    first = trial_runs._tried(small_job(rounds=4), UNTRAINED, None, nothing, None)
    assert (first.rounds, played[-1].rounds, played[-1].server.lr) == (4, 1, 1e-12)


def test_buffers_are_refused_before_a_protection_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(trial_runs, "_tried", lambda job, name, *more: tried.append(name))
    with pytest.raises(ModelInvalid, match=r"breaks the buffers 1\.running_mean"):
        list(trial_runs.trials(small_job(model="parts:net"), 3.0, lambda text: None))
    assert tried == [UNTRAINED, BARE]


def test_where_nothing_can_be_learnt_nothing_is_best() -> None:
    assert best(found("higher", 0.5, 0.5, dp_encrypt=0.5), "client") is None


@pytest.mark.parametrize("unit", ["client", "example"])
def test_each_protection_is_tried_with_its_noise_among_all_training_examples(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under: list[str] = []

    def tried(job: Job, name: str, candidate: Candidate | None, *more: Any) -> Any:
        under.append(job.protection.name)
        return name, job.privacy.unit, candidate, more

    monkeypatch.setattr(trial_runs, "_tried", tried)
    monkeypatch.setattr(trial_runs, "OTHERS", ())
    settings: dict[str, Any] = {"privacy": {"unit": unit}} if unit == "example" else {}
    if settings:
        settings |= {"protection": "dp_encrypt", "training": {"sampling_rate": 0.5}}
    told: list[str] = []
    yielded: list[Any] = list(trial_runs.trials(small_job(**settings), 3.0, told.append))
    every = [one for one in yielded if not isinstance(one, Trial)]
    ruled_out = {one.name: one.failure for one in yielded if isinstance(one, Trial)}
    assert [*ruled_out] == ([] if unit == "client" else ["pw_encrypt", "central_gaussian"])
    for name, failure in ruled_out.items():
        assert failure.startswith(
            f"privacy.unit = example is not offered by protection.name = {name}"
        )
    names = [name for name, *_ in every]
    assert names[:2] == [UNTRAINED, BARE]
    assert under[:2] == ["not_encrypt", "not_encrypt"]
    assert under[2:] == [name.removesuffix(", one example") for name in names[2:]]
    assert ("distributed_dp, one example" in names) == (unit == "client")
    assert [one[1] for one in every[2:]].count("example") == (1 if unit == "client" else 2)
    for _, _, candidate, (figure, noise) in every[2:]:
        assert (figure, noise) == (candidate.figure, candidate.noise(240))
    assert told[:2] == ["trial without protection", "trial of distributed_dp at epsilon 3"]
    nothing = Figure(math.inf, 1e-5)
    assert [one[2:] for one in every[:2]] == [(None, (nothing, None))] * 2
    assert {one.figure for one in yielded if isinstance(one, Trial)} <= {nothing}


@pytest.mark.parametrize("kind", [RunFailed, RunStopped, ModelInvalid])
def test_a_trial_that_fails_keeps_what_the_whole_run_would_cost(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(job: Job, folder: Path) -> None:
        raise kind("no client answered")

    monkeypatch.setattr(trial_runs, "simulate", failing)
    one = next(one for one in candidates(small_job(), 83, 3.0) if one.name == "dp_encrypt")
    tried = trial_runs._tried(one.job, "dp_encrypt", one, one.figure, 0.75)
    assert tried == Trial("dp_encrypt", one, one.figure, 0.75, failure="no client answered")
    assert math.isnan(tried.value)


def test_a_full_disk_is_no_failure_of_a_protection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the best protection would be the best of those whose files had room."""

    def failing(job: Job, folder: Path) -> None:
        try:
            raise RunFolderError(f"{folder} cannot be written: No space left on device")
        except RunFolderError as full:
            raise RunStopped(str(full)) from full

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(trial_runs, "simulate", failing)
    nothing = Figure(math.inf, 1e-5)
    full = f"{tmp_path}/fedveil-.*/trial cannot be written: No space left on device. Set TMPDIR to"
    with pytest.raises(RunFolderError, match=full):
        trial_runs._tried(small_job(), "rr", None, nothing, None)
    assert not any(tmp_path.iterdir())


def test_a_trial_of_an_error_is_better_where_it_is_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is none of held-out examples is raised."""
    last = {"measures": {"rmse": "lower"}, "rmse": 7.5, "accuracy": 0.5, "clients_mean": 2.5}

    def simulate(job: Job, folder: Path) -> SimpleNamespace:
        if job.rounds == 3:
            raise InvalidValue("no examples")
        return SimpleNamespace(metrics=[last])

    monkeypatch.setattr(trial_runs, "simulate", simulate)
    nothing = Figure(math.inf, 1e-5)
    tried = trial_runs._tried(small_job(), "rr", None, nothing, None)
    assert (tried.metric, tried.better, tried.value) == ("rmse", "lower", 2.5)
    with pytest.raises(InvalidValue, match="no examples"):
        trial_runs._tried(small_job(rounds=3), "rr", None, nothing, None)


def test_trials_leave_the_account_of_a_data_set_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial has no limit, and one has no protection: the account would be spent for good."""
    monkeypatch.setattr(trial_runs, "simulate", lambda job, folder: pytest.fail("it trained"))
    account = tmp_path / "account"
    job = small_job(privacy={"account": str(account), "max_epsilon": 3.0})
    with pytest.raises(JobError, match=r"infinite epsilon\. Add --set privacy\.account=null"):
        next(trial_runs.trials(job, 2.0, lambda text: None))
    assert not account.exists()
