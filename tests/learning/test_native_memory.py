"""Native code touches no memory but its own: what it is given ends where nothing may be touched.

It computes with addresses, which numba's own checks of bounds do not see: the processor checks them
here. A step over an end ends the process.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from fedveil._kernels import HAVE_NUMBA
from fedveil.learning.compiled.compiled_trainer import CompiledTrainer
from fedveil.learning.trainer import TrainingPlan
from known_chains import SIZES, chains, signed
from training_parts import clients, plan, train

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")
_PAGE = mmap.PAGESIZE


def fenced(array: np.ndarray) -> np.ndarray:
    """The same numbers, with forbidden pages before the page of the first and behind the last."""
    if not array.size:
        return array
    whole = -(-array.nbytes // _PAGE) * _PAGE
    memory = mmap.mmap(-1, whole + 2 * _PAGE)
    first = np.frombuffer(memory, np.uint8).ctypes.data
    for page in (first, first + _PAGE + whole):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), _PAGE, 0) == 0
    begin = _PAGE + whole - array.nbytes
    inside = np.frombuffer(memory, array.dtype, array.size, begin).reshape(array.shape)
    inside[...] = array
    return inside


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
    cohort = [
        replace(client, x=torch.from_numpy(fenced(client.x.numpy())), y=_fenced_labels(client.y))
        for client in signed(clients(shape, 5, SIZES))
    ]
    trainer = CompiledTrainer.of(model, plan)
    assert trainer is not None
    as_it_is = train(trainer, model, cohort)
    code = importlib.import_module("fedveil.learning.compiled.steps")
    in_native_code = code.train

    def within_fences(*arguments: Any) -> None:
        *given, out = (fenced(a) if isinstance(a, np.ndarray) else a for a in arguments)
        in_native_code(*given, out)
        arguments[-1][:] = out

    with monkeypatch.context() as changed:
        changed.setattr(code, "train", within_fences)
        found = train(trainer, model, cohort)
    np.testing.assert_array_equal(found, as_it_is)


def _fenced_labels(y: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(fenced(y.numpy()))
