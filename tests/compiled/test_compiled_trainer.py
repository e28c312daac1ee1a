"""Training in native code does what the loop does, and what calculus says."""

from __future__ import annotations

import copy
import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.compiled.chain import KNOWN
from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.compiled.native import Native
from fedveil.entropy import Seeded
from fedveil.learning.known_layers import plain_layers
from fedveil.learning.losses import WEIGHTED
from fedveil.learning.models import lenet
from fedveil.learning.trainer import ClientData, TrainingPlan
from fedveil.learning.weight_layout import Layout
from known_chains import SIZES, TOKENS, chains, of_tokens, signed, token_chains
from native_training import Double, by_loop, compiled, in_double, refused, trained_as_torch_trains
from training_parts import Doubled, clients, plan, tied, train

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")


@given(
    chains(),
    st.sampled_from(
        [
            plan(lr=0.05),
            plan(lr=0.05, batch_size=3, epochs=1),
            plan(lr=0.05, momentum=0.9, weight_decay=0.01),
            plan(lr=0.05, proximal=0.5, gradient_norm=0.3),
        ]
    ),
)
@settings(max_examples=25)
def test_any_chain_is_trained_as_torch_trains_it(
    made: tuple[nn.Module, tuple[int, ...]], plan: TrainingPlan
) -> None:
    model, shape = made
    trained_as_torch_trains(model, shape, plan, signed(clients(shape, 5, SIZES)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"optimizer": "lbfgs"}, "training.optimizer is lbfgs"),
        ({"loss": "own"}, "the loss is own"),
        ({"precision": "bfloat16"}, "training.precision is bfloat16"),
        ({"corrected": True}, "training.algorithm corrects each step"),
        ({"momentum": 0.9, "nesterov": True}, "training.nesterov is set"),
    ],
)
def test_a_plan_that_native_code_cannot_follow_is_refused(
    changes: dict[str, Any], reason: str
) -> None:
    assert CompiledTrainer.plan_refusals(plan(**changes)) == [reason]
    assert CompiledTrainer.of(nn.Linear(3, 2), plan(**changes)) is None


WEIGHTS = {"loss": WEIGHTED, "class_weights": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("changes", "y", "known"),
    [
        ({}, torch.tensor([0, 2, 1, 2]), True),
        ({}, torch.tensor([0, 3, 1, 2]), False),
        ({}, torch.tensor([0, -1, 1, 2]), False),
        ({}, torch.tensor([[0], [2], [1], [2]]), False),
        ({}, torch.tensor([0, 2, 1]), False),
        ({}, torch.tensor([0, 2, 1, 2], dtype=torch.int32), False),
        (WEIGHTS, torch.tensor([0, 1, 1, 0]), True),
        (WEIGHTS, torch.tensor([0, 1, 2, 0]), False),
        ({"loss": "mean_square"}, torch.ones(4, 3), True),
        ({"loss": "mean_square"}, torch.ones(12), False),
        ({"loss": "mean_square"}, torch.ones(4, 2), False),
        ({"loss": "mean_square"}, torch.ones(4, 3, dtype=torch.float64), False),
    ],
)
def test_targets_that_native_code_cannot_read_are_left_to_torch(
    changes: dict[str, Any], y: torch.Tensor, known: bool
) -> None:
    """Native code checks no index: a class without a weight would be read beyond its array."""
    trainer = CompiledTrainer.of(nn.Linear(5, 3), plan(**changes))
    assert trainer is not None
    assert trainer._known(y, torch.zeros(4, 5), 3) == known


def test_targets_that_lie_apart_in_memory_are_read_in_their_order() -> None:
    model = nn.Linear(5, 3)
    (client,) = clients((5,), 3, (6,))
    apart = replace(client, y=torch.tensor([0, 2, 1, 0, 2, 0, 2, 1, 1, 0, 1, 2])[::2])
    assert apart.y.stride() == (2,)
    trained_as_torch_trains(model, (5,), plan(), [apart])


@given(token_chains(), st.sampled_from([plan(lr=0.05), plan(lr=0.05, momentum=0.9)]))
@settings(max_examples=15)
def test_any_chain_of_tokens_is_trained_as_torch_trains_it(
    made: tuple[nn.Module, tuple[int, ...]], plan: TrainingPlan
) -> None:
    model, shape = made
    trained_as_torch_trains(model, shape, plan, of_tokens(clients(shape, 5, SIZES)))


