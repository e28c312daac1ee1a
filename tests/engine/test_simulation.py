"""Whole runs: what they compute, and that the way they are run changes nothing."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedveil
import parts
from fedveil.engine import assembly, round_checkpoint
from fedveil.engine.executors.client_side import ClientsData, ClientSide, LocalTraining
from fedveil.engine.executors.in_process import InProcess
from fedveil.engine.simulation import Simulator
from fedveil.entropy import Seeded
from fedveil.errors import (
    FedveilError,
    JobError,
    MissingExtra,
    ModelInvalid,
    RunFolderError,
    RunStopped,
)
from fedveil.federated.job import Job
from fedveil.learning.trainer import LoopTrainer, TrainingPlan
from fedveil.learning.weight_layout import Layout
from fedveil.pages.read_run import BUFFERS
from fedveil.protections.base import JobContext, RoundContext
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.not_encrypt import NotEncrypt
from fedveil.rounds.loop import drive
from fedveil.settings.settings import Settings

TIMES = ("seconds_",)


def job(*overrides: str, **blocks: Any) -> Job:
    base = {
        "name": "small",
        "rounds": 3,
        "clients": {"number": 8, "fraction": 0.5},
        "data": {"name": "parts:data"},
        "model": "parts:net",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "simulation": {"workers": 0},
    }
    for key, value in blocks.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return Job(**base)


def timeless(metrics: list[dict[str, Any]]) -> list[str]:
    return [
        json.dumps({k: v for k, v in record.items() if not k.startswith(TIMES)}, default=repr)
        for record in metrics
    ]


def test_a_run_learns_and_writes_everything_down(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    run = fedveil.simulate(job(rounds=8), tmp_path / "run", progress=seen.append)
    assert run.folder == tmp_path / "run"
    assert run.stopped is None
    assert seen == run.metrics
    assert [record["round"] for record in run.metrics] == list(range(1, 9))
    assert run.metrics[-1]["accuracy"] > 0.7
    first = run.metrics[0]
    dimension = Layout(run.model).dimension
    assert first["clients"] == first["reports"] == 4
    assert 4 * dimension < first["bytes_up_per_client"] < 4 * dimension + 48
    assert first["bytes_up"] == 4 * first["bytes_up_per_client"]
    assert first["bytes_down"] > 4 * 4 * dimension
    assert first["epsilon_run_most_drawn"] == float("inf")
    assert first["promise_run_most_drawn"] == first["promise_per_bit"] == "none"
    assert first["randomness"] == "simulation randomness"
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "job.yaml",
        "metrics.jsonl",
        "events.log",
        "events.chain",
        "model.safetensors",
        "checkpoint",
        "imports.txt",
        "report.html",
        ".lock",
    }
    assert Job.load(run.folder / "job.yaml") == run.job
    for line in (run.folder / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    events = (run.folder / "events.log").read_text()
    assert f"{BUFFERS}1.running_mean, 1.running_var" in events
    assert "tensors kept at the server's value: 1.num_batches_tracked" in events
    saved = load_file(run.folder / "model.safetensors")
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(saved[name], tensor)


def test_one_full_step_of_everybody_is_a_step_of_centralised_sgd(tmp_path: Path) -> None:
    for split, weighting in (("iid", "by_size"), ("dirichlet", "by_size")):
        settings = job(
            model="parts:plain",
            rounds=1,
            clients={"fraction": 1.0},
            data={"split": split, "alpha": 5.0},
            training={"batch_size": 1000},
            server={"weighting": weighting},
        )
        run = fedveil.simulate(settings, tmp_path / split)
        shape = assembly.ModelShape((parts.FEATURES,), parts.CLASSES)
        model = assembly.make_model(settings, shape)
        examples = parts.data()
        x, y = torch.from_numpy(examples["x_train"]), torch.from_numpy(examples["y_train"])
        nn.functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.2 * parameter.grad
        np.testing.assert_allclose(Layout(run.model).vector(), Layout(model).vector(), atol=1e-6)


@pytest.mark.parametrize(
    ("model", "workers"), [("parts:net", 0), ("parts:plain", 0), ("parts:plain", 2)]
)
def test_small_whole_numbers_train_as_floats_do(tmp_path: Path, model: str, workers: int) -> None:
    results = []
    for kind in ("bytes", "floats"):
        settings = job(
            model=model, data={"name": f"parts:{kind}_data"}, simulation={"workers": workers}
        )
        run = fedveil.simulate(settings, tmp_path / kind)
        results.append(((run.folder / "model.safetensors").read_bytes(), timeless(run.metrics)))
    assert results[0] == results[1]


def _noised(position: str) -> bool:
    return POSITIONS[position].noised(POSITIONS[position].settings_type())


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("protection", sorted(POSITIONS))
def test_the_number_of_workers_changes_no_byte(protection: str, tmp_path: Path) -> None:
    results, few = [], {"reconstruct_secrets_threshold": 3}
    for workers in (0, 2):
        settings = job(
            model="parts:plain" if _noised(protection) else "parts:net",
            simulation={"workers": workers},
            protection={"name": protection, "pw_encrypt": few, "distributed_dp": few},
        )
        run = fedveil.simulate(settings, tmp_path / str(workers))
        results.append(((run.folder / "model.safetensors").read_bytes(), timeless(run.metrics)))
    assert results[0] == results[1]
    assert all(record["bytes_up_per_client"] > 0 for record in run.metrics)
    assert all(record["epsilon_run_most_drawn"] > 0 for record in run.metrics)


@pytest.mark.parametrize(("eps", "word"), [(100.0, "next to none"), (0.5, "strong")])
def test_a_run_that_promises_next_to_none_says_so_when_it_starts(
    tmp_path: Path, eps: float, word: str
) -> None:
    said: list[Any] = []
    switch = {"name": "signds", "signds": {"sign_eps": eps, "magnitude": "fixed"}}
    settings = job(model="parts:plain", rounds=2, protection=switch)
    run = fedveil.simulate(settings, tmp_path / "run", progress=said.append, warn=said.append)
    assert [record["promise_run_every_round"] for record in run.metrics][-1] == word
    events = (run.folder / "events.log").read_text()
    if word == "strong":
        assert said == run.metrics
        assert "is promised" not in events
    else:
        assert said[0].startswith(
            "a client that takes part in all 2 rounds is promised epsilon 200 "
        )
        assert said[1:] == run.metrics
        assert said[0] in events


def test_secure_randomness_is_said_and_used(tmp_path: Path) -> None:
    settings = job(model="parts:plain", protection="dp_encrypt", privacy={"randomness": "secure"})
    runs = [fedveil.simulate(settings, tmp_path / str(i)) for i in range(2)]
    assert runs[0].metrics[0]["randomness"] == "operating-system randomness"
    models = [(run.folder / "model.safetensors").read_bytes() for run in runs]
    assert models[0] != models[1]


def test_an_interrupted_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    settings = job(rounds=5, server={"optimizer": "yogi"})
    whole = fedveil.simulate(settings, tmp_path / "whole")
    for stop_at in (0, 1, 3):

        def stop(record: dict[str, Any], stop_at: int = stop_at) -> None:
            if record["round"] > stop_at:
                raise KeyboardInterrupt

        folder = tmp_path / f"cut-{stop_at}"
        with pytest.raises(KeyboardInterrupt):
            fedveil.simulate(settings, folder, progress=stop)
        assert not (folder / "model.safetensors").exists()
        run = fedveil.resume(folder)
        assert timeless(run.metrics) == timeless(whole.metrics)
        model = (folder / "model.safetensors").read_bytes()
        assert model == (whole.folder / "model.safetensors").read_bytes()


def test_a_run_that_has_ended_can_be_resumed_for_nothing(tmp_path: Path) -> None:
    run = fedveil.simulate(job(), tmp_path / "run")
    again = fedveil.resume(tmp_path / "run")
    assert timeless(again.metrics) == timeless(run.metrics)


def test_resuming_with_other_data_or_another_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedveil.simulate(job(), tmp_path / "run")
    others = parts.other_data()
    for name, function in (("data", lambda: others), ("net", parts.plain)):
        with monkeypatch.context() as changed:
            changed.setattr(parts, name, function)
            with pytest.raises(RunFolderError, match="another model or other data"):
                fedveil.resume(tmp_path / "run")


def test_checkpoints_every_so_many_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = round_checkpoint.Checkpoint.write

    def write(self: Any, folder: Any) -> None:
        written.append(self.round)
        original(self, folder)

    monkeypatch.setattr(round_checkpoint.Checkpoint, "write", write)
    fedveil.simulate(job(rounds=5, checkpoint={"every": 2}), tmp_path / "run")
    assert written == [2, 4, 5]


def test_evaluation_every_so_many_rounds(tmp_path: Path) -> None:
    run = fedveil.simulate(job(rounds=5, evaluation={"every": 2}), tmp_path / "run")
    assert ["accuracy" in record for record in run.metrics] == [False, True, False, True, True]


def test_clients_that_fail_are_recorded_skipped_and_counted(tmp_path: Path) -> None:
    settings = job(
        model="parts:picky", clients={"number": 20, "fraction": 1.0}, training={"batch_size": 1000}
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    for record in run.metrics:
        (failures,) = record["failed"].items()
        assert failures[0] == "RuntimeError: these examples are not to my taste"
        assert 0 < failures[1] < 20
        assert record["reports"] == 20 - failures[1]


def test_a_round_in_which_everybody_fails_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a model that a trial of one batch did not find out."""
    monkeypatch.setattr(Simulator, "try_out", lambda *arguments: None)
    said = (
        "every client of round 1 failed: RuntimeError: these examples are not to my taste; "
        "resuming fails again until this is fixed"
    )
    with pytest.raises(RunStopped, match=f"^{said}\n`fedveil run --resume"):
        fedveil.simulate(job(model="parts:hopeless"), tmp_path / "run")
    assert "ended after round 0" in (tmp_path / "run" / "events.log").read_text()


