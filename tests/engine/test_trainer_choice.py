"""Which trainer trains each layer of a model, and the reason where native code does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_learning_tasks import RUNS
from test_simulation import job

import layer_parts
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.engine.trainer_choice import LayerTraining, _shape, layer_training
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is native without numba")

NATIVE, LOOP, VMAP, NOTHING = "native code", "PyTorch's loop", "PyTorch's vmap", "nothing"
HEAD = "it is fixed, because only the head is trained"


def found(model: str, **more: Any) -> list[LayerTraining]:
    data = {"name": "layer_parts:images", "split": "iid"}
    return layer_training(job(model=f"layer_parts:{model}", data=data, **more))


def told(*cases: Any, **more: Any) -> list[tuple[str, str, str]]:
    return [(line.layer, line.trained_by, line.reason) for line in found(*cases, **more)]


def able(cause: str, by: str = LOOP) -> tuple[str, str]:
    return by, f"could be native; {by} trains it because {cause}"


def test_a_chain_of_known_layers_is_native() -> None:
    assert found("chain") == [
        LayerTraining("0.0", "Conv2d", 95, NATIVE, True, ""),
        LayerTraining("0.1", "ReLU", 0, NATIVE, True, ""),
        LayerTraining("1", "MaxPool2d", 0, NATIVE, True, ""),
        LayerTraining("2", "Flatten", 0, NATIVE, True, ""),
        LayerTraining("3", "Linear", 341, NATIVE, True, ""),
        LayerTraining("4", "Tanh", 0, NATIVE, True, ""),
        LayerTraining("5", "Linear", 36, NATIVE, True, ""),
    ]


def test_every_layer_has_its_own_reason_and_the_others_name_them() -> None:
    cause = "of layer 0 (Conv2d), layer 1 (Softplus) and layer 4 (AvgPool2d)"
    assert told("mixed") == [
        ("0", LOOP, "nn.Conv2d has a dilation"),
        ("1", LOOP, "native code does not know Softplus"),
        ("2", *able(cause)),
        ("3", *able(cause)),
        ("4", LOOP, "a pooling has ceil_mode"),
        ("5", *able(cause)),
        ("6", *able(cause)),
    ]
    cause = "of layer 1 (Softplus), layer 2 (Mish), layer 3 (SELU) and 2 more"
    assert told("odd")[-1] == ("6", *able(cause))


def test_a_model_with_its_own_forward_pass_is_told_apart_from_its_layers() -> None:
    cause = "of the model (Residual) and layer body.0 (Conv2d)"
    assert found("Residual") == [
        LayerTraining(
            "model", "Residual", 2, LOOP, False,
            "native code cannot follow the forward pass of Residual",
        ),
        LayerTraining("body.0", "Conv2d", 20, LOOP, False, "nn.Conv2d has groups"),
        LayerTraining("body.1", "ReLU", 0, LOOP, True, able(cause)[1]),
        LayerTraining("head", "Linear", 381, LOOP, True, able(cause)[1]),
    ]  # fmt: skip
    cause = "of the model (Reader) and layer lstm (LSTM)"
    assert told("Reader") == [
        ("model", LOOP, "native code cannot follow the forward pass of Reader"),
        ("lstm", LOOP, "native code does not know LSTM"),
        ("head", *able(cause)),
    ]


def test_nothing_is_said_of_a_layer_that_the_model_does_not_reach() -> None:
    cause = "of the model (Failing) and layer body.0 (Conv2d)"
    body, head = found("Failing")[-2:]
    assert (body.could_be_native, body.reason) == (True, able(cause)[1])
    assert (head.could_be_native, head.reason) == (None, f"{LOOP} trains it because {cause}")


def test_one_layer_at_two_places_is_the_reason() -> None:
    shared = "it shares a weight with layer 4"
    lines = {line.layer: line for line in found("tied")}
    assert {name for name, line in lines.items() if line.could_be_native is False} == {"0", "6"}
    assert lines["6"].reason == shared
    assert lines["1"].could_be_native is None  # its input has two shapes
    assert lines["5"].could_be_native is True


def test_a_layer_of_torchscript_is_one_that_native_code_does_not_know() -> None:
    cause = "of layer 2 (Softplus) and layer 4 (RecursiveScriptModule)"
    unknown = "native code does not know"
    assert told("scripted") == [
        *((str(i), *able(cause)) for i in range(2)),
        ("2", LOOP, f"{unknown} Softplus"),
        ("3", *able(cause)),  # its input is known although the next layer allows no hook
        ("4", LOOP, f"{unknown} RecursiveScriptModule"),
    ]


def test_a_frozen_layer_is_trained_by_nothing_and_is_the_reason() -> None:
    cause = "of layer 0.0 (Conv2d)"
    first, curve, *others = told("half_frozen")
    assert first == ("0.0", NOTHING, "its weights are frozen")
    assert curve == ("0.1", *able(cause))
    assert {(by, reason) for _, by, reason in others} == {able(cause)}


def test_a_head_alone_is_native_behind_any_layers() -> None:
    head = {"training": {"train": "head"}}
    assert told("mixed", **head) == [
        *((str(i), NOTHING, HEAD) for i in range(6)),
        ("6", NATIVE, ""),
    ]
    by_name = layer_training(job(model="parts:Backbone", **head))
    assert [(line.layer, line.trained_by) for line in by_name] == [
        ("features", NOTHING), ("features.0", NOTHING), ("features.1", NOTHING),
        ("features.2", NOTHING), ("head", NATIVE),
    ]  # fmt: skip
    double = {"training": {"train": "head", "precision": "bfloat16"}}
    assert told("mixed", **double)[-1] == ("6", *able("training.precision is bfloat16"))


def test_the_loss_of_a_task_is_pythons_and_its_layers_are_native() -> None:
    *layers, loss = told("chain", task="layer_parts:Focal")
    assert {(by, reason) for _, by, reason in layers} == {(NATIVE, "")}
    assert len(layers) == 7
    assert loss == ("loss", "PyTorch", "only Python can call a task's own loss")
    names = {name for name, _, _ in told("mixed", task="layer_parts:Focal")}
    assert "loss" not in names


@pytest.mark.parametrize(
    ("settings", "by", "cause"),
    [
        ({"training": {"engine": "loop"}}, LOOP, "training.engine is loop"),
        ({"training": {"engine": "vmap"}}, VMAP, "training.engine is vmap"),
        (
            {"training": {"momentum": 0.5, "nesterov": True, "precision": "bfloat16"}},
            LOOP,
            "training.precision is bfloat16 and because training.nesterov is set",
        ),
        (
            {"training": {"algorithm": "scaffold"}, "clients": {"fraction": 1.0}},
            LOOP,
            "training.algorithm corrects each step",
        ),
    ],
)
def test_the_jobs_own_reasons_are_told_for_every_layer(
    settings: dict[str, Any], by: str, cause: str
) -> None:
    assert {(line[1], line[2]) for line in told("chain", **settings)} == {able(cause, by)}
    conv = told("mixed", **settings)[0]
    assert conv == ("0", by, "nn.Conv2d has a dilation")


def test_a_job_and_a_layer_may_both_be_the_reason() -> None:
    cause = "training.precision is bfloat16 and because of layer 0.0 (Conv2d)"
    assert told("half_frozen", training={"precision": "bfloat16"})[-1] == ("5", *able(cause))


@pytest.mark.parametrize(("model", "by"), [("linear", NATIVE), ("chain", VMAP)])
def test_one_dense_layer_alone_is_native_where_each_example_is_protected(
    model: str, by: str
) -> None:
    example = {
        "privacy": {"unit": "example"}, "training": {"sampling_rate": 0.3, "epochs": 1},
        "protection": {"name": "dp_encrypt"},
    }  # fmt: skip
    reasons = {(line[1], line[2]) for line in told(model, **example)}
    assert reasons == {(by, "") if by == NATIVE else able("privacy.unit is example", VMAP)}


UNEVEN = "examples have several inputs or different lengths"


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("regression", (NATIVE, "")),
        ("own", ("PyTorch", "only Python can call a task's own loss")),
        ("transformer", (NATIVE, "")),
        ("next_token", (LOOP, "a token has 12 values, no multiple of 8")),
        ("inputs", (LOOP, f"{LOOP} trains it because {UNEVEN} and because of the model (Words)")),
        ("uneven", (LOOP, f"{LOOP} trains it because {UNEVEN}")),
        ("step", able("task = task_parts:OwnStep has its own optimizer and train")),
    ],
)
def test_every_task_is_told(name: str, last: tuple[str, str]) -> None:
    line = layer_training(RUNS[name][0])[-1]
    assert (line.trained_by, line.reason) == last


def test_a_transformer_layer_is_one_line() -> None:
    kinds = [(line.layer, line.type) for line in layer_training(RUNS["transformer"][0])]
    assert kinds == [
        ("0", "Embedding"), ("1", "Positions"), ("2", "CausalLayer"), ("3", "CausalLayer"),
        ("4", "LayerNorm"), ("5", "Linear"),
    ]  # fmt: skip


def test_the_run_trains_as_the_table_says() -> None:
    for settings, _, trainer in RUNS.values():
        layers = [line for line in layer_training(settings) if line.layer != "loss"]
        native = trainer in ("compiled", "own loss")
        assert {line.trained_by for line in layers} == {NATIVE if native else LOOP}


def test_without_numba_no_layer_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("engine.trainer_choice", "compiled.compiled_trainer"):
        monkeypatch.setattr(f"fedveil.{module}.HAVE_NUMBA", False)
    cause = "numba is not installed or is turned off"
    lines = found("mixed")
    assert {line.reason for line in lines} == {f"{LOOP} trains it because {cause}"}
    assert {line.could_be_native for line in lines} == {None}


def test_the_model_is_called_once_and_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Counted(layer_parts.Residual):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append((len(x), torch.is_grad_enabled(), self.training))
            return super().forward(x)

    monkeypatch.setattr(layer_parts, "Residual", Counted)
    found("Residual")
    assert calls == [(1, False, False)]


def test_a_job_that_cannot_run_is_an_error() -> None:
    with pytest.raises(ModelInvalid, match="class_weights"):
        found("chain", training={"class_weights": [1.0, 2.0]})


@pytest.mark.parametrize(("name", "whole"), [("shakespeare", True), ("femnist", False)])
def test_the_examples_of_a_bundled_data_set_are_tokens_or_numbers(name: str, whole: bool) -> None:
    """Nothing of the data is read."""
    found = _shape(Job(data={"name": name}, model="parts:linear", clients={"number": 4}))
    assert found.whole_examples == whole
