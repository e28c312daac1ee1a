"""Simulated clients' key agreements, eight pairs at a time and without Python's lock.

X25519 (RFC 7748), equal to that of `cryptography` byte for byte, for processors with AVX-512 and
its 52-bit multiplications, if numba is installed. Only simulations use it, where the keys are no
secrets and are not wiped. Keys of data that leaves a machine are agreed on only by `cryptography`.

A number modulo p = 2^255 - 19 is five limbs of 51 bits, each a vector of eight lanes: one pair per
lane. Limbs are below 2^51 + 2^15 unless stated otherwise: they fit the 52 bits that the processor
multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from fedveil.base.arrays import Uint64s
from fedveil.base.kernels import compiled
from fedveil.secagg.wide_code import as_keys, has_instructions, instruction

AVAILABLE = has_instructions("avx512f", "avx512dq", "avx512ifma")
KEY_BYTES = 32
_LANES, _LIMBS, _LIMB_BITS = 8, 5, 51
_LOW = (1 << _LIMB_BITS) - 1
#: 2 p in limbs. No limb of a number exceeds its own.
_TWICE_P = [2 * (_LOW - 18)] + 4 * [2 * _LOW]
_A24 = 121665
# The numbers of a ladder, followed by those of an inversion.
_X1, _X2, _Z2, _X3, _Z3, _T0, _T1, _T2, _NUMBERS = range(9)
_BITS = 255

_INT = ir.IntType(64)
_VECTOR = ir.VectorType(_INT, _LANES)
_Number: TypeAlias = list[Any]


def _every(value: int) -> Any:
    return ir.Constant(_VECTOR, [value] * _LANES)


class _Field:
    """The field's operations on eight numbers at once, written as instructions."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def add(self, a: _Number, b: _Number) -> _Number:
        """Return a + b."""
        add = self._builder.add
        return self._carried([add(x, y) for x, y in zip(a, b, strict=True)])

    def subtract(self, a: _Number, b: _Number) -> _Number:
        """Return a - b, as a + 2 p - b: no limb is below zero."""
        add, sub = self._builder.add, self._builder.sub
        return self._carried(
            [sub(add(x, _every(p)), y) for x, y, p in zip(a, b, _TWICE_P, strict=True)]
        )

    def multiply(self, a: _Number, b: _Number) -> _Number:
        """Return a b. A number of one limb may consist of that limb alone.

        Every product of limbs has a lower half of 52 bits, and an upper one which stands for twice
        itself one limb further on. Each column has five of each, so that it is below 2^56. Since
        2^255 is 19, columns from the sixth on come back 19-fold, and all fit 61 bits.
        """
        builder, zero = self._builder, _every(0)
        low, high = [zero] * 2 * _LIMBS, [zero] * 2 * _LIMBS
        for i, x in enumerate(a):
            for j, y in enumerate(b):
                low[i + j] = self._half_product("l", low[i + j], x, y)
                high[i + j + 1] = self._half_product("h", high[i + j + 1], x, y)
        columns = [
            builder.add(one, builder.shl(other, _every(1)))
            for one, other in zip(low, high, strict=True)
        ]
        back = [builder.mul(column, _every(19)) for column in columns[_LIMBS:]]
        return self._carried(
            [builder.add(x, y) for x, y in zip(columns[:_LIMBS], back, strict=True)]
        )

    def square(self, a: _Number) -> _Number:
        """Return a a."""
        return self.multiply(a, a)

    def choose(self, which: Any, a: _Number, b: _Number) -> _Number:
        """Return a in the lanes where `which` is set, b in the others."""
        return [self._builder.select(which, x, y) for x, y in zip(a, b, strict=True)]

    def _half_product(self, half: str, total: Any, x: Any, y: Any) -> Any:
        name = f"llvm.x86.avx512.vpmadd52{half}.uq.512"
        return instruction(self._builder, name, _VECTOR, total, x, y)

    def _carried(self, limbs: _Number) -> _Number:
        """Carry bits above 51 to the next limb. Limbs below 2^61 all become small."""
        builder = self._builder
        over = [builder.lshr(limb, _every(_LIMB_BITS)) for limb in limbs]
        over = [builder.mul(over[-1], _every(19)), *over[:-1]]
        kept = [builder.and_(limb, _every(_LOW)) for limb in limbs]
        return [builder.add(x, y) for x, y in zip(kept, over, strict=True)]