def test_a_token_that_comes_twice_moves_its_row_twice() -> None:
    model = nn.Sequential(nn.Embedding(TOKENS, 8), nn.Flatten(), nn.Linear(24, 5))
    (client,) = of_tokens(clients((3,), 5, (4,)))
    client.x[:] = 1
    trained_as_torch_trains(model, (3,), plan(), [client])


@pytest.mark.parametrize("token", [TOKENS, -1])
def test_a_token_that_there_is_not_is_torchs_to_refuse(token: int) -> None:
    model = nn.Sequential(nn.Embedding(TOKENS, 8), nn.Flatten(), nn.Linear(24, 5))
    (client,) = of_tokens(clients((3,), 5, (4,)))
    client.x[2, 1] = token
    trainer = compiled(model, plan())
    trainer.start(Layout(model).vector())
    ((_, (failure,)),) = trainer.train([client])
    assert isinstance(failure, IndexError)


@pytest.mark.parametrize("outputs", [1, 3, 4, 9])
@pytest.mark.parametrize("inputs", [1, 15, 16, 33])
def test_a_dense_layer_of_any_size(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh(), nn.Linear(outputs, 3))
    chosen = plan(batch_size=7)
    cohort = signed(clients((inputs,), 3, (1, 20)))
    found = train(compiled(model, chosen), model, cohort)
    for row, client in zip(found, cohort, strict=True):
        np.testing.assert_allclose(row, in_double(model, chosen, client), atol=1e-6)


@pytest.mark.parametrize("inputs", [8, 57, 210])
def test_a_dense_layer_whose_gradient_is_mostly_zeros(inputs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(inputs, 60), nn.ReLU(), nn.Linear(60, 3))
    chosen = plan(batch_size=7)
    (client,) = signed(clients((inputs,), 3, (20,)))
    found = train(compiled(model, chosen, Double), model, [client])[0]
    np.testing.assert_allclose(found, in_double(model, chosen, client), atol=1e-12)


def test_a_zero_times_infinity_is_no_number_as_in_torch() -> None:
    """Units of which every example makes nothing have no gradient, but an example is infinite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    (client,) = clients((2,), 3, (4,))
    client.x[1, 0] = float("inf")
    chosen = plan(epochs=1)
    found, wanted = (
        train(compiled(model, chosen), model, [client]),
        by_loop(model, chosen, [client]),
    )
    rows = np.isfinite(wanted[0, :16].reshape(8, 2))
    assert (rows == [False, True]).all(1).any()  # it is told apart from what has a gradient
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


def two_convolutions() -> nn.Module:
    """Every kind of layer that has a gradient of its own."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(1, 5),
        nn.Conv2d(5, 9, 2, stride=2), nn.Tanh(), nn.AvgPool2d(2, 1), nn.Flatten(),
        nn.Linear(9, 12), nn.GELU(), nn.LayerNorm(12), nn.Linear(12, 4),
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "adagrad"])
def test_in_double_precision_it_is_torch_to_the_ninth_place(optimizer: str) -> None:
    model = two_convolutions()
    chosen = plan(optimizer=optimizer, lr=0.01, weight_decay=0.02, gradient_norm=1.0, proximal=0.1)
    (client,) = signed(clients((2, 9, 9), 4, (10,)))
    found = train(compiled(model, chosen, Double), model, [client])[0]
    np.testing.assert_allclose(found, in_double(model, chosen, client), atol=1e-9)


@pytest.mark.parametrize("loss", ["mean_square", "binary_cross_entropy", WEIGHTED])
def test_every_loss_in_double_precision(loss: str) -> None:
    model = two_convolutions()
    weights = (0.5, 2.0, 1.0, 0.25) if loss == WEIGHTED else None
    chosen = plan(lr=0.05, loss=loss, class_weights=weights)
    (client,) = signed(clients((2, 9, 9), 4, (10,)))
    if loss != WEIGHTED:
        targets = Seeded(3).generator().integers(0, 2, (10, 4)).astype(np.float32)
        client = replace(client, y=torch.from_numpy(targets))
    found = train(compiled(model, chosen, Double), model, [client])[0]
    np.testing.assert_allclose(found, in_double(model, chosen, client), atol=1e-9)


