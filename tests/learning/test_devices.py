"""Training on a GPU gives what it gives on the CPU, and leaves nothing behind on the CPU.

Without a GPU, a device that is only pretended (`pretend_device`) finds what is not moved, and the
comparison itself is tested with the CPU in the place of the GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import fedveil
from fedveil.federated.job import Job
from fedveil.learning import device as devices
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.learning_task import Classification, NextToken
from fedveil.learning.models import lenet
from fedveil.learning.task_trainer import TaskTrainer
from fedveil.learning.token_layers import CausalLayer, Positions
from fedveil.learning.trained_part import TrainedPart, only_head
from fedveil.learning.trainer import ClientData, LoopTrainer, OneThread, Trained, TrainingPlan
from fedveil.learning.vmap_trainer import VmapTrainer
from fedveil.learning.weight_layout import Layout
from known_chains import TOKENS, of_words
from pretend_device import PRETEND, MixedDevicesError, pretend_device
from training_parts import clients, plan, train

Engine = Callable[[nn.Module, TrainingPlan, str], Any]
#: The largest distance from the CPU's update, as a share of its norm, in each number format.
NEAR = {"float32": 1e-4, "bfloat16": 0.05}
ACCELERATORS = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
ON_EACH = pytest.mark.parametrize(
    "device",
    ACCELERATORS or [pytest.param("cuda", marks=pytest.mark.skip(reason="torch finds no GPU"))],
)


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.Tanh(), nn.Linear(24, 10))


def small_lenet() -> nn.Module:
    return lenet((1, 28, 28), 10)


def transformer() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(TOKENS, 16), Positions(5, 16), CausalLayer(16, 2, 24), nn.LayerNorm(16),
        nn.Linear(16, TOKENS),
    )  # fmt: skip


def by_task(model: nn.Module, plan: TrainingPlan, device: str) -> TaskTrainer:
    words = plan.loss == "next_token"
    return TaskTrainer(model, plan, NextToken() if words else Classification(), device)


def clipped(model: nn.Module, plan: TrainingPlan, device: str) -> ClippedExamplesTrainer:
    return ClippedExamplesTrainer(model, plan, rate=1.0, clip=0.01, device=device)


MODELS = pytest.mark.parametrize("made", [dense, small_lenet, transformer])
ENGINES = pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer, by_task, clipped])
#: Every setting that needs another vector of the model's length on the device.
FULL = plan(
    epochs=1, momentum=0.9, nesterov=True, weight_decay=0.1, proximal=0.5, gradient_norm=0.3,
    corrected=True,
)  # fmt: skip


def updates(engine: Engine, made: Callable[[], nn.Module], plan: TrainingPlan, on: str) -> Any:
    """Train three clients of unequal sizes, the last batch of each with fewer examples."""
    torch.manual_seed(3)
    model, sizes = made(), (9, 1, 6)
    if made is transformer:
        cohort, plan = of_words(clients((5,), 3, sizes)), replace(plan, loss="next_token")
    else:
        cohort = clients((1, 28, 28), 10, sizes)
    if engine in (LoopTrainer, by_task) and plan.corrected:
        draw = np.random.default_rng(4).normal(size=Layout(model).dimension).astype(np.float32)
        cohort = [replace(one, correction=torch.from_numpy(0.01 * draw)) for one in cohort]
    return train(engine(copy.deepcopy(model), plan, on), model, cohort)


def compare(
    engine: Engine, made: Callable[[], nn.Module], plan: TrainingPlan, device: str
) -> list[float]:
    """Return each client's distance between the updates of `device` and those of the CPU."""
    there, here = updates(engine, made, plan, device), updates(engine, made, plan, "cpu")
    assert (np.linalg.norm(here, axis=1) > 0).all()
    distances = np.linalg.norm(there - here, axis=1) / np.linalg.norm(here, axis=1)
    near = NEAR[plan.precision]
    assert (distances <= near).all(), f"{device} is {distances} from the CPU, more than {near}"
    return list(distances)


@ON_EACH
@MODELS
@ENGINES
def test_a_gpu_trains_as_the_cpu(
    engine: Engine, made: Callable[[], nn.Module], device: str
) -> None:
    compare(engine, made, plan(momentum=0.9), device)


@ON_EACH
@MODELS
@pytest.mark.parametrize("engine", [LoopTrainer, VmapTrainer, by_task])
def test_a_gpu_trains_in_16_bits_as_the_cpu(
    engine: Engine, made: Callable[[], nn.Module], device: str
) -> None:
    compare(engine, made, plan(precision="bfloat16"), device)


def rounds(folder: Path, device: str, **training: Any) -> dict[str, Any]:
    """Run three rounds with `device`, and return the model."""
    job = Job(
        name="small", rounds=3, clients={"number": 8, "fraction": 0.5}, model="parts:plain",
        data={"name": "parts:data"}, simulation={"workers": 0, "dropouts": 0.2},
        training={"epochs": 2, "batch_size": 7, "lr": 0.2, "device": device, **training},
    )  # fmt: skip
    return load_file(fedveil.simulate(job, folder).folder / "model.safetensors")


@ON_EACH
@pytest.mark.parametrize(
    "training", [{"engine": "loop"}, {"engine": "vmap"}, {"algorithm": "scaffold"}]
)
def test_rounds_on_a_gpu_end_with_the_cpus_model(
    tmp_path: Path, device: str, training: dict[str, Any]
) -> None:
    there = rounds(tmp_path / "there", device, **training)
    here = rounds(tmp_path / "here", "cpu", **training)
    assert there.keys() == here.keys()
    for name, values in here.items():
        np.testing.assert_allclose(there[name], values, atol=1e-4 * np.abs(values).max())


