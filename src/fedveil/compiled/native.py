"""Functions that are each compiled only once, and call each other by address.

numba compiles a callee again for each of its callers. So matrix products and operations are
separate native functions, and only the operations of the trained model are compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import from_dtype, types
from numba.core import cgutils, sigutils
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from fedveil.base.kernels import tolerate_damage, with_jitted_names

_types: Any = types
_cgutils: Any = cgutils
_sigutils: Any = sigutils


@intrinsic
def _call(typing: Any, address: Any, *arguments: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        values = _cgutils.unpack_tuple(builder, given[1])
        function = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(builder.inttoptr(given[0], function.as_pointer()), values)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.StarArgTuple(arguments)), generate


call: Any = _call


class Native:
    """A compiled function whose arguments are pointers and numbers, and which returns nothing.

    `loop` is the Python function to compile. `arguments` has one letter for the type of each of its
    arguments: F a pointer to floats, D to float64, I to int32, L to int64, d a float64, i an int64.
    Division by zero gives infinity or NaN.
    """

    def __init__(self, loop: Callable[..., None], arguments: str) -> None:
        self._loop = loop
        self._arguments = arguments
        self._made: dict[str, Any] = {}

    def address(self, kind: npt.DTypeLike) -> int:
        """Return the address of the code, compiled for floats of type `kind`.

        The code is compiled at the first call for each type.
        """
        floats: Any = from_dtype(np.dtype(kind))
        if floats.name not in self._made:
            which = {
                "F": _types.CPointer(floats), "D": _types.CPointer(types.float64),
                "I": _types.CPointer(types.int32), "L": _types.CPointer(types.int64),
                "d": types.float64, "i": types.int64,
            }  # fmt: skip
            signature = types.void(*(which[a] for a in self._arguments))
            loop = with_jitted_names(self._loop)
            made: Any = CFunc(
                loop, _sigutils.normalize_signature(signature), {}, {"error_model": "numpy"}
            )
            with suppress(RuntimeError, OSError):  # compiled code cannot be cached here
                made.enable_caching()
                tolerate_damage(made._cache)
            made.compile()
            self._made[floats.name] = made
        address: int = self._made[floats.name].address
        return address


def native(arguments: str) -> Callable[[Callable[..., None]], Native]:
    """Decorate a function, so that it is compiled and other compiled code can call it.

    `arguments` has one letter for the type of each of the function's arguments: F a pointer to
    floats, D to float64, I to int32, L to int64, d a float64, i an int64. The result is a `Native`,
    which compiles the function when its address is needed.
    """
    return lambda loop: Native(loop, arguments)


#: The arguments of every operation, the native function of a layer for one batch:
#:
#:     m        the float memory, with all inputs, outputs, weights and gradients
#:     w        the integer memory, with positions that an operation saves
#:     op       the layer's row of the operation table, whose columns `fields` explains
#:     setting  the eps of a normalisation, or the probability of a dropout
#:     draws    random numbers in [0, 1) for dropout
OPERATION = "FILdF"
