"""The parts that a job is assembled of, from jobs in which no two numbers are equal."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import parts
from fedveil.compiled.own_loss import OwnLossTrainer
from fedveil.data.datasets import load
from fedveil.engine import job_model
from fedveil.engine.assembly import (
    ModelShape,
    check_weights,
    make_model,
    make_partition,
    start_vector,
    trainer_name,
    training_plan,
)
from fedveil.engine.dry_run import _check_outputs, batches_of, batches_of_the_test
from fedveil.errors import DataInvalid, ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.learning_task import Regression
from fedveil.learning.trainer import LoopTrainer
from fedveil.learning.vmap_trainer import VmapTrainer
from fedveil.learning.weight_layout import Layout

UNEQUAL: dict[str, Any] = {
    "epochs": 3, "batch_size": 7, "lr": 0.5, "momentum": 0.25, "nesterov": True,
    "weight_decay": 0.125, "gradient_norm": 2.0, "proximal": 0.75, "precision": "bfloat16",
    "class_weights": [1.0, 4.0, 8.0], "lr_schedule": "step", "lr_rounds": 2, "lr_factor": 0.1,
}  # fmt: skip


def test_a_plan_is_the_jobs() -> None:
    plan = training_plan(Job(training=UNEQUAL), round=3)
    for key in set(UNEQUAL) - {"lr", "lr_schedule", "lr_rounds", "lr_factor", "class_weights"}:
        assert getattr(plan, key) == UNEQUAL[key], key
    assert plan.lr == pytest.approx(0.05)
    assert (plan.class_weights, plan.optimizer, plan.corrected) == ((1.0, 4.0, 8.0), "sgd", False)
    plain = training_plan(Job())
    assert (plain.class_weights, plain.proximal, plain.gradient_norm) == (None, 0, None)
    assert plain.loss != plan.loss


def test_an_algorithm_decides_what_corrects_a_step() -> None:
    dynamic = training_plan(Job(training={"algorithm": "feddyn", "dynamic": 0.3}))
    assert (dynamic.proximal, dynamic.corrected) == (0.3, True)
    directed = Job(training={"algorithm": "fedcm", "own_direction": 0.25, "lr": 0.5})
    assert (training_plan(directed).lr, training_plan(directed).corrected) == (0.125, True)


def small(**blocks: Any) -> Job:
    base = {"data": {"name": "parts:data"}, "model": "parts:linear", "clients": {"number": 20}}
    return Job(**{**base, **blocks})


@pytest.mark.parametrize(("algorithm", "vectors"), [("fedavg", 1), ("fedcm", 2), ("scaffold", 2)])
def test_the_first_vector_is_the_models_weights_and_zeros(algorithm: str, vectors: int) -> None:
    job = small(training={"algorithm": algorithm})
    layout = Layout(make_model(job, ModelShape((6,), 3)))
    sent = start_vector(job, layout)
    weights = layout.vector()
    assert np.abs(weights).min() > 0
    np.testing.assert_array_equal(sent, np.append(weights, np.zeros((vectors - 1) * len(weights))))


def test_batches_are_of_several_clients_and_each_of_one() -> None:
    """Twenty clients of twelve examples each: every other one gives a batch of five."""
    job = small(training={"batch_size": 5})
    dataset = load("parts:data")
    split = make_partition(job, dataset)
    found = list(batches_of(job, dataset, split))
    assert len(found) == 10
    for client, (x, y) in zip(range(0, 20, 2), found, strict=True):
        rows = split.of(client)[:5]
        assert y.tolist() == dataset.train.y[rows].tolist()
        assert x.tolist() == dataset.train.x[rows].tolist()


def test_batches_of_the_test_cover_it_where_no_training_example_may_be_read() -> None:
    job, dataset = small(training={"batch_size": 5}), load("parts:data")
    x, y = dataset.test.x, dataset.test.y
    found = list(batches_of_the_test(job, dataset))
    stride = len(y) // 8
    assert stride > 1
    assert len(found) == -(-len(y) // stride)
    for place, (rows, targets) in enumerate(found):
        part = slice(place * stride, place * stride + 5)
        assert targets.tolist() == y[part].tolist()
        assert rows.tolist() == x[part].tolist()


def test_the_shape_of_a_model_is_that_of_its_data() -> None:
    shape = ModelShape.of(load("parts:data"))
    assert (shape.example_shape, shape.classes, shape.fingerprint) == ((parts.FEATURES,), 3, "")
    assert (shape.whole_targets, shape.whole_examples) == (True, False)


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [((5, 4), 20 + 3), ((-1, 6), 6 + 3), ({"a": (2, -1), "b": (7,)}, 2 + 7 + 3)],
)
def test_a_dimension_of_any_length_counts_as_one(shape: Any, numbers: int) -> None:
    assert ModelShape(shape, 3).numbers == numbers


def test_layers_that_stay_with_a_client_are_not_sent_and_need_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The 5 biases stay, 5 · 6 weights are sent, and a fixed buffer has 400 bytes."""
    own = Job(model=f"{__name__}:buffered", clients={"number": 4, "own_layers": ["bias"]})
    shape = ModelShape((parts.FEATURES * 20,), 5)
    free = 2 * (5 * 4 + 400)
    for room in (free, free - 1):
        monkeypatch.setattr(job_model, "free_bytes", lambda device, room=room: room)
        with nullcontext() if room == free else pytest.raises(ModelInvalid, match="is free"):
            check_weights(own, shape, 30)