@MODELS
@ENGINES
def test_the_comparison_finds_nothing_between_the_cpu_and_itself(
    engine: Engine, made: Callable[[], nn.Module]
) -> None:
    assert compare(engine, made, plan(epochs=1), "cpu") == [0, 0, 0]


class Wrong(OneThread):
    """A trainer whose result on a device that is not plainly "cpu" is wrong for one client."""

    def __init__(self, model: nn.Module, plan: TrainingPlan, device: str) -> None:
        self._right, self._device = LoopTrainer(model, plan), device
        self.start = self._right.start

    def train(self, cohort: Sequence[ClientData]) -> Iterator[Trained]:
        for number, (rows, failures) in enumerate(self._right.train(cohort)):
            if self._device != "cpu" and number == len(cohort) - 1:
                rows[:, 3] += 3e-4 * np.linalg.norm(rows)
            yield rows, failures


def test_the_comparison_notices_a_client_whose_update_is_wrong() -> None:
    with pytest.raises(AssertionError, match="cpu:0 is"):
        compare(Wrong, dense, replace(plan(), batch_size=100), "cpu:0")


@MODELS
@ENGINES
@pytest.mark.parametrize("plan", [plan(epochs=1, weight_decay=0.1), FULL], ids=["plain", "full"])
def test_everything_is_moved_to_the_device(
    engine: Engine, made: Callable[[], nn.Module], plan: TrainingPlan
) -> None:
    with pretend_device() as device:
        compare(engine, made, plan, PRETEND)
    assert device.operations > 100


def test_class_weights_and_adams_state_are_on_the_device() -> None:
    weighted = plan(
        loss="weighted_cross_entropy", class_weights=(0.2, *[1.5] * 9), optimizer="adam", lr=0.01
    )
    with pretend_device():
        for engine in (LoopTrainer, VmapTrainer, clipped):
            compare(engine, dense, weighted, PRETEND)


def test_the_fixed_layers_work_on_the_device() -> None:
    part = TrainedPart.of(only_head(dense()))
    x = clients((1, 28, 28), 10, (5,))[0].x.numpy()
    with pretend_device() as device:
        there = part.inputs(x, PRETEND), part.usable_inputs(x, np.ones(5, np.bool_), PRETEND)[0]
    assert device.operations > 10
    for found in there:
        np.testing.assert_array_equal(found, part.inputs(x))


@pytest.mark.parametrize(
    "mix",
    [
        lambda there, here: there + here,
        lambda there, here: here @ there,
        lambda there, here: torch.stack([there, here]),
        lambda there, here: torch.func.vmap(torch.mul)(there, here),
        lambda there, here: torch._foreach_add_([here], [there]),
        lambda there, here: nn.functional.linear(there, here),
    ],
)
def test_the_pretended_device_mixes_with_nothing(mix: Callable[..., Any]) -> None:
    with pretend_device():
        here = torch.eye(3)
        there = here.to(PRETEND)
        assert there.device.type == torch.eye(3, device=PRETEND).device.type == PRETEND
        assert (there @ there + 1).to("cpu").sum() == 12
        with pytest.raises(MixedDevicesError):
            mix(there, here)
        with pytest.raises((RuntimeError, TypeError)):
            there.numpy()


@contextmanager
def _current(log: list[Any], device: torch.device) -> Iterator[None]:
    log.append(device)
    yield
    log.append(None)


def test_the_generator_of_the_clients_own_gpu_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch seeds the current GPU, which is the first one whatever the job says."""
    log: list[Any] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: _current(log, device))
    monkeypatch.setattr(torch.cuda, "manual_seed", log.append)
    with torch.random.fork_rng(devices=[]):
        devices.seed_generators(7, torch.device("cuda:1"))
        devices.seed_generators(8, torch.device("cpu"))
    assert log == [torch.device("cuda:1"), 7, None]


class _Noting(torch.autograd.Function):
    """Does nothing, and notes if cuDNN may round to TF32, in both passes."""

    generate_vmap_rule = True
    found: list[bool] = []  # noqa: RUF012

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        _Noting.found.append(torch.backends.cudnn.allow_tf32)
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        _Noting.found.append(torch.backends.cudnn.allow_tf32)
        return gradient.clone()


class Noting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noted: torch.Tensor = _Noting.apply(x)
        return noted


@ENGINES
def test_no_pass_in_float32_is_rounded_to_tf32(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Noting, "found", [])
    assert torch.backends.cudnn.allow_tf32
    updates(engine, lambda: nn.Sequential(dense(), Noting()), plan(), "cpu")
    assert len(_Noting.found) > 4
    assert not any(_Noting.found)
    assert torch.backends.cudnn.allow_tf32


def test_nor_is_a_fixed_layers_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Noting, "found", [])
    model = only_head(nn.Sequential(nn.Linear(6, 4), Noting(), nn.Linear(4, 3)))
    TrainedPart.of(model).inputs(np.ones((3, 6), np.float32))
    assert not _Noting.found[-1]


@pytest.mark.parametrize("allowed", [True, False])
def test_an_error_leaves_the_users_own_choice(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "allow_tf32", allowed)
    with suppress(ZeroDivisionError), devices.whole_float32():
        assert not cudnn.allow_tf32
        raise ZeroDivisionError
    assert cudnn.allow_tf32 == allowed


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch is older than 2.9")
def test_a_precision_for_convolutions_alone_is_the_users() -> None:
    cudnn = torch.backends.cudnn
    cudnn.conv.fp32_precision = "ieee"
    try:
        with devices.whole_float32():
            assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("ieee", "tf32")
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == ("ieee", "tf32")
    finally:
        cudnn.allow_tf32 = True
