"""Whole runs of every task: what they learn, record and show, and what they refuse."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedveil
from fedveil.attacks.effort import Watch
from fedveil.attacks.membership import membership
from fedveil.attacks.target import Target
from fedveil.engine.evaluation import _plain, metric_entries
from fedveil.errors import AttackImpossible, DataInvalid, JobError, ModelInvalid, TaskInvalid
from fedveil.learning.device import seed_generators
from fedveil.learning.learning_task import Task, find
from fedveil.learning.trainer import TrainingPlan
from fedveil.pages import curves
from fedveil.pages.read_run import read_run
from fedveil.pages.run_summary import ending
from fedveil.pages.runs_page import runs_page
from fedveil.record.metric_names import USUAL, Better, deciding, digits, word
from fedveil.record.recorder import SEVERAL
from fedveil.run_display import describe
from fedveil.studies.comparison import Asked, Comparison


def job(named: str, own: str, task: str, **change: Any) -> fedveil.Job:
    settings = {
        "rounds": 3, "clients": {"number": 6, "fraction": 1.0},
        "data": {"name": f"task_parts:{named}"}, "model": f"task_parts:{own}", "task": task,
        "training": {"epochs": 5, "batch_size": 10, "lr": 0.5}, "simulation": {"workers": 0},
    }  # fmt: skip
    for key, value in change.items():
        held = settings.get(key)
        settings[key] = {**held, **value} if isinstance(held, dict) else value
    return fedveil.Job(**settings)


def timeless(run: fedveil.Run) -> list[str]:
    return [
        json.dumps({k: v for k, v in record.items() if not k.startswith("seconds_")})
        for record in run.metrics
    ]


RUNS = {
    "regression": (job("slope", "linear", "regression"), "rmse", "compiled"),
    "multilabel": (job("signs", "linear", "multilabel"), "f1", "compiled"),
    "next_token": (job("counting", "tokens", "next_token"), "perplexity", "loop"),
    "transformer": (
        job("counting", "", "next_token", model="transformer", training={"lr": 0.1}),
        *("perplexity", "compiled"),
    ),
    "uneven": (job("uneven_counting", "tokens", "next_token"), "perplexity", "task"),
    "inputs": (job("inputs", "words", "classification"), "accuracy", "task"),
    "own": (job("slope", "linear", "task_parts:Pinball"), "kept", "own loss"),
    "step": (
        job("slope", "linear", "task_parts:OwnStep", training={"lr": 0.1}), "kept", "task"
    ),
}  # fmt: skip
REACHED = {
    "rmse": lambda v: v < 0.2,
    "f1": lambda v: v > 0.9,
    "perplexity": lambda v: v < 3,
    "accuracy": lambda v: v > 0.8,
    "kept": lambda v: v > 0.6,
}


@pytest.mark.parametrize("name", RUNS)
def test_a_task_is_learnt_recorded_and_shown(tmp_path: Path, name: str) -> None:
    settings, figure, trainer = RUNS[name]
    run = fedveil.simulate(settings, tmp_path / "run")
    last = run.metrics[-1]
    assert REACHED[figure](last[figure]), last
    assert last["loss"] < run.metrics[0]["loss"]
    assert last["trainer"] == trainer
    assert word(figure) in describe(last)
    read = read_run(tmp_path / "run")
    assert ending(read).quality.value.startswith(f"{word(figure)} {digits(figure, last[figure])}")
    assert next(plot.name for plot in curves.quality({"run": read})) == figure
    assert read.said(SEVERAL) == ("turn, words" if name == "inputs" else "")
    (ending_table,) = (s.parts[0] for s in runs_page([read]).sections if s.title == "At the end")
    assert ending_table.columns[3] == word(figure)


@pytest.mark.usefixtures("warm_workers")
def test_workers_and_a_resumed_run_give_the_same_bytes(tmp_path: Path) -> None:
    settings = RUNS["inputs"][0]
    alone = fedveil.simulate(settings, tmp_path / "alone")
    spread = fedveil.Job(**{**settings.model_dump(), "rounds": 1, "simulation": {"workers": 1}})
    fedveil.simulate(spread, tmp_path / "spread")
    went_on = fedveil.resume(tmp_path / "spread", rounds=3)
    assert timeless(went_on) == timeless(alone)


@pytest.mark.parametrize("data", ["slope", "signs"])
def test_a_run_may_train_by_vmap(tmp_path: Path, data: str) -> None:
    settings, _, _ = RUNS["regression" if data == "slope" else "multilabel"]
    fast = fedveil.Job(**{**settings.model_dump(), "training": {
        **settings.training.model_dump(), "engine": "vmap"}})  # fmt: skip
    slow, quick = (fedveil.simulate(j, tmp_path / j.training.engine) for j in (settings, fast))
    assert quick.metrics[-1]["trainer"] == "vmap"
    assert quick.metrics[0]["loss"] == pytest.approx(slow.metrics[0]["loss"], rel=1e-4)


def test_classification_keeps_its_keys_and_measures_more_where_asked(tmp_path: Path) -> None:
    plain = job("signs", "linear", "classification", data={"name": "parts:data"}, rounds=1)
    usual = fedveil.simulate(plain, tmp_path / "usual").metrics[-1]
    assert {"loss", "accuracy", "auc"} <= set(usual)
    assert "measures" not in usual
    asked = ["balanced_accuracy", "f1", "f1_per_class", "confusion"]
    more = fedveil.Job(**{**plain.model_dump(), "evaluation": {"metrics": asked}})
    record = fedveil.simulate(more, tmp_path / "more").metrics[-1]
    assert record["measures"] == {"balanced_accuracy": "higher", "f1": "higher"}
    assert record["f1"] == pytest.approx(sum(record["f1_per_class"]) / 3)
    assert sum(map(sum, record["confusion"])) == 90
    assert "accuracy" not in record
    assert fedveil.resume(tmp_path / "more", rounds=2).metrics[0] == record


@pytest.mark.parametrize(
    "measures",
    [
        {"auc": "higher", "accuracy": "higher"},
        {"accuracy": "lower", "auc": "higher"},
        {"auc": "higher"},
    ],
)
def test_a_record_says_which_measure_decides_unless_it_is_the_usual_one(
    measures: dict[str, Better],
) -> None:
    figures = {"loss": 0.7, "accuracy": 0.25, "auc": 0.625}

    def record(named: Mapping[str, Better]) -> dict[str, Any]:
        scores: Any = SimpleNamespace(task=SimpleNamespace(measures=named), figures=lambda: figures)
        return metric_entries(scores)

    assert deciding(record(measures)) == next(iter(measures.items()))
    assert record(USUAL) == figures


def test_an_example_of_a_regression_can_be_promised_something(tmp_path: Path) -> None:
    private = job(
        "slope", "linear", "regression", rounds=2, privacy={"unit": "example"},
        protection={"name": "dp_encrypt"},
        training={"epochs": 1, "batch_size": 10, "sampling_rate": 0.5},
    )  # fmt: skip
    last = fedveil.simulate(private, tmp_path / "run").metrics[-1]
    assert last["trainer"] == "clipped examples"
    assert math.isfinite(last["epsilon_run_every_round"])


def test_a_task_of_the_user_s_own_decides_what_the_model_returns(tmp_path: Path) -> None:
    """Two tensors, of which neither has the shape of the targets."""
    training = {"epochs": 1, "lr": 0.01}
    settings = job("slope", "coded", "task_parts:Coded", rounds=2, training=training)
    run = fedveil.simulate(settings, tmp_path / "run")
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert run.metrics[-1]["rows"] == [40, 40, 40]
    assert run.metrics[-1]["columns"] == [3, 5, 2]


SENTENCES: list[tuple[fedveil.Job, type[Exception], str]] = [
    (
        job("slope", "linear", "regression", data={"split": "dirichlet"}),
        DataInvalid,
        "data.split = dirichlet needs classes, which task = regression does not have. Use iid or "
        "by_client",
    ),
    (
        job("slope", "linear", "regression", data={"name": "digits"}),
        DataInvalid,
        "data.name = digits has classes, which only task = classification can learn: for "
        "another task use a function of yours",
    ),
    (
        job("slope", "linear", "regression", evaluation={"metrics": ["accuracy"]}),
        TaskInvalid,
        "evaluation.metrics has 'accuracy', which is not one of rmse, mae, r2",
    ),
    (
        job("slope", "linear", "task_parts:slope"),
        TaskInvalid,
        "task = 'task_parts:slope' gives a dict, not a fedveil.Task",
    ),
    (
        job("slope", "linear", "task_parts:Pinball", training={"engine": "vmap"}),
        ModelInvalid,
        "training.engine = vmap needs examples of one array and a bundled loss, which task = "
        "task_parts:Pinball or its data does not have. Use engine loop",
    ),
    (
        job("inputs", "words", "classification", model="mlp"),
        ModelInvalid,
        "model = mlp needs examples of one array and one shape",
    ),
    (
        job(
            "slope", "linear", "task_parts:OwnStep", privacy={"unit": "example"},
            protection={"name": "dp_encrypt"},
            training={"epochs": 1, "sampling_rate": 0.5},
        ),
        ModelInvalid,
        "privacy.unit = example needs each example's own gradient, in one step of plain SGD, but "
        "task = task_parts:OwnStep has its own optimizer. Use unit client",
    ),
    (
        job("signs", "words", "multilabel", model="task_parts:single"),
        ModelInvalid,
        "'task_parts:single' under task = multilabel cannot train: ValueError: it returns a tensor "
        "of shape (10, 1) instead of (10, 3)",
    ),
    (
        job("slope", "linear", "task_parts:Unsaid"),
        ModelInvalid,
        "the task's metrics do not return missing, which its measures name",
    ),
    (
        job("slope", "linear", "task_parts:Named"),
        ModelInvalid,
        "the task's metrics return 'round', which cannot be a record's key",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "error", "sentence"), SENTENCES)
def test_what_cannot_be_is_told_before_the_first_round(
    tmp_path: Path, settings: fedveil.Job, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        fedveil.simulate(settings, tmp_path / "run")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("targets", "clas", r"targets = 'clas' is not one of class, .* \(did you mean class\?\)"),
        ("measures", {"mae": "up"}, "measures\\['mae'\\] = 'up' is not one of higher, lower"),
        ("measures", ["mae"], 'measures is no mapping. Write it as {"mae": "lower"}'),
    ],
)
def test_a_task_s_attributes_have_known_values(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(f"task_parts.Pinball.{attribute}", value)
    with pytest.raises(TaskInvalid, match=f"task = 'task_parts:Pinball': {said}"):
        find("task_parts:Pinball")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("good!", 0.5, "return 'good!', which cannot be a record's key"),
        ("good\n", 0.5, "which cannot be a record's key"),
        ("good", True, "good is a bool, not a number"),
        ("good", torch.tensor(True), "good is a bool, not a number"),
        ("good", "0.5", "good is a str, not a number"),
        ("good", ["a", "b"], "good is a list, but not of numbers"),
        ("good", np.array([True, False, True]), "good is a list, but not of numbers"),
        ("good", [1j], "good is a list, but not of numbers"),
        ("seconds_round", 0.5, "return 'seconds_round', which cannot be a record's key"),
        ("canaries", 3, "return 'canaries', which cannot be a record's key"),
        ("clients_mean", 0.5, "return 'clients_mean', which cannot be a record's key"),
    ],
)
def test_a_metric_is_a_number_under_a_plain_name(name: str, value: Any, said: str) -> None:
    with pytest.raises(TaskInvalid, match=said):
        _plain(name, value)
    assert _plain("good", np.float32(0.5)) == 0.5
    assert _plain("good", torch.tensor(7)) == 7.0
    assert _plain("each", np.array([1.5, 2.0])) == [1.5, 2.0]
    assert _plain("each", (1.5, 2)) == [1.5, 2.0]


@pytest.mark.parametrize("name", ["loss", "f1", "recall"])
def test_a_metric_that_may_decide_is_a_single_number(name: str) -> None:
    """A list could neither decide which model is best, nor could the run be resumed."""
    figures = {"loss": 0.5, "f1": 0.25, "recall": 0.75, "each": [0.5, 1.0]}

    def scores() -> Any:
        task = SimpleNamespace(measures={"f1": "higher", "recall": "lower"})
        return SimpleNamespace(task=task, figures=lambda: figures)

    assert metric_entries(scores())["each"] == [0.5, 1.0]
    figures |= {name: [0.5, 1.0]}
    with pytest.raises(TaskInvalid, match=f"metric {name} is a list, and must be one number"):
        metric_entries(scores())


def test_attacks_on_classes_refuse_other_tasks() -> None:
    with pytest.raises(AttackImpossible, match="the membership attack is on models of task = cl"):
        membership.attack(Target.of(RUNS["regression"][0]), "quick", Watch())


def test_a_comparison_aims_at_what_the_task_measures() -> None:
    asked = Asked(protections=["not_encrypt"], target="rmse=1")
    goal = Comparison(RUNS["regression"][0], asked).goal
    assert goal is not None
    assert goal.reached(0.5)
    assert not goal.reached(2)
    with pytest.raises(JobError, match="with one of rmse, mae, r2, loss"):
        Comparison(RUNS["regression"][0], Asked(protections=["signds"], target="accuracy=1"))


def test_proximal_pulls_an_own_task_back_to_where_the_round_began() -> None:
    """After one step at rate 1, the second gradient holds mu times the first step."""

    class Own(Task):
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return outputs.mean()

    def moved(proximal: float) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(3.0)
        plan = TrainingPlan(1, 1, "sgd", 1.0, 0.0, 0.0, proximal=proximal)
        batch = (torch.ones(1, 1), torch.zeros(1))
        Own().train(model, iter([batch, batch]), plan)
        return float(model.weight) - 3.0

    assert moved(0.0) == pytest.approx(-2.0)
    assert moved(0.25) == pytest.approx(-2.0 + 0.25)


def test_own_code_that_draws_gives_the_same_run_twice(tmp_path: Path) -> None:
    """The second run begins with other states of the generators, and has two workers."""
    own = job("slope", "linear", "task_parts:Jittered", training={"lr": 0.05, "epochs": 1})
    found = []
    for number, workers in enumerate((0, 2, 0)):
        np.random.seed(number)
        random.seed(number)
        again = own.with_({"simulation.workers": workers})
        found.append(timeless(fedveil.simulate(again, tmp_path / str(number))))
    assert found[0] == found[1] == found[2]
    other = own.with_({"seed": 5})
    assert timeless(fedveil.simulate(other, tmp_path / "other")) != found[0]


@pytest.mark.parametrize("draw", [np.random.random, random.random, lambda: float(torch.rand(()))])
def test_each_client_has_its_own_draws(draw: Callable[[], float]) -> None:
    drawn = []
    for seed in (3, 4, 3, (1 << 63) - 1, (1 << 32) + 3):
        seed_generators(seed, torch.device("cpu"))
        drawn.append(draw())
    assert drawn[0] == drawn[2]
    assert len(set(drawn[:2] + drawn[3:4])) == 3
