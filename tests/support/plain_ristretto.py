"""Runs the code of `vertical/ristretto` in plain Python, on any processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from llvmlite import ir

from fedveil.vertical.ristretto import field_lanes, native_points
from fedveil.vertical.ristretto import point_formulas as formulas
from fedveil.vertical.ristretto.field_lanes import BITS, LANES, LIMBS, WIDTH, Lanes
from fedveil.vertical.ristretto.point_formulas import ENTRIES, PARTS, P

Words = npt.NDArray[np.uint64]
_HALF = (1 << 52) - 1
_ONES = np.uint64(2**64 - 1)


def limbs_of(numbers: Sequence[int]) -> Words:
    """Return eight numbers below 2^255 as an element of the memory, [limbs, lanes]."""
    mask = (1 << BITS) - 1
    rows = [[number >> BITS * limb & mask for number in numbers] for limb in range(LIMBS)]
    return np.array(rows, np.uint64)


def numbers_of(element: Any) -> list[int]:
    limbs = (limb.tolist() for limb in element)
    return [
        sum(word << BITS * limb for limb, word in enumerate(lane))
        for lane in zip(*limbs, strict=True)
    ]


def _plain(value: Any) -> Any:
    value = getattr(value, "constant", value)
    return np.uint64(value) if isinstance(value, int) else value


def _instruction(compute: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda builder, a, b: compute(_plain(a), _plain(b))


class _Builder:
    """Computes what LLVM's instructions of the same names do."""

    add, sub, mul = map(_instruction, (np.add, np.subtract, np.multiply))
    shl, lshr = map(_instruction, (np.left_shift, np.right_shift))
    and_, or_, xor = map(_instruction, (np.bitwise_and, np.bitwise_or, np.bitwise_xor))

    def icmp_unsigned(self, operator: str, a: Words, b: Words) -> npt.NDArray[np.bool_]:
        assert operator == "=="
        return a == b

    def sext(self, truth: npt.NDArray[np.bool_], kind: Any) -> Words:
        return np.where(truth, _ONES, np.uint64(0))

    def gep(self, memory: Words, places: list[Any]) -> tuple[Words, int]:
        (place,) = places
        return memory, int(_plain(place))

    def bitcast(self, place: tuple[Words, int], kind: Any) -> tuple[Words, int]:
        return place

    def load(self, place: tuple[Words, int], *, typ: Any, align: int | None = None) -> Any:
        memory, at = place
        return memory[at : at + LANES].copy() if isinstance(typ, ir.VectorType) else memory[at]

    def store(self, value: Words, place: tuple[Words, int], align: int) -> None:
        memory, at = place
        memory[at : at + LANES] = value

    def insert_element(self, vector: Any, word: Any, place: Any) -> Words:
        made = np.full(LANES, 0xDEAD, np.uint64)
        made[int(_plain(place))] = word
        return made

    def shuffle_vector(self, a: Words, b: Words, lanes: Any) -> Words:
        assert {one.constant for one in lanes.constant} == {0}, "all lanes get the first word"
        return np.full(LANES, a[0])


class PlainLanes(Lanes):
    """`Lanes` that computes at once instead of generating instructions."""

    def __init__(self) -> None:
        super().__init__(_Builder())

    def constant(self, value: int) -> Words:
        return np.full(LANES, value, np.uint64)

    def product(self, high: bool, total: Any, a: Any, b: Any) -> Words:
        products = [(x & _HALF) * (y & _HALF) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        return total + np.array([p >> 52 if high else p & _HALF for p in products], np.uint64)


class _Elements:
    """The memory's elements. Numbers are encoded as limbs only where limbs are read."""

    def __init__(self, memory: Words) -> None:
        self._limbs = memory[: native_points.MASKS].reshape(-1, LIMBS, LANES)
        self._numbers: dict[int, list[int]] = {}

    def numbers(self, element: int) -> list[int]:
        return self._numbers.get(element) or numbers_of(self._limbs[element])

    def keep(self, element: int, numbers: list[int]) -> None:
        self._numbers[element] = numbers

    def limbs(self, element: int) -> Words:
        if element in self._numbers:
            self._limbs[element] = limbs_of(self._numbers.pop(element))
        return self._limbs[element]

    def keep_limbs(self, element: int, limbs: Words) -> None:
        self._numbers.pop(element, None)
        self._limbs[element] = limbs

    def encode(self) -> None:
        for element in list(self._numbers):
            self.limbs(element)


def _run(memory: Words, program: npt.NDArray[np.int64]) -> None:
    """Run a program of `point_formulas` with Python's whole numbers."""
    held = _Elements(memory)
    compute = {
        formulas.MULTIPLY: int.__mul__, formulas.ADD: int.__add__, formulas.SUBTRACT: int.__sub__
    }  # fmt: skip
    for operation, out, a, b, c in program.tolist():
        if operation == formulas.SELECT:
            one, other = held.limbs(b), held.limbs(c)
            held.keep_limbs(out, one ^ (held.limbs(a) & (one ^ other)))
        elif operation in (formulas.ZERO, formulas.NEGATIVE):
            odd = operation == formulas.NEGATIVE
            truth = [x % P % 2 == 1 if odd else x % P == 0 for x in held.numbers(a)]
            held.keep_limbs(out, np.where(truth, _ONES, np.uint64(0)))
        elif operation == formulas.SQUARE:
            held.keep(out, [pow(x, 1 << b, P) for x in held.numbers(a)])
        elif operation == formulas.SHRINK:
            held.keep(out, [x % P for x in held.numbers(a)])
        else:
            pairs = zip(held.numbers(a), held.numbers(b), strict=True)
            held.keep(out, [compute[operation](x, y) % P for x, y in pairs])
    held.encode()


def _pick(memory: Words, out: int, table: int, masks: int) -> None:
    (chosen,) = np.flatnonzero(memory[masks : masks + ENTRIES])
    begin = (table + PARTS * int(chosen)) * WIDTH
    memory[out * WIDTH : (out + PARTS) * WIDTH] = memory[begin : begin + PARTS * WIDTH]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `native_points` run in plain Python, without a compiled loop."""
    names = ("_read", "_write", "_points", "_copy", "_scale", "_add_up")
    loops = {name: _python_of(getattr(native_points, name)) for name in names}

    def add_up(s: Any, words: Any, digits: Any, out: Any, invalid: Any) -> None:
        loops["_add_up"](s, words, digits.astype(np.int64), out, invalid)  # as numba computes

    for name, loop in {**loops, "_add_up": add_up, "_run": _run}.items():
        monkeypatch.setattr(native_points, name, loop)
    monkeypatch.setattr(field_lanes, "pick", _pick)


def _python_of(loop: Any) -> Callable[..., None]:
    found: Callable[..., None] = getattr(loop, "py_func", None) or loop._loop
    return found