def test_one_number_for_each_example() -> None:
    torch.manual_seed(0)
    model, chosen = nn.Linear(6, 1), plan(loss="mean_square")
    (client,) = clients((6,), 3, (9,))
    client = replace(client, y=client.y[:, None].float())
    trainer = compiled(model, chosen)
    found = train(trainer, model, [client])[0]
    assert trainer._room is not None  # torch had no part in it
    np.testing.assert_allclose(found, in_double(model, chosen, client), atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adagrad"])
def test_the_adaptive_optimisers_in_single_precision(optimizer: str) -> None:
    model, chosen = two_convolutions(), plan(optimizer=optimizer, lr=0.01, weight_decay=0.01)
    cohort = signed(clients((2, 9, 9), 4, SIZES))
    found, wanted = train(compiled(model, chosen), model, cohort), by_loop(model, chosen, cohort)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_gradients_are_finite_differences() -> None:
    """One step of all examples with a rate of 1 is the gradient itself."""
    model = two_convolutions()
    (client,) = signed(clients((2, 9, 9), 4, (6,)))
    step = plan(epochs=1, batch_size=6, lr=1.0)
    gradient = -train(compiled(model, step, Double), model, [client])[0]
    double = copy.deepcopy(model).double()
    flat = nn.utils.parameters_to_vector(double.parameters()).detach()

    def loss(vector: torch.Tensor) -> float:
        nn.utils.vector_to_parameters(vector, double.parameters())
        with torch.no_grad():
            return float(nn.functional.cross_entropy(double(client.x.double()), client.y))

    small = 1e-6
    for place in range(0, len(flat), 7):
        aside = torch.zeros_like(flat)
        aside[place] = small
        slope = (loss(flat + aside) - loss(flat - aside)) / (2 * small)
        assert gradient[place] == pytest.approx(slope, abs=1e-7)


def test_lenet() -> None:
    torch.manual_seed(0)
    model, chosen = lenet((1, 28, 28), 10), plan(batch_size=20, lr=0.01)
    cohort = signed(clients((1, 28, 28), 10, (60, 33)))
    found, wanted = train(compiled(model, chosen), model, cohort), by_loop(model, chosen, cohort)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_is_not_finite_goes_where_it_goes_in_torch(value: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
    )
    (client,) = signed(clients((1, 8, 8), 4, (9,)))
    client.x[4, 0, 3, 3] = value
    chosen = plan(epochs=1)
    found, wanted = (
        train(compiled(model, chosen), model, [client]),
        by_loop(model, chosen, [client]),
    )
    assert not np.isfinite(wanted).all()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


@given(
    chains(), st.sampled_from([float("inf"), float("-inf"), float("nan"), 1e20, -1e20, 3e14]),
    st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=25)
def test_an_odd_number_anywhere_goes_where_it_goes_in_torch(
    made: tuple[nn.Module, tuple[int, ...]], value: float, place: int
) -> None:
    """Also behind a pooling, whose losing entries torch multiplies by 0."""
    model, shape = made
    (client,) = signed(clients(shape, 5, (7,)))
    client.x.view(-1)[place % client.x.numel()] = value
    chosen = plan(lr=0.05, epochs=1, batch_size=3)
    found, wanted = (
        train(compiled(model, chosen), model, [client]),
        by_loop(model, chosen, [client]),
    )
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


def test_an_infinity_that_loses_a_pooling_is_torchs() -> None:
    """Its gradient is 0, and torch multiplies it by the infinity."""
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 2, 1)
    conv.weight.data.fill_(-1.0)
    model = nn.Sequential(conv, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    (client,) = clients((1, 4, 4), 3, (5,))
    client.x[2, 0, 1, 3] = float("inf")
    chosen = plan(epochs=1, batch_size=5)
    found, wanted = (
        train(compiled(model, chosen), model, [client]),
        by_loop(model, chosen, [client]),
    )
    assert not np.isfinite(wanted).all()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", WEIGHTED])
def test_saturated_scores_move_nothing_as_in_torch(loss: str, optimizer: str) -> None:
    """A batch of 7 has the share 1/7, which no float holds: a tiny rest would be a whole step."""
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([60.0, -60.0, -70.0]))
    weights = (0.3, 2.0, 1.1) if loss == WEIGHTED else None
    chosen = plan(
        optimizer=optimizer, loss=loss, class_weights=weights, lr=0.1, batch_size=7, epochs=1
    )
    (client,) = signed(clients((6,), 3, (7,)))
    sure = torch.zeros_like(client.y)
    if loss == "binary_cross_entropy":
        sure = torch.tensor([1.0, 0.0, 0.0]).repeat(7, 1)
    client = replace(client, y=sure)
    trainer = compiled(model, chosen)
    found, wanted = train(trainer, model, [client])[0], by_loop(model, chosen, [client])[0]
    assert trainer._room is not None  # torch had no part in it
    assert np.abs(wanted).max() < 1e-9
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@given(chains(), st.sampled_from([30.0, 300.0, 3e3]), st.integers(2, 7))
@settings(max_examples=25)
def test_saturated_scores_of_any_model_move_it_as_in_torch(
    made: tuple[nn.Module, tuple[int, ...]], factor: float, batch_size: int
) -> None:
    """An update is a difference of weights, so it errs by some units in their last place."""
    model, shape = made
    last = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1]
    with torch.no_grad():
        for weights in last.parameters():
            weights.mul_(factor)
    (client,) = signed(clients(shape, 5, (7,)))
    chosen = plan(lr=0.01, epochs=1, batch_size=batch_size)
    found = train(compiled(model, chosen), model, [client])[0]
    wanted = by_loop(model, chosen, [client])[0]
    largest = np.abs(Layout(model).vector()).max()
    error = 2e-4 * np.abs(wanted).max() + 4 * np.finfo(np.float32).eps * largest
    np.testing.assert_allclose(found, wanted, rtol=0, atol=error)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_nobody_else_decides_about_a_clients_bytes(momentum: float) -> None:
    torch.manual_seed(0)
    model, chosen = two_convolutions(), plan(momentum=momentum)
    cohort = signed(clients((2, 9, 9), 4, (5, 12, 3)))
    cohort[1].x[0] = float("inf")
    trainer = compiled(model, chosen)
    together = train(trainer, model, cohort)
    alone = [train(compiled(model, chosen), model, [client])[0] for client in cohort]
    np.testing.assert_array_equal(together, alone)
    other = trainer.for_another_thread()
    trainer.start(Layout(model).vector())
    ((row, _),) = other.train(cohort[2:])
    np.testing.assert_array_equal(row[0], alone[2])


