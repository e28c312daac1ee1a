"""Native code touches no memory but its own: what it is given ends where nothing may be touched.

It computes with addresses, which numba's own checks of bounds do not see: the processor checks them
here. A step over an end ends the process.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.compiled import deferred_steps
from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.compiled.operation import Memory
from fedveil.learning.trainer import ClientData, TrainingPlan
from fenced import fenced
from known_chains import SIZES, chains, dense_chains, of_words, signed, word_chains
from training_parts import clients, plan, train

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")


@given(
    chains(),
    st.sampled_from(
        [plan(lr=0.05), plan(lr=0.05, momentum=0.9, batch_size=3), plan(optimizer="adam")]
    ),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_is_touched_beyond_the_ends(
    monkeypatch: pytest.MonkeyPatch, made: tuple[nn.Module, tuple[int, ...]], plan: TrainingPlan
) -> None:
    model, shape = made
    _within_fences(monkeypatch, model, plan, signed(clients(shape, 5, SIZES)))


@given(
    word_chains(),
    st.sampled_from(
        [plan(loss="next_token"), plan(loss="next_token", optimizer="adam", batch_size=3)]
    ),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nor_by_layers_over_tokens(
    monkeypatch: pytest.MonkeyPatch, made: tuple[nn.Module, tuple[int, ...]], plan: TrainingPlan
) -> None:
    model, shape = made
    _within_fences(monkeypatch, model, plan, of_words(clients(shape, 5, SIZES)))


@given(dense_chains(), st.integers(1, 20))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nor_where_steps_are_held(
    monkeypatch: pytest.MonkeyPatch, made: tuple[nn.Module, tuple[int, ...]], batch: int
) -> None:
    model, shape = made
    monkeypatch.setattr(deferred_steps, "LARGE", 0)
    chosen = plan(lr=0.05, batch_size=batch, epochs=1)
    _within_fences(monkeypatch, model, chosen, signed(clients(shape, 5, (*SIZES, 20, 5))))


def _within_fences(
    monkeypatch: pytest.MonkeyPatch,
    model: nn.Module,
    plan: TrainingPlan,
    open_cohort: Sequence[ClientData],
) -> None:
    cohort = [
        replace(client, x=_fenced_tensor(client.x), y=_fenced_tensor(client.y))
        for client in open_cohort
    ]
    trainer = CompiledTrainer.of(model, plan)
    assert trainer is not None
    as_it_is = train(trainer, model, cohort)
    code = importlib.import_module("fedveil.compiled.steps")
    in_native_code = code.train

    def within_fences(*arguments: Any) -> bool:
        *given, out = (fenced(a) if isinstance(a, np.ndarray) else a for a in arguments)
        sound: bool = in_native_code(*given, out)
        arguments[-1][:] = out
        return sound

    with monkeypatch.context() as changed:
        changed.setattr(code, "train", within_fences)
        found = train(trainer, model, cohort)
    np.testing.assert_array_equal(found, as_it_is)


def test_threads_that_share_a_model_do_not_mix_its_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second thread, whose batch is larger, begins while the first is in the middle."""
    trainer = CompiledTrainer.of(nn.Linear(6, 3), plan())
    assert trainer is not None
    model, others = trainer._compiled_for((6,)), list[threading.Thread]()
    assert model is not None

    def positions(batch: int) -> Any:
        return model.program(batch, "cross_entropy", np.float32, states=False).ops

    (operation,), wanted = model._operations, positions(2)
    undisturbed = operation.working_memory

    def disturbed(*arguments: Any) -> Any:
        if not others:
            others.append(threading.Thread(target=positions, args=(9,)))
            others[0].start()
            others[0].join(0.05)
        return undisturbed(*arguments)

    monkeypatch.setattr(operation, "working_memory", disturbed)
    np.testing.assert_array_equal(positions(2), wanted)
    others[0].join()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 99)), min_size=1, max_size=9))
def test_what_is_given_away_is_given_once(asked: list[tuple[bool, int]]) -> None:
    """And lies before the end."""
    memory, ends = Memory(7), {True: 7, False: 0}
    for of_floats, count in asked:
        begin = (memory.floats if of_floats else memory.ints)(count)
        assert begin >= ends[of_floats]
        ends[of_floats] = begin + count
    assert memory.float_end >= ends[True]
    assert memory.int_end >= ends[False]


def _fenced_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(fenced(tensor.numpy()))