def test_an_update_that_is_not_finite_is_withheld(tmp_path: Path) -> None:
    settings = job(
        model="parts:diverging",
        clients={"number": 20, "fraction": 1.0},
        training={"batch_size": 1000},
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    assert all(0 < r["withheld"]["the update is not finite"] < 20 for r in run.metrics)
    assert all(np.isfinite(r["loss"]) for r in run.metrics)


def test_warnings_of_clients_are_events(tmp_path: Path) -> None:
    fedveil.simulate(job(model="parts:warning"), tmp_path / "run")
    events = (tmp_path / "run" / "events.log").read_text()
    assert events.count("UserWarning: mind the step") == 3


TWO_PHASES = {"name": "parts:TwoPhases"}


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(("workers", "name"), [(0, "masked"), (2, "tell")])
def test_a_protection_of_ones_own_that_talks_in_phases(
    workers: int, name: str, tmp_path: Path
) -> None:
    settings = job(
        clients={"fraction": 1.0},
        protection=TWO_PHASES,
        simulation={"workers": workers, "dropouts": {name: 0.25}},
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    assert [record["reports"] for record in run.metrics] == [6, 6, 6]
    assert [record["rejected"] for record in run.metrics] == [{}, {}, {}]
    assert run.metrics[-1]["accuracy"] > 0.5
    assert 1.49 < run.metrics[-1]["epsilon_run_most_drawn"] <= 1.5


def test_max_epsilon_ends_the_run_in_good_order(tmp_path: Path) -> None:
    settings = job(
        rounds=9, clients={"fraction": 1.0}, protection=TWO_PHASES, privacy={"max_epsilon": 2.2}
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    assert len(run.metrics) == 4
    assert run.stopped is not None
    assert "round 5 would bring the most-drawn client to epsilon 2.5 at" in run.stopped
    assert (run.folder / "model.safetensors").exists()
    assert fedveil.resume(run.folder).stopped == run.stopped


def test_a_run_that_a_limit_ends_between_two_tests_is_tested_once_more(tmp_path: Path) -> None:
    settings = job(
        rounds=9,
        clients={"fraction": 1.0},
        protection=TWO_PHASES,
        privacy={"max_epsilon": 2.2},
        evaluation={"every": 3},
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    assert ["accuracy" in record for record in run.metrics] == [False, False, True, False]
    assert "the model at its end: loss" in (run.folder / "events.log").read_text()


def test_a_fault_plan_silences_clients(tmp_path: Path) -> None:
    settings = job(
        clients={"fraction": 1.0}, simulation={"dropouts": {"share": 0.25, "unmask": 0.25}}
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    assert [record["dropped"] for record in run.metrics] == [2, 2, 2]
    assert [record["reports"] for record in run.metrics] == [6, 6, 6]


def test_clients_are_the_owners_of_the_data(tmp_path: Path) -> None:
    settings = job(data={"split": "by_client"}, clients={"number": None, "fraction": 1.0})
    run = fedveil.simulate(settings, tmp_path / "run")
    assert run.job.clients.number == 8
    assert run.metrics[0]["clients"] == 8


def test_cohorts_are_drawn_uniformly_and_without_repetition(tmp_path: Path) -> None:
    drawn = Seeded(0, "cohort", 1).permutation(8)[:4]
    assert len(set(drawn.tolist())) == 4
    run = fedveil.simulate(job(), tmp_path / "run")
    assert all(record["clients"] == 4 for record in run.metrics)


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (
            {"model": "parts:missing"},
            ModelInvalid,
            "'parts:missing': the module parts has no missing",
        ),
        (
            {"model": "nowhere:net"},
            ModelInvalid,
            "model = 'nowhere:net': there is no module nowhere",
        ),
        ({"model": "lenet"}, ModelInvalid, r"needs examples of shape \(1, 28, 28\), not \(6,\)"),
        ({"model": "parts:data"}, ModelInvalid, "returned a dict, not an nn.Module"),
        ({"data": {"name": "nowhere:data"}}, FedveilError, "nowhere"),
        ({"training": {"device": "cuda:7"}}, JobError, "training.device = cuda:7 cannot be used"),
        ({"training": {"engine": "vmap"}}, ModelInvalid, "vmap cannot train the buffers"),
        ({"protection": "signds"}, ModelInvalid, r"signds adds noise to .* 1\.running_mean"),
        ({"model": "broken:net"}, ModelInvalid, "importing broken raised SyntaxError: not Python"),
        ({"model": "parts:lazy"}, ModelInvalid, "weight is not initialised"),
    ],
)
def test_a_job_that_cannot_run_says_so_and_leaves_nothing(
    change: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=sentence):
        fedveil.simulate(job(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("warm_workers")
def test_a_model_that_differs_between_processes_is_refused(tmp_path: Path) -> None:
    workers = {"training": {"engine": "loop"}, "simulation": {"workers": 1}}
    changed = job(model="parts:unstable", **workers)
    with pytest.raises(ModelInvalid, match="returned another model when it was called again"):
        fedveil.simulate(changed, tmp_path / "run")


def test_vmap_and_loop_agree_over_a_run(tmp_path: Path) -> None:
    models = []
    for engine in ("loop", "vmap"):
        settings = job(model="parts:plain", training={"engine": engine})
        models.append(Layout(fedveil.simulate(settings, tmp_path / engine).model).vector())
    np.testing.assert_allclose(models[0], models[1], atol=1e-5)


def test_a_missing_tensorboard_is_told_before_a_run_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"record\.tensorboard needs the package tensorboard"):
        fedveil.simulate(job(record={"tensorboard": True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tensorboard_files_are_written(tmp_path: Path) -> None:
    event_file_loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_file_loader"
    )
    run = fedveil.simulate(job(record={"tensorboard": True}), tmp_path / "run")
    (events,) = (run.folder / "tensorboard").iterdir()
    written = events.read_bytes()
    assert b"accuracy" in written
    assert b"bytes_down" in written  # a whole number
    fedveil.resume(run.folder, rounds=4)
    more = max((run.folder / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    (start,) = (
        event.step for event in event_file_loader.EventFileLoader(str(more)).Load()
        if event.HasField("session_log")
    )  # fmt: skip
    assert start == 4  # what an interrupted round has left is dropped from there on


def peak_of_a_round(clients: int) -> int:
    """Return the peak memory of a round of `clients` clients, in bytes."""
    model = nn.Linear(40, 200)
    weights = Layout(model).vector()
    one_each = np.arange(clients, dtype=np.int64)
    data = ClientsData(
        x=np.ones((clients, 40), np.float32),
        y=np.zeros(clients, np.int64),
        indices=one_each,
        offsets=np.arange(clients + 1, dtype=np.int64),
    )
    protection = NotEncrypt(Settings(), JobContext("equal", len(weights), clients, 1))
    trainer = LoopTrainer(model, TrainingPlan(1, 20, "sgd", 0.1, 0.0, 0.0))
    training = LocalTraining(trainer, data, Seeded(0))
    side = ClientSide(protection, training, weights.copy(), Seeded(1))
    executor = InProcess(side)

    def play(cohort: range) -> None:
        context = RoundContext(cohort, 1, weights)
        server = protection.server_round(context)
        executor.open(context)
        outcome = drive(server, executor, dict.fromkeys(cohort, server.opening()), "report")
        assert len(outcome.reported) == len(cohort)

    play(range(2))
    tracemalloc.start()
    try:
        play(range(clients))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_cohort() -> None:
    report = 4 * (40 * 200 + 200)
    few, many = peak_of_a_round(10), peak_of_a_round(1000)
    # Only the bookkeeping grows, by a few hundred bytes per client. Reports are not kept.
    assert many - few < 990 * 3000 < 990 * report / 10