@pytest.mark.parametrize(("model", "weights"), [("buffered", 5 * 6 + 5), ("lazy", 5 * 4 + 5)])
def test_a_model_of_untrusted_size_has_at_most_the_weights_that_were_sent(
    model: str, weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lazy layer's weights are not known yet, and are not counted."""
    monkeypatch.setattr(job_model, "free_bytes", lambda device: None)
    own = Job(model=f"{__name__}:{model}", clients={"number": 4})
    shape = ModelShape((parts.FEATURES * 20,), 5)
    check_weights(own, shape, weights)
    with pytest.raises(
        ModelInvalid, match=f"{weights} weights, but the server sends {weights - 1}"
    ):
        check_weights(own, shape, weights - 1)


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 5))


def buffered() -> nn.Module:
    model = nn.Linear(6, 5)
    model.register_buffer("mask", torch.ones(100), persistent=False)
    return model


def test_a_language_model_is_as_wide_as_the_least_of_its_widths(tmp_path: Path) -> None:
    """A configuration may also name the width of an inner layer."""
    (tmp_path / "config.json").write_text(
        '{"model_type": "opt", "hidden_size": 64, "word_embed_proj_dim": 16}'
    )
    (tmp_path / "model.safetensors").touch()
    task = {"task": "sequence_classification", "data": {"name": "text:x"}}
    own = Job(model=f"hf:{tmp_path}", clients={"number": 4}, **task)
    check_weights(own, ModelShape((8,), 27), 27 * 16)
    with pytest.raises(ModelInvalid, match="at least 432 weights, but the server sends 431"):
        check_weights(own, ModelShape((8,), 27), 27 * 16 - 1)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (LoopTrainer, "loop"), (VmapTrainer, "vmap"), (OwnLossTrainer, "own loss"),
        (ClippedExamplesTrainer, "clipped examples"),
    ],
)  # fmt: skip
def test_a_trainer_is_named_in_words(kind: Any, name: str) -> None:
    assert trainer_name(object.__new__(kind)) == name


@pytest.mark.parametrize("count", [parts.CLASSES - 1, parts.CLASSES + 1])
def test_each_class_has_one_weight(count: int) -> None:
    job = Job(training={"class_weights": [0.5] * count}, model="parts:linear")
    with pytest.raises(ModelInvalid, match=f"has {count} numbers, but the data has"):
        make_model(job, ModelShape((parts.FEATURES,), parts.CLASSES))


def test_a_trial_on_test_examples_has_batches_of_the_job_s_size() -> None:
    y = np.arange(50)
    dataset: Any = SimpleNamespace(test=SimpleNamespace(x=-y, y=y))
    batches = list(batches_of_the_test(Job(training={"batch_size": 5}), dataset))
    starts = range(0, 50, 6)
    assert [b[1].tolist() for b in batches] == [list(range(at, min(at + 5, 50))) for at in starts]
    assert all((x == -y).all() for x, y in batches)


