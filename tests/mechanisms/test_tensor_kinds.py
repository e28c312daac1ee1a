"""Tensors of other libraries are read in their own precision where NumPy has it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedveil.errors import InvalidValue
from fedveil.mechanisms.tensor_kinds import values_of

FINE = np.array([1 + 2.0**-50, -3.0])


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (torch.from_numpy(FINE), np.float64),
        (torch.tensor([2**53 + 1, -7]), np.int64),
        (torch.tensor([0.5, -3.0], dtype=torch.float16), np.float16),
        (torch.tensor([0.5, -3.0], dtype=torch.bfloat16), np.float32),
    ],
)
def test_a_torch_tensor_keeps_its_type(given: torch.Tensor, kind: type) -> None:
    found = values_of("values", given)
    assert found.dtype == kind
    assert found.tolist() == given.tolist()


@pytest.mark.parametrize(
    ("name", "kind"), [("Float64", np.float64), ("Float16", np.float16), ("BFloat16", np.float32)]
)
def test_a_mindspore_tensor_keeps_its_type(
    name: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tensor:
        def __init__(self, dtype: str, values: Any) -> None:
            self.dtype, self._values = dtype, values

        def astype(self, kind: str) -> Tensor:
            return Tensor(kind, self._values.astype(np.float32))

        def asnumpy(self) -> Any:
            assert self.dtype != "BFloat16", "NumPy does not have it"
            return self._values

    library = SimpleNamespace(Tensor=Tensor, float32="Float32")
    monkeypatch.setitem(sys.modules, "mindspore", library)
    held = FINE.astype(np.float64 if name == "BFloat16" else kind)
    found = values_of("values", Tensor(name, held))
    assert found.dtype == kind
    assert found.tolist() == held.astype(kind).tolist()


@pytest.mark.parametrize("kind", [np.complex64, "U3", "datetime64[s]"])
def test_only_real_numbers_are_read(kind: Any) -> None:
    with pytest.raises(InvalidValue, match=r"labels has dtype .*, real numbers are needed"):
        values_of("labels", np.zeros(4, kind))