def test_a_trainer_for_another_thread_has_a_model_of_its_own_for_unusual_data() -> None:
    """The loop keeps these weights, which fill cache lines, in memory of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
    (client,) = signed(clients((16,), 16, (5,)))
    client.x[3, 2] = 1e20
    trainer = compiled(model, plan())
    other = trainer.for_another_thread()
    wanted = by_loop(model, plan(), [client])
    for each in (trainer, other, trainer):
        np.testing.assert_array_equal(train(each, model, [client]), wanted)


def test_dropout_drops_what_the_clients_own_stream_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.4), nn.Linear(50, 3))
    chosen = plan(epochs=1, batch_size=8)
    (client,) = clients((6,), 3, (8,))
    found = train(compiled(model, chosen), model, [client])[0]
    draws = client.entropy.stream("dropout").generator().random((8, 50), np.float32)

    class Dropped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.from_numpy(draws >= 0.4) / 0.6

    model[1] = Dropped()
    np.testing.assert_allclose(found, by_loop(model, chosen, [client])[0], atol=1e-6)
    other = replace(client, entropy=Seeded(2))
    assert (
        train(compiled(nn.Sequential(model[0], nn.Dropout(0.4), model[2]), chosen), model, [other])[
            0
        ]
        != found
    ).any()


def test_a_client_with_too_much_dropout_for_the_memory_is_the_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client needs 50 random numbers for each of 8 examples in each of 2 epochs."""
    model = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.4), nn.Linear(50, 3))
    (client,) = clients((6,), 3, (8,))
    trainer = compiled(model, plan())
    monkeypatch.setattr("fedveil.compiled.compiled_trainer._MOST_DRAWS", 800)
    assert trainer._room_for(client) is not None
    monkeypatch.setattr("fedveil.compiled.compiled_trainer._MOST_DRAWS", 799)
    assert trainer._room_for(client) is None


