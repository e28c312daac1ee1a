"""e to the power of many numbers at once: what a softmax is made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from fedveil._arrays import Float32s
from fedveil._kernels import compiled
from fedveil.learning.compiled.row_passes import total

_types: Any = types
_cgutils: Any = cgutils

#: log 2 in two parts, of which the first has so few digits that whole multiples are exact.
_LOG_2, _LOG_2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
_PER_LOG_2, _HALF, _ONE = np.float32(1 / math.log(2)), np.float32(0.5), np.float32(1)
#: Below it e^x is less than any float32 of full precision: it counts as nothing.
_LOWEST = np.float32(-87.0)
#: (e^r - 1 - r) / r^2 on |r| <= log(2) / 2, from its highest power on, to a float's last digit.
_P5, _P4, _P3, _P2, _P1, _P0 = (
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
              5.0000001201e-1)
)  # fmt: skip


@intrinsic
def _two_to(typing: Any, power: Any) -> Any:
    """2 to a whole number from -126 to 127, as the float whose exponent that is."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        bits, single = ir.IntType(32), ir.FloatType()
        whole = _cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(bits, [single]), "llvm.fptosi.sat.i32.f32"
        )
        exponent = builder.add(builder.call(whole, given), bits(127))
        return builder.bitcast(builder.shl(exponent, bits(23)), single)

    return _types.float32(_types.float32), generate


_scale: Any = _two_to


def _power(x: Any) -> Any:
    """e^x of a number up to 0, or of what is none."""
    return math.exp(x)


@overload(_power)
def _compiled_power(x: Any) -> Any:
    def double(x: Any) -> Any:
        return math.exp(x)

    def single(x: Any) -> Any:
        whole = np.floor(x * _PER_LOG_2 + _HALF)
        r = x - whole * _LOG_2 - whole * _LOG_2_REST
        curve = ((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0
        value = (curve * r * r + r + _ONE) * _scale(whole)
        return np.float32(0) if x < _LOWEST else value

    return single if x == _types.float32 else double


@compiled()
def exponentials(m: Float32s, begin: int, to: int, count: int, scale: float) -> float:
    """Write e^(scale (x - the highest x)) of so many numbers; gives their sum.

    A number that is none makes all of them so.
    """
    highest = m[begin]
    for i in range(begin, begin + count):
        if m[i] > highest or m[i] != m[i]:
            highest = m[i]
    for i in range(count):
        m[to + i] = scale * (m[begin + i] - highest)
    for i in range(to, to + count):
        m[i] = _power(m[i])
    return total(m, to, count)
