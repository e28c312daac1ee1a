"""Exponentials of many numbers at once, for softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from fedveil.base.array_types import Float32s
from fedveil.base.kernels import compiled
from fedveil.compiled.row_passes import are_finite, total

_types: Any = types

#: log 2 as a sum of two parts. The first has few digits, so that its multiples are exact.
_LOG_2, _LOG_2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
_PER_LOG_2, _ONE = np.float32(1 / math.log(2)), np.float32(1)
#: Adding this rounds a number to an integer: no digits are left for a fraction.
_SHIFT = np.float32(1.5 * 2**23)
#: Below this, e^x is smaller than every normal float32 and is taken as 0.
_LOWEST = np.float32(-87.0)
#: Coefficients of (e^r - 1 - r) / r^2 for |r| <= log(2) / 2, highest power first, to float
#: precision.
_P5, _P4, _P3, _P2, _P1, _P0 = (
    np.float32(c)
    for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
              5.0000001201e-1)
)  # fmt: skip


def _write_two_to(typing: Any, shifted: Any) -> Any:
    """Return the signature and the code generator of a numba intrinsic that computes 2^n.

    The intrinsic gets the float n + _SHIFT, for an integer n in -126..127. numba passes `typing`
    (its context) and `shifted` (the argument's type), which are not used.
    """

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        bits = ir.IntType(32)
        low = builder.bitcast(given[0], bits)  # the last bits of the sum are the integer n
        exponent = builder.add(low, bits(127 - int(_SHIFT.view(np.int32))))
        return builder.bitcast(builder.shl(exponent, bits(23)), ir.FloatType())

    return _types.float32(_types.float32), generate


# numba's intrinsics have no type that mypy knows.
_two_to: Any = intrinsic(_write_two_to)


def _power(x: Any) -> Any:
    """Return e^x, for x that is at most 0 or NaN. Compiled code runs `_compiled_power` instead."""
    return math.exp(x)


@overload(_power)
def _compiled_power(x: Any) -> Any:
    def double(x: Any) -> Any:
        return math.exp(x)

    def single(x: Any) -> Any:
        shifted = x * _PER_LOG_2 + _SHIFT
        whole = shifted - _SHIFT
        r = x - whole * _LOG_2 - whole * _LOG_2_REST
        curve = ((((_P5 * r + _P4) * r + _P3) * r + _P2) * r + _P1) * r + _P0
        value = (curve * r * r + r + _ONE) * _two_to(shifted)
        return np.float32(0) if x < _LOWEST else value

    return single if x == _types.float32 else double


@compiled(numbers=True)
def _highest_number(m: Float32s, begin: int, count: int) -> float:
    highest = m[begin]
    for i in range(begin, begin + count):
        highest = max(highest, m[i])
    return highest  # type: ignore[no-any-return]


@compiled()
def exponentials(m: Float32s, begin: int, to: int, count: int, scale: float) -> float:
    """Write e^(scale * (x - max x)) for each of `count` numbers x, and return the results' sum.

    max x is the largest of the numbers. The numbers begin at m[begin], and the results at m[to]. If
    any number is NaN, all results are NaN.
    """
    highest = m[begin]
    if are_finite(m, begin, count):
        highest = _highest_number(m, begin, count)
    else:
        for i in range(begin, begin + count):
            if m[i] > highest or m[i] != m[i]:
                highest = m[i]
    for i in range(count):
        m[to + i] = m[begin + i] - highest
    if scale != 1.0:
        for i in range(to, to + count):
            m[i] *= scale
    for i in range(to, to + count):
        m[i] = _power(m[i])
    return total(m, to, count)
