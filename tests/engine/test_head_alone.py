"""Runs in which the head alone is trained: what travels, and what is computed how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedveil
import parts
from fedveil.attacks.target import Target
from fedveil.engine import simulation
from fedveil.engine.assembly import ModelShape, load_data, make_model, make_protection
from fedveil.engine.simulation import Simulator
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import Classification
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.weight_layout import Layout

SIZE = 9 * parts.CLASSES


def job(**changes: Any) -> Job:
    settings: dict[str, Any] = {
        "name": "head",
        "rounds": 4,
        "clients": {"number": 8, "fraction": 0.5},
        "data": {"name": "parts:data"},
        "model": "parts:backbone",
        "training": {"train": "head", "epochs": 1, "batch_size": 50, "lr": 0.3},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(settings.get(key), dict) else value
    return Job(**settings)


def tensors(run: Any) -> dict[str, np.ndarray]:
    file = load_file(run.folder / "model.safetensors")
    return {name: value.numpy() for name, value in file.items()}


def down(run: Any) -> int:
    """Weights that a client is sent in the last round, less the few bytes of its message."""
    record = run.metrics[-1]
    return int(record["bytes_down"] / record["clients"] // 4 - 2)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of examples in each call of the fixed layers."""
    calls: list[int] = []
    monkeypatch.setattr(parts.Backbone, "saw", calls.append)
    return calls


@pytest.mark.parametrize("rounds", [1, 6])
def test_features_are_computed_once_whatever_the_rounds(
    tmp_path: Path, counted: list[int], rounds: int
) -> None:
    """240 training and 90 test examples, and few to see that the model is as it says."""
    fedveil.simulate(job(rounds=rounds), tmp_path / "run")
    trial = 50 + 50  # a batch to train on and one to test, before the first round
    assert 330 <= sum(counted) <= 330 + 2 * trial


def test_with_all_trained_the_same_layers_see_every_example_in_every_round(
    tmp_path: Path, counted: list[int]
) -> None:
    fedveil.simulate(job(rounds=6, training={"train": "all"}), tmp_path / "run")
    assert sum(counted) > 6 * (120 + 90)


def test_the_head_moves_and_everything_else_stays(tmp_path: Path) -> None:
    run = fedveil.simulate(job(), tmp_path / "run")
    start, end = parts.backbone().state_dict(), tensors(run)
    assert end.keys() == start.keys()
    for name, value in start.items():
        same = value.numpy().tobytes() == end[name].tobytes()
        assert same != name.startswith("head"), name
    assert down(run) == SIZE
    assert run.metrics[-1]["accuracy"] > run.metrics[0]["accuracy"]


def test_the_saved_model_takes_examples_and_is_as_good_as_the_record_says(tmp_path: Path) -> None:
    run = fedveil.simulate(job(), tmp_path / "run")
    model = parts.backbone()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in tensors(run).items()})
    data = parts.data()
    quality = score(model, Classification(), data["x_test"], data["y_test"]).figures()
    assert quality["accuracy"] == run.metrics[-1]["accuracy"]
    assert quality["loss"] == pytest.approx(run.metrics[-1]["loss"], abs=1e-6)


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("epochs", [1, 2])
def test_workers_and_interruptions_change_no_byte(tmp_path: Path, epochs: int) -> None:
    settings = job(training={"epochs": epochs, "batch_size": 20})
    alone = fedveil.simulate(settings, tmp_path / "alone")
    shared = fedveil.simulate(
        job(training={"epochs": epochs, "batch_size": 20}, simulation={"workers": 2}),
        tmp_path / "shared",
    )
    short = fedveil.simulate(settings.model_copy(update={"rounds": 2}), tmp_path / "cut")
    resumed = fedveil.resume(short.folder, rounds=4)
    for other in (shared, resumed):
        assert {k: v.tobytes() for k, v in tensors(other).items()} == {
            k: v.tobytes() for k, v in tensors(alone).items()
        }


def test_an_attacker_meets_the_updates_that_travel() -> None:
    target = Target.of(job())
    (update,) = target.updates([3])
    assert update.shape == (SIZE,) == target.weights.shape
    assert Layout(target.model).dimension == target.protection.dimension == SIZE


@pytest.mark.parametrize("model", ["parts:net", "parts:picky"])
def test_a_model_of_ones_own_is_taken_or_refused_before_anything_is_written(
    tmp_path: Path, model: str
) -> None:
    settings = job(model=model, rounds=1)
    if model == "parts:net":  # a chain: BatchNorm and dropout are fixed as they are when tested
        run = fedveil.simulate(settings, tmp_path / "run")
        assert down(run) == SIZE
        return
    with pytest.raises(ModelInvalid, match="needs a model whose head can be recognised"):
        fedveil.simulate(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_does_more_than_its_head_ends_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match="Its forward pass must do nothing else"):
        fedveil.simulate(job(model="parts:sharpened_backbone"), tmp_path / "run")


def test_filters_learn_digits(tmp_path: Path) -> None:
    settings = job(
        data={"name": "digits"},
        model="filters_linear",
        rounds=6,
        clients={"number": 20, "fraction": 1.0},
        training={"train": "all", "batch_size": 100, "lr": 1.0},
        server={"optimizer": "momentum"},
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    assert run.metrics[-1]["accuracy"] > 0.85
    assert set(tensors(run)) == {"1.weight", "1.bias"}
    assert isinstance(run.model, nn.Sequential)
    assert down(run) == 7850


def test_machines_are_compared_by_a_training_of_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the examples themselves it would fail, on each machine alike."""
    monkeypatch.setattr(simulation, "start_on_a_cluster", lambda *given, **named: given)
    settings = job(simulation={"on": "ray"}, training={"batch_size": 7})
    engine, dataset = Simulator(), load_data(settings)
    engine.settle(settings, dataset)
    shape, protection = ModelShape.of(dataset), make_protection(settings, SIZE)
    given: Any = engine.start(settings, shape, protection, tmp_path, lambda line: None)
    batch, test = given[3], dataset.test
    seen = TrainedPart.of(make_model(settings, shape)).inputs(test.x[:21], "cpu")
    np.testing.assert_array_equal(batch.x, seen)
    np.testing.assert_array_equal(batch.y, test.y[:21])