class _Numbers:
    """The numbers of a working memory, an array [number, limb, lane]."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any) -> None:
        self._builder = builder
        self._data = context.make_array(kind)(context, builder, array).data

    def load(self, number: Any) -> _Number:
        """Load the limbs of a number."""
        return [self._builder.load(at, align=8, typ=_VECTOR) for at in self._limbs(number)]

    def store(self, number: Any, limbs: _Number) -> None:
        """Store a number's limbs."""
        for limb, at in zip(limbs, self._limbs(number), strict=True):
            self._builder.store(limb, at, align=8)

    def _limbs(self, number: Any) -> list[Any]:
        builder, first = self._builder, self._builder.mul(number, _INT(_LIMBS * _LANES))
        places = [builder.add(first, _INT(limb * _LANES)) for limb in range(_LIMBS)]
        return [
            builder.bitcast(builder.gep(self._data, [place]), _VECTOR.as_pointer())
            for place in places
        ]


def _ladder_step(typing: Any, work: Any, swap: Any) -> Any:
    """Emit one step of RFC 7748's ladder, with the RFC's names. `swap` has one flag per lane."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        field = _Field(builder)
        numbers = _Numbers(context, builder, signature.args[0], arguments[0])
        x1, x2, z2, x3, z3 = (numbers.load(_INT(n)) for n in (_X1, _X2, _Z2, _X3, _Z3))
        lanes = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        lanes = builder.load(builder.bitcast(lanes, _VECTOR.as_pointer()), align=8, typ=_VECTOR)
        swapped = builder.icmp_unsigned("!=", lanes, _every(0))
        x2, x3 = field.choose(swapped, x3, x2), field.choose(swapped, x2, x3)
        z2, z3 = field.choose(swapped, z3, z2), field.choose(swapped, z2, z3)
        a, b = field.add(x2, z2), field.subtract(x2, z2)
        aa, bb = field.square(a), field.square(b)
        e = field.subtract(aa, bb)
        c, d = field.add(x3, z3), field.subtract(x3, z3)
        da, cb = field.multiply(d, a), field.multiply(c, b)
        numbers.store(_INT(_X3), field.square(field.add(da, cb)))
        numbers.store(_INT(_Z3), field.multiply(x1, field.square(field.subtract(da, cb))))
        numbers.store(_INT(_X2), field.multiply(aa, bb))
        a24_e = field.multiply(e, [_every(_A24)])
        numbers.store(_INT(_Z2), field.multiply(e, field.add(aa, a24_e)))

    return types.void(work, swap), code


def _product(typing: Any, work: Any, out: Any, one: Any, other: Any) -> Any:
    """Multiply two numbers of the working memory into a third."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        numbers = _Numbers(context, builder, signature.args[0], arguments[0])
        a, b = numbers.load(arguments[2]), numbers.load(arguments[3])
        numbers.store(arguments[1], _Field(builder).multiply(a, b))

    return types.void(work, types.int64, types.int64, types.int64), code


# Compiled code sees these as untyped.
_step: Any = intrinsic(_ladder_step)
_multiply: Any = intrinsic(_product)

#: Steps that compute Z2^(p - 2): target, number squared, number of squarings, factor. Where a
#: remark has n, the number is Z2^(2^n - 1).
_INVERSION = np.array([
    (_T0, _Z2, 0, _Z2),  # Z2^2
    (_T1, _T0, 2, _Z2),  # Z2^9
    (_T0, _T1, 0, _T0),  # Z2^11
    (_T1, _T0, 1, _T1),  # n = 5
    (_T1, _T1, 5, _T1),  # n = 10
    (_T2, _T1, 10, _T1),  # n = 20
    (_T2, _T2, 20, _T2),  # n = 40
    (_T1, _T2, 10, _T1),  # n = 50
    (_T2, _T1, 50, _T1),  # n = 100
    (_T2, _T2, 100, _T2),  # n = 200
    (_T1, _T2, 50, _T1),  # n = 250
    (_Z2, _T1, 5, _T0),  # 2^255 - 2^5 + 11 = p - 2
])  # fmt: skip


