"""Steps of large weights that are held, and taken together: the same training, up to rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.compiled import deferred_steps
from fedveil.compiled import fields as f
from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.compiled.deferred_steps import OUTPUTS, room_for_steps
from fedveil.compiled.operation import Memory
from known_chains import SIZES, dense_chains, signed
from native_training import Double, by_loop, compiled, in_double, trained_as_torch_trains
from training_parts import clients, plan, train

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")


@pytest.fixture(autouse=True)
def every_weight_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred_steps, "LARGE", 0)


def three_layers(curve: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(72, 64), nn.ReLU(), nn.Linear(64, 96, bias=False), curve()), nn.Linear(96, 5)
    )


def held(trainer: CompiledTrainer) -> list[int]:
    """Return how many examples' steps each layer deferred for the last client, or -1 for none."""
    assert trainer._room is not None
    ops = trainer._room.program.ops
    return [int(op[f.HELD]) for op in ops if op[f.MOST]]


@given(dense_chains(), st.integers(1, 9), st.sampled_from([1, 2]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_dense_chain_is_trained_as_torch_trains_it(
    made: tuple[nn.Module, tuple[int, ...]], batch: int, epochs: int
) -> None:
    model, shape = made
    chosen = plan(lr=0.05, batch_size=batch, epochs=epochs)
    cohort = signed(clients(shape, 5, SIZES))
    trained_as_torch_trains(model, shape, chosen, cohort)
    in_doubles = train(compiled(model, chosen, Double), model, cohort)
    for row, client in zip(in_doubles, cohort, strict=True):
        np.testing.assert_allclose(row, in_double(model, chosen, client), atol=1e-9)


def test_steps_are_held_as_long_as_they_are_half_of_the_weight() -> None:
    """One more example, or anything but bare SGD, and they are taken as they come."""
    model, most = three_layers(), [72 * 64 // (2 * (72 + 64)), 64 * 96 // (2 * (64 + 96))]
    trainer = compiled(model, plan(epochs=1))
    for examples in (most[0], most[0] + 1, most[1], most[1] + 1, 0, 1):
        (client,) = signed(clients((72,), 5, (examples,)))
        found = train(trainer, model, [client])[0]
        assert held(trainer) == [examples if 0 < examples <= m else -1 for m in most]
        np.testing.assert_allclose(found, in_double(model, plan(epochs=1), client), atol=1e-6)
    with_momentum = compiled(model, plan(epochs=1, momentum=0.9))
    train(with_momentum, model, [client])
    assert held(with_momentum) == []


def test_a_small_weights_steps_are_taken_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    model = three_layers()
    monkeypatch.setattr(deferred_steps, "LARGE", 64 * 96)
    trainer = compiled(model, plan(epochs=1))
    train(trainer, model, signed(clients((72,), 5, (9,))))
    assert held(trainer) == [9]


def test_a_weight_whose_steps_are_held_is_all_threads() -> None:
    """Nothing of a thread's own is read, and nothing is written but what is given back."""
    model, chosen = three_layers(), plan(epochs=1)
    trainer = compiled(model, chosen)
    (client,) = signed(clients((72,), 5, (9,)))
    wanted = train(trainer, model, [client])[0].copy()
    assert trainer._room is not None
    for op in trainer._room.program.ops:
        if op[f.MOST]:
            trainer._room.m[op[f.DWEIGHT] : op[f.DWEIGHT] + op[f.ROW] * op[OUTPUTS]] = np.nan
    ((row, _),) = trainer.train([client])
    np.testing.assert_array_equal(row[0], wanted)


def test_nobody_else_decides_about_a_clients_bytes() -> None:
    """Neither who holds steps and who does not, nor one whose steps overflow."""
    model, chosen = three_layers(), plan(epochs=1, batch_size=5)
    cohort = signed(clients((72,), 5, (9, 40, 12, 18, 3)))
    cohort[2].x[0] = 1e30
    together = train(compiled(model, chosen), model, cohort)
    alone = [train(compiled(model, chosen), model, [client])[0] for client in cohort]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_is_not_finite_goes_where_it_goes_in_torch(value: float) -> None:
    """torch trains a client with such an input: native code leaves out products with 0."""
    model, chosen = three_layers(nn.ReLU), plan(epochs=1)
    (client,) = signed(clients((72,), 5, (9,)))
    client.x[2, 7] = value
    trainer = compiled(model, chosen)
    found, wanted = train(trainer, model, [client]), by_loop(model, chosen, [client])
    assert trainer._room is None
    assert not np.isfinite(wanted).all()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


@pytest.mark.parametrize(
    ("outputs", "inputs", "fits"), [(64, 72, True), (60, 72, False), (64, 70, False), (1, 8, False)]
)
def test_only_rows_of_whole_vectors_are_held(outputs: int, inputs: int, fits: bool) -> None:
    assert bool(room_for_steps(Memory(0), 4, outputs, inputs)) == fits


def test_a_layer_over_tokens_holds_no_steps() -> None:
    """Each of its examples has several rows, and only examples are counted."""
    model = nn.Sequential(nn.Embedding(11, 64), nn.Linear(64, 64), nn.Linear(64, 16))
    native = compiled(model, plan(loss="next_token"))._compiled_for((5,))
    ops = native.program(4, "next_token", np.float32, states=False).ops
    assert not ops[:, f.MOST].any()


def test_steps_whose_sum_overflows_in_one_part_of_one_layer_are_taken_as_they_come() -> None:
    """The first 48 of 64 outputs of the first layer. The last part and the last layer do not."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(72, 64), nn.Tanh(), nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 5)
    )
    with torch.no_grad():
        model[0].weight *= 1e-13
        model[2].weight[:, 48:] = 0
    (client,) = signed(clients((72,), 5, (9,)))
    client.x[:] *= 1e13
    chosen = plan(epochs=1, batch_size=9, lr=1e28)
    trainer = compiled(model, chosen)
    first, rest = np.split(train(trainer, model, [client])[0], [48 * 72])
    assert held(trainer) == [-1, -1]
    assert not np.isfinite(first).all()
    assert np.isfinite(rest).all()