@pytest.mark.parametrize(
    ("targets", "classes", "shape", "wanted", "right"),
    [
        ("numbers", 2, (5, 2), (5, 2), True),
        ("numbers", 1, (5,), (5, 1), True),
        ("numbers", 1, (5, 2), (5, 1), False),
        ("bits", 2, (5,), (5, 2), False),
        ("classes", 3, (5, 3), (5,), True),
        ("classes", 3, (5, 4), (5,), True),
        ("classes", 3, (5, 2), (5,), False),
        ("classes", 3, (4, 3), (5,), False),
    ],
)
def test_outputs_have_a_score_for_each_target(
    targets: str, classes: int, shape: Any, wanted: Any, right: bool
) -> None:
    dataset: Any = SimpleNamespace(targets=targets, classes=classes)
    with nullcontext() if right else pytest.raises(ValueError, match="returns a tensor of shape"):
        _check_outputs(Regression(), dataset, torch.zeros(shape), torch.zeros(wanted))


@pytest.mark.parametrize(
    ("targets", "wanted", "sentence"),
    [
        ("tokens", (2, 5), r"shape \(2, 5, 6\) for 2 x 5 tokens of 7 classes"),
        ("classes", (2, 4), r"shape \(2, 5, 6\) for 2 x 4 examples of 7 classes"),
        ("bits", (2, 5), r"shape \(2, 5, 6\) instead of \(2, 5\)"),
    ],
)
def test_wrong_outputs_are_named_with_what_they_are_scores_of(
    targets: str, wanted: Any, sentence: str
) -> None:
    dataset: Any = SimpleNamespace(targets=targets, classes=7)
    with pytest.raises(ValueError, match=sentence):
        _check_outputs(Regression(), dataset, torch.zeros(2, 5, 6), torch.zeros(wanted))


def test_the_seed_decides_the_first_weights_and_whose_examples_are_whose() -> None:
    shape = ModelShape((parts.FEATURES,), parts.CLASSES)
    made = []
    for seed in (3, 4, 3):
        job = Job(
            seed=seed, model="logistic", data={"name": "digits"}, clients={"number": 7},
        )  # fmt: skip
        weights = Layout(make_model(job.with_({"model": "mlp"}), shape)).vector()
        split = make_partition(job, load("digits"))
        made.append((weights.tobytes(), split.indices.tobytes()))
    assert made[0] == made[2]
    assert all(one != other for one, other in zip(made[0], made[1], strict=True))


@pytest.mark.parametrize("split", ["shards", "dirichlet"])
def test_examples_without_classes_are_not_dealt_by_class(split: str) -> None:
    dataset: Any = SimpleNamespace(labels=None)
    job = Job(data={"split": split}, clients={"number": 7})
    with pytest.raises(DataInvalid, match=f"^data.split = {split} needs classes"):
        make_partition(job, dataset)


@pytest.mark.parametrize(("train", "weights"), [("head", 84 * 7 + 7), ("all", 61_451)])
def test_a_server_sends_only_the_weights_of_the_part_that_is_trained(
    train: str, weights: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_model, "free_bytes", lambda device: None)
    own = Job(model="lenet", clients={"number": 4}, training={"train": train})
    shape = ModelShape((1, 28, 28), 7)
    check_weights(own, shape, weights)
    with pytest.raises(ModelInvalid, match=f"least {weights:,} weights, but the server sends"):
        check_weights(own, shape, weights - 1)


def test_a_server_cannot_make_a_client_store_more_fixed_weights_than_it_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client builds all layers before the head, which no server sends."""
    own = Job(model="lenet", clients={"number": 4}, training={"train": "head"})
    shape, head = ModelShape((1, 28, 28), 7), 84 * 7 + 7
    room = 2 * 4 * (61_451 - head)
    for free in (room, room - 1):
        monkeypatch.setattr(job_model, "free_bytes", lambda device, free=free: free)
        with nullcontext() if free == room else pytest.raises(ModelInvalid, match="is free"):
            check_weights(own, shape, head)