@compiled()
def _invert(work: Uint64s) -> None:
    """Set Z2 to 1 / Z2. Zero stays zero."""
    for out, one, times, other in _INVERSION:
        for limb in range(_LIMBS):
            for lane in range(_LANES):
                work[_X3, limb, lane] = work[one, limb, lane]
        for _ in range(times):
            _multiply(work, _X3, _X3, _X3)
        _multiply(work, out, _X3, other)


@compiled()
def _begin(work: Uint64s, lane: int, point: Uint64s) -> None:
    """Set up a lane's ladder before its first step. The point's last bit is ignored."""
    low = np.uint64(_LOW)
    for number in range(_NUMBERS):
        for limb in range(_LIMBS):
            work[number, limb, lane] = 0
    for number in (_X1, _X3):
        work[number, 0, lane] = point[0] & low
        for i in range(1, _LIMBS):
            left, right = np.uint64(13 * i), np.uint64(64 - 13 * i)
            limb = point[i - 1] >> right
            if i < _LIMBS - 1:
                limb |= point[i] << left
            work[number, i, lane] = limb & low
    work[_X2, 0, lane] = work[_Z3, 0, lane] = 1


@compiled()
def _end(limbs: Uint64s, lane: int, out: Uint64s) -> None:
    """Write a lane's number to `out`, fully reduced below p, in four words."""
    low, bits = np.uint64(_LOW), np.uint64(_LIMB_BITS)
    over = np.uint64(0)
    for turn in range(3):
        # One more carry after the others, with 19 added: a value that reaches 2^255 was not below
        # p.
        over = np.uint64(19) * over + np.uint64(19 * (turn == 2))
        for i in range(_LIMBS):
            over += limbs[i, lane]
            limbs[i, lane] = over & low
            over >>= bits
    # Subtract the 19 again, unless p was reached: then dropping 2^255 accounts for it.
    under = np.uint64(19) * np.uint64(over == 0)
    for i in range(_LIMBS):
        less = limbs[i, lane] - under
        limbs[i, lane] = less & low
        under = less >> np.uint64(63)
    for i in range(_LIMBS - 1):
        left, right = np.uint64(_LIMB_BITS - 13 * i), np.uint64(13 * i)
        out[i] = limbs[i, lane] >> right | limbs[i + 1, lane] << left


@compiled()
def _agree(scalars: Uint64s, points: Uint64s, shared: Uint64s) -> None:
    """Run the ladders of all rows, eight at a time.

    Lanes after the last row repeat the last row.
    """
    work = np.empty((_NUMBERS, _LIMBS, _LANES), np.uint64)
    keys = np.empty((4, _LANES), np.uint64)
    last, swap = np.empty(_LANES, np.uint64), np.empty(_LANES, np.uint64)
    rows = len(scalars)
    for start in range(0, rows, _LANES):
        for lane in range(_LANES):
            row = min(start + lane, rows - 1)
            for word in range(4):
                keys[word, lane] = scalars[row, word]
            # Bit 254 comes first. The three lowest bits, which are clear, swap nothing after them.
            keys[0, lane] &= ~np.uint64(7)
            keys[3, lane] |= np.uint64(1 << 62)
            _begin(work, lane, points[row])
        for lane in range(_LANES):
            last[lane] = 0
        for bit in range(_BITS - 1, -1, -1):
            for lane in range(_LANES):
                one = (keys[bit // 64, lane] >> np.uint64(bit % 64)) & np.uint64(1)
                swap[lane], last[lane] = one ^ last[lane], one
            _step(work, swap)
        _invert(work)
        _multiply(work, _X2, _X2, _Z2)
        for lane in range(min(_LANES, rows - start)):
            _end(work[_X2], lane, shared[start + lane])


def agreements(secrets: Sequence[bytes], public: Sequence[bytes]) -> list[bytes]:
    """Return the shared secret of each key pair at one index; zeros for a key of low order."""
    scalars, points = (
        np.frombuffer(b"".join(keys), "<u8").reshape(-1, KEY_BYTES // 8)
        for keys in (secrets, public)
    )
    shared = np.empty(scalars.shape, np.uint64)
    _agree(scalars, points, shared)
    return as_keys(shared)
