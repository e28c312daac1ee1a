"""Helpers of the simulations' wide native code: detection of processor features, and
instructions.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import config
from numba.core import cgutils

from fedveil.base.arrays import Array

_told: Any = config
_cgutils: Any = cgutils


def has_instructions(*features: str) -> bool:
    """Return True if this processor has all `features` and numba compiles for it."""
    found = binding.get_host_cpu_features()
    return not (_told.CPU_NAME or _told.CPU_FEATURES) and all(found.get(name) for name in features)


def instruction(builder: Any, name: str, kind: Any, *operands: Any) -> Any:
    """Emit a call of LLVM's function `name`, with operands of one kind."""
    function = ir.FunctionType(kind, [kind] * len(operands))
    return builder.call(_cgutils.get_or_insert_function(builder.module, function, name), operands)


def as_keys(rows: Array) -> list[bytes]:
    """Return the bytes of each row."""
    data, size = rows.tobytes(), rows[:1].nbytes
    return [data[at : at + size] for at in range(0, len(data), size)]