def test_torch_trains_in_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its random generator belongs to all threads, and each client seeds it for its dropout."""
    first = compiled(nn.Linear(6, 3), plan())
    (client,) = clients((6,), 3, (4,))
    client.x[0, 0] = float("inf")
    running, most = [0], [0]

    def train_slowly(cohort: Sequence[ClientData]) -> list[Any]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.02)
        running[0] -= 1
        return []

    trainers = [first, first.for_another_thread()]
    for trainer in trainers:
        monkeypatch.setattr(trainer._loop, "train", train_slowly)
    with ThreadPoolExecutor(2) as pool:
        [*pool.map(lambda trainer: list(trainer.train([client])), trainers)]
    assert most == [1]


def test_what_is_odd_about_a_client_torch_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    cohort = clients((6,), 3, (4, 4, 4, 4))
    cohort[0] = replace(cohort[0], x=cohort[0].x[:, :5])
    cohort[1].y[2] = 3
    trainer = compiled(model, plan())
    trainer.start(Layout(model).vector())
    failures = [failure for _, (failure,) in trainer.train(cohort)]
    assert [type(failure) for failure in failures] == [RuntimeError, IndexError, *[type(None)] * 2]


@pytest.mark.parametrize(
    ("loss", "weights", "y"),
    [
        ("mean_square", None, torch.zeros(4, 2)),
        ("mean_square", None, torch.zeros(12)),
        ("binary_cross_entropy", None, torch.zeros(4, 2)),
        (WEIGHTED, (1.0, 1.0), torch.tensor([0, 1, 2, 0])),
    ],
)
def test_targets_that_do_not_fit_are_torchs_to_refuse(
    loss: str, weights: tuple[float, ...] | None, y: torch.Tensor
) -> None:
    torch.manual_seed(0)
    model, (client,) = nn.Linear(6, 3), clients((6,), 3, (4,))
    trainer = compiled(model, plan(loss=loss, class_weights=weights))
    trainer.start(Layout(model).vector())
    ((_, (failure,)),) = trainer.train([replace(client, y=y)])
    assert isinstance(failure, RuntimeError | IndexError)


def test_where_compiled_code_cannot_be_kept_it_is_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An installation that nobody may write to, without a home: numba itself refuses to cache."""
    from numba.core.caching import CompileResultCacheImpl

    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])

    def doubled(m: Any, count: int) -> None:
        for i in range(count):
            m[i] *= 2

    numbers = np.arange(3, dtype=np.float64)
    code = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    code(Native(doubled, "Fi").address(np.float64))(numbers.ctypes.data, 3)
    assert numbers.tolist() == [0, 2, 4]


def test_what_is_compiled_ahead_is_all_that_a_client_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, chosen = two_convolutions(), plan(momentum=0.9)
    trainer = compiled(model, chosen)
    assert trainer.compile((2, 9, 9))
    assert not trainer.compile((2, 9))
    monkeypatch.setattr("fedveil.compiled.native.CFunc", None)
    cohort = signed(clients((2, 9, 9), 4, SIZES))
    other = trainer.for_another_thread()
    np.testing.assert_allclose(
        train(other, model, cohort), by_loop(model, chosen, cohort), atol=1e-5
    )


def test_nothing_is_written_past_the_ends_of_the_memories() -> None:
    """The bytes after them do not change, and neither do the borders, which must stay zero."""
    torch.manual_seed(0)
    model, chosen = two_convolutions(), plan(momentum=0.9)
    trainer = compiled(model, chosen)
    train(trainer, model, signed(clients((2, 9, 9), 4, (4,))))
    room = trainer._room
    guarded = replace(
        room,
        m=np.append(room.m, np.full(4096, 7, np.float32)),
        w=np.append(room.w, np.full(4096, 7, np.int32)),
    )
    trainer._room = guarded
    train(trainer, model, signed(clients((2, 9, 9), 4, SIZES)))
    assert trainer._room is guarded
    assert (guarded.m[-4096 - 64 :] == np.append(np.zeros(64), np.full(4096, 7))).all()
    assert (guarded.w[-4096 - 64 :] == np.append(np.zeros(64), np.full(4096, 7))).all()


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))


def test_every_round_starts_from_its_own_weights() -> None:
    """In native code, and in the loop that trains clients with unusual data."""
    model, chosen = small(), plan()
    cohort = signed(clients((6,), 3, (9, 5)))
    cohort[1].x[2, 1] = 1e20
    trainer = compiled(model, chosen)
    train(trainer, model, cohort)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    found, wanted = train(trainer, other, cohort), by_loop(other, chosen, cohort)
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-6)
    np.testing.assert_array_equal(found[1], wanted[1])


def test_a_label_that_a_loss_ignores_and_numbers_of_another_type_are_torchs() -> None:
    model, chosen = small(), plan()
    (client,) = signed(clients((6,), 3, (9,)))
    client.y[[2, 5]] = -100
    np.testing.assert_array_equal(
        train(compiled(model, chosen), model, [client]), by_loop(model, chosen, [client])
    )
    trainer = compiled(model, chosen)
    trainer.start(Layout(model).vector())
    double = replace(client, x=client.x.double(), y=client.y.clamp(min=0))
    ((_, (failure,)),) = trainer.train([double])
    assert isinstance(failure, RuntimeError)


def test_one_row_of_numbers_is_compiled_ahead_too() -> None:
    model, chosen = small(), plan(loss="mean_square")
    trainer = compiled(model, chosen)
    assert trainer.compile((6,))
    assert trainer._room is not None  # not by torch
    assert not trainer.compile((5,))


def test_a_norm_has_its_own_epsilon_and_maybe_no_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4, eps=0.7), nn.Conv2d(4, 6, (2, 1)), nn.Tanh(),
        nn.GroupNorm(3, 6, 0.2, affine=False), nn.Conv2d(6, 5, 1), nn.Flatten(),
        nn.Linear(30, 9), nn.LayerNorm(9, 0.1, elementwise_affine=False), nn.Linear(9, 3),
    )  # fmt: skip
    trained_as_torch_trains(model, (2, 5, 5), plan(), signed(clients((2, 5, 5), 3, (7,))))


@pytest.mark.parametrize(
    "change", [{"nesterov": True, "momentum": 0.9}, {"precision": "bfloat16"}, {"corrected": True}]
)
def test_a_plan_that_native_code_does_not_follow_is_the_loops(change: dict[str, Any]) -> None:
    assert CompiledTrainer.of(small(), plan()) is not None
    assert CompiledTrainer.of(small(), plan(**change)) is None


def test_a_trainer_for_a_known_shape_is_none_if_the_shape_does_not_fit() -> None:
    assert CompiledTrainer.of(small(), plan(), (6,)) is not None
    assert CompiledTrainer.of(small(), plan(), (5,)) is None


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model[0].register_forward_hook(lambda module, given, made: 2 * made)
    return model


@pytest.mark.parametrize(
    "kind", ["forward", "forward_pre", "backward", "full_backward", "full_backward_pre"]
)
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_hook_of_any_kind_is_called(
    kind: str, everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch remembers for good which kind of hooks it has called everywhere
    monkeypatch.setattr(torch.nn.modules.module, "_global_is_full_backward_hook", None)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    assert plain_layers(model, KNOWN) is not None
    place, name = (torch.nn.modules.module, "module_") if everywhere else (model[0], "")
    handle = getattr(place, f"register_{name}{kind}_hook")(lambda *given: None)
    try:
        assert plain_layers(model, KNOWN) is None
    finally:
        handle.remove()


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "model",
    [
        tied(), hooked(), frozen(), Doubled(8, 8), nn.Sequential(nn.Flatten()),
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), nn.Linear(8, 8).double(),
        nn.Sequential(nn.Linear(8, 8), nn.Softmax(1)),
    ],
)  # fmt: skip
def test_what_is_no_plain_chain(model: nn.Module) -> None:
    assert plain_layers(model, KNOWN) is None
    assert CompiledTrainer.of(model, plan()) is None


@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        ((nn.Conv2d(2, 4, 3, groups=2), nn.Flatten()), (2, 5, 5)),
        ((nn.Conv2d(2, 4, 3, dilation=2), nn.Flatten()), (2, 5, 5)),
        ((nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten()), (2, 5, 5)),
        ((nn.Conv2d(2, 4, 3), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten()), (2, 6, 6)),
        ((nn.AvgPool2d(2, divisor_override=3), nn.Flatten(), nn.Linear(12, 3)), (2, 6, 5)),
        ((nn.AvgPool2d(2, 2, 1, count_include_pad=False), nn.Flatten(), nn.Linear(24, 3)),
         (2, 6, 5)),
        ((nn.MaxPool2d(2, dilation=(2, 1)), nn.Flatten(), nn.Linear(12, 3)), (2, 7, 5)),
        ((nn.LayerNorm(5), nn.Flatten(), nn.Linear(60, 3)), (2, 6, 5)),
        ((nn.LayerNorm((6, 5)), nn.Flatten(), nn.Linear(60, 3)), (2, 6, 5)),
        # torch takes the batch for a text, and each example for a token
        ((nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True), nn.Flatten(),
          nn.Linear(16, 3)), (16,)),
        # torch raises for a padding of more than half of a window
        ((nn.MaxPool2d((4, 2), 1, 2), nn.Flatten(), nn.Linear(112, 3)), (2, 6, 5)),
        ((nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(8, 3)), (2, 5, 5)),
        ((nn.Flatten(), nn.Linear(10, 3)), (2, 0, 5)),
        ((nn.Conv2d(2, 4, 3),), (2, 5, 5)),
        ((nn.Linear(5, 5), nn.Flatten()), (2, 5, 5)),
        ((nn.Linear(6, 3),), (5,)),
        ((nn.Flatten(2), nn.Linear(25, 3)), (2, 5, 5)),
        ((nn.Flatten(1, 2), nn.Linear(5, 3)), (1, 1, 5)),
        ((nn.Embedding(9, 8, padding_idx=0), nn.Flatten(), nn.Linear(24, 3)), (3,)),
        ((nn.Embedding(9, 8, max_norm=1.0), nn.Flatten(), nn.Linear(24, 3)), (3,)),
        ((nn.Embedding(9, 8, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(24, 3)), (3,)),
        ((nn.Embedding(9, 8, sparse=True), nn.Flatten(), nn.Linear(24, 3)), (3,)),
        ((nn.Linear(3, 3), nn.Embedding(9, 8), nn.Flatten(), nn.Linear(24, 3)), (3,)),
        ((nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 3)), (2, 5, 5)),
        ((nn.Conv2d(2, 4, 3, padding="valid"), nn.Flatten(), nn.Linear(36, 3)), (2, 5, 5)),
        ((nn.GroupNorm(1, 4), nn.Flatten(), nn.Linear(50, 3)), (2, 5, 5)),
        ((nn.LayerNorm(6, bias=False), nn.Linear(6, 3)), (6,)),
        # torch raises for a group of one value, if the batch has one example
        ((nn.GroupNorm(2, 2), nn.Flatten(), nn.Linear(2, 3)), (2, 1, 1)),
        ((nn.Embedding(9, 5), nn.Linear(5, 3), nn.Flatten()), (3,)),
        ((nn.Embedding(9, 8),), (3,)),
        ((nn.Flatten(), nn.Embedding(9, 8), nn.Flatten(), nn.Linear(24, 3)), (1, 2, 3)),
        ((nn.Embedding(9, 16), nn.Linear(8, 8), nn.Flatten(), nn.Linear(24, 3)), (3,)),
    ],
)  # fmt: skip
def test_what_is_left_to_the_loop(layers: Sequence[nn.Module], shape: tuple[int, ...]) -> None:
    model = nn.Sequential(*layers)
    assert not compiled(model, plan()).serves(shape)
    assert any(refused(model, shape, called=False))
    for other in (plan(loss="own"), plan(corrected=True)):
        assert CompiledTrainer.of(nn.Linear(2, 2), other) is None


def test_more_examples_than_places_can_tell_apart_are_the_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, cohort = (
        nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3)),
        clients((7,), 3, (9,)),
    )
    trainer, by_torch = compiled(model, plan()), by_loop(model, plan(), cohort)
    monkeypatch.setattr("fedveil.compiled.program._MOST", 1000)
    np.testing.assert_array_equal(train(trainer, model, cohort), by_torch)
    monkeypatch.undo()
    assert (train(trainer, model, cohort) != by_torch).any()
