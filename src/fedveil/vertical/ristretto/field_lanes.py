"""Arithmetic modulo p = 2^255 - 19 on eight numbers at once, generated as LLVM vector code.

A number has five limbs of 51 bits. The code computes in an array of 64-bit words, its memory. An
*element* of the memory holds eight numbers, limb by limb.
All results have limbs below 2^51 + 2^16, because AVX-512 IFMA multiplies 52 bits by 52 bits. No
instruction branches on a number, and no address depends on one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedveil.vertical.ristretto.point_formulas import ENTRIES, PARTS

LANES, LIMBS, BITS = 8, 5, 51
#: The number of words of an element.
WIDTH = LANES * LIMBS
_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, LANES)
_LIMB = 2**BITS - 1
_ALIGN = 64
_cgutils: Any = cgutils
_types: Any = types


def has_products() -> bool:
    """Return True if the processor has AVX-512 IFMA and numba's settings allow its use."""
    given: Any = config
    chosen = given.CPU_NAME or given.CPU_FEATURES or not given.ENABLE_AVX or given.DISABLE_JIT
    return not chosen and bool(binding.get_host_cpu_features().get("avx512ifma"))


class Lanes:
    """Generates LLVM instructions that compute with eight numbers at once.

    Methods take and return the eight numbers as a list of five vectors. Vector i has the limb i of
    each number.
    """

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def constant(self, value: int) -> Any:
        return ir.Constant(_VECTOR, [value] * LANES)

    def load(self, memory: Any, element: Any) -> list[Any]:
        return [self._load(self._at(memory, element, limb)) for limb in range(LIMBS)]

    def store(self, limbs: Sequence[Any], memory: Any, element: Any) -> None:
        for limb, value in enumerate(limbs):
            place = self._at(memory, element, limb)
            self.builder.store(value, place, align=_ALIGN)

    def product(self, high: bool, total: Any, a: Any, b: Any) -> Any:
        """Return `total` plus the low 52 bits of a * b or, if `high` is True, the high 52 bits."""
        name = f"llvm.x86.avx512.vpmadd52{'h' if high else 'l'}.uq.512"
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        function = _cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [total, a, b])

    def times_19(self, value: Any) -> Any:
        add, shift = self.builder.add, self.builder.shl
        twice = add(value, value)
        return add(add(shift(value, self.constant(4)), twice), value)

    def carried(self, limbs: Sequence[Any]) -> list[Any]:
        """Move each limb's excess over 51 bits to the next limb, in one pass.

        The excess of the last limb, times 19, goes to the first limb.
        """
        over = [self.builder.lshr(limb, self.constant(BITS)) for limb in limbs]
        kept = [self.builder.and_(limb, self.constant(_LIMB)) for limb in limbs]
        over = [self.times_19(over[-1]), *over[:-1]]
        return [self.builder.add(k, o) for k, o in zip(kept, over, strict=True)]

    def folded(self, limbs: Sequence[Any]) -> list[Any]:
        """Reduce a product of ten limbs to five, modulo p."""
        low, high = limbs[:LIMBS], limbs[LIMBS:]
        sums = [self.builder.add(a, self.times_19(b)) for a, b in zip(low, high, strict=True)]
        return self.carried(sums)

    def multiplied(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        # The high 52 bits of a product belong to the next limb, twice, because a limb has 51 bits.
        once, twice = ([self.constant(0)] * (2 * LIMBS) for _ in range(2))
        for i in range(LIMBS):
            for j in range(LIMBS):
                once[i + j] = self.product(False, once[i + j], a[i], b[j])
                twice[i + j + 1] = self.product(True, twice[i + j + 1], a[i], b[j])
        return self.folded(
            [self.builder.add(x, self.builder.add(y, y)) for x, y in zip(once, twice, strict=True)]
        )

    def squared(self, a: Sequence[Any]) -> list[Any]:
        once, twice, often = ([self.constant(0)] * (2 * LIMBS) for _ in range(3))
        for i in range(LIMBS):
            once[2 * i] = self.product(False, once[2 * i], a[i], a[i])
            twice[2 * i + 1] = self.product(True, twice[2 * i + 1], a[i], a[i])
            for j in range(i + 1, LIMBS):
                twice[i + j] = self.product(False, twice[i + j], a[i], a[j])
                often[i + j + 1] = self.product(True, often[i + j + 1], a[i], a[j])
        add, limbs = self.builder.add, []
        for x, y, z in zip(once, twice, often, strict=True):
            both = add(y, add(z, z))
            limbs.append(add(x, add(both, both)))
        return self.folded(limbs)

    def added(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        return self.carried([self.builder.add(x, y) for x, y in zip(a, b, strict=True)])

    def subtracted(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        # Adds 4 p, so that no limb becomes negative.
        many = [4 * (_LIMB - 18 * (limb == 0)) for limb in range(LIMBS)]
        sums = [self.builder.add(x, self.constant(n)) for x, n in zip(a, many, strict=True)]
        return self.carried([self.builder.sub(x, y) for x, y in zip(sums, b, strict=True)])

    def smallest(self, limbs: Sequence[Any]) -> list[Any]:
        """Reduce a number modulo p, to the representative from 0 to p - 1."""
        made = self._in_turn(self._in_turn(limbs))
        over = self.constant(19)
        for limb in made:
            over = self.builder.lshr(self.builder.add(limb, over), self.constant(BITS))
        made[0] = self.builder.add(made[0], self.times_19(over))
        return self._in_turn(made, wraps=False)

    def all_bits(self, truth: Any) -> list[Any]:
        return [self.builder.sext(truth, _VECTOR)] * LIMBS

    def is_zero(self, limbs: Sequence[Any]) -> list[Any]:
        total, *others = self.smallest(limbs)
        for limb in others:
            total = self.builder.or_(total, limb)
        return self.all_bits(self.builder.icmp_unsigned("==", total, self.constant(0)))

    def is_negative(self, limbs: Sequence[Any]) -> list[Any]:
        """Return a mask of the lanes with odd numbers, which RFC 9496 calls negative."""
        odd = self.builder.and_(self.smallest(limbs)[0], self.constant(1))
        return [self.builder.sub(self.constant(0), odd)] * LIMBS

    def selected(self, mask: Sequence[Any], a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        """Return b in the lanes where `mask` is set, and a in the others."""
        builder = self.builder
        return [
            builder.xor(x, builder.and_(m, builder.xor(x, y)))
            for m, x, y in zip(mask, a, b, strict=True)
        ]

    def pick(self, memory: Any, out: Any, table: Any, masks: Any) -> None:
        """Copy the one entry of a table whose mask is set to the elements from `out` on.

        The table begins at the element `table` of `memory`. `masks` is the position in `memory` of
        the first entry's mask. An entry has one mask for all lanes. All entries are read, so that
        no address depends on the masks.
        """
        builder = self.builder
        chosen = []
        for entry in range(ENTRIES):
            word = builder.load(builder.gep(memory, [builder.add(masks, _WORD(entry))]), typ=_WORD)
            one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), word, _WORD(0))
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
            chosen.append(builder.shuffle_vector(one, one, lanes))
        for part in range(PARTS):
            for limb in range(LIMBS):
                total = self.constant(0)
                for entry in range(ENTRIES):
                    element = builder.add(table, _WORD(PARTS * entry + part))
                    value = self._load(self._at(memory, element, limb))
                    total = builder.or_(total, builder.and_(value, chosen[entry]))
                place = self._at(memory, builder.add(out, _WORD(part)), limb)
                builder.store(total, place, align=_ALIGN)

    def _in_turn(self, limbs: Sequence[Any], *, wraps: bool = True) -> list[Any]:
        builder, made, over = self.builder, list[Any](), self.constant(0)
        for limb in limbs:
            total = builder.add(limb, over)
            over = builder.lshr(total, self.constant(BITS))
            made.append(builder.and_(total, self.constant(_LIMB)))
        if wraps:
            made[0] = builder.add(made[0], self.times_19(over))
        return made

    def _at(self, memory: Any, element: Any, limb: int) -> Any:
        start = self.builder.mul(element, _WORD(WIDTH))
        place = self.builder.gep(memory, [self.builder.add(start, _WORD(LANES * limb))])
        return self.builder.bitcast(place, _VECTOR.as_pointer())

    def _load(self, place: Any) -> Any:
        return self.builder.load(place, align=_ALIGN, typ=_VECTOR)


def _operation(count: int, write: Callable[..., None]) -> Any:
    """Return a compiled function that runs the instructions that `write` generates.

    The arguments of this function are the memory and `count` integers.
    """

    @intrinsic
    def operation(typing: Any, *arguments: Any) -> Any:
        memory, *numbers = arguments

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            array, *values = _cgutils.unpack_tuple(builder, given[0])
            values = [
                context.cast(builder, value, kind, _types.int64)
                for value, kind in zip(values, numbers, strict=True)
            ]
            pointer = context.make_array(memory)(context, builder, array).data
            builder.call(_function(builder.module, pointer.type), [pointer, *values])
            return context.get_dummy_value()

        return _types.void(_types.StarArgTuple(arguments)), generate

    def _function(module: Any, pointer: Any) -> Any:
        name = f"fedveil.field.{write.__name__}"
        if name in module.globals:
            return module.globals[name]
        kind = ir.FunctionType(ir.VoidType(), [pointer, *[_WORD] * count])
        function = ir.Function(module, kind, name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block())
        write(Lanes(builder), *function.args)
        builder.ret_void()
        return function

    return operation


def _binary(name: str) -> Any:
    def write(code: Lanes, memory: Any, out: Any, a: Any, b: Any) -> None:
        both = code.load(memory, a), code.load(memory, b)
        code.store(getattr(code, name)(*both), memory, out)

    write.__name__ = name
    return _operation(3, write)


def _unary(name: str) -> Any:
    def write(code: Lanes, memory: Any, out: Any, a: Any) -> None:
        code.store(getattr(code, name)(code.load(memory, a)), memory, out)

    write.__name__ = name
    return _operation(2, write)


def _selected(code: Lanes, memory: Any, out: Any, mask: Any, a: Any, b: Any) -> None:
    loaded = (code.load(memory, element) for element in (mask, a, b))
    code.store(code.selected(*loaded), memory, out)


#: (memory, out, a, b): a b, a + b, a - b.
multiply, add, subtract = map(_binary, ("multiplied", "added", "subtracted"))
#: (memory, out, a): a²; a reduced to [0, p - 1]; a mask of the zero lanes; a mask of the odd lanes.
square, shrink, zero, negative = map(_unary, ("squared", "smallest", "is_zero", "is_negative"))
#: (memory, out, mask, a, b): b in the lanes where the mask is set, else a.
select = _operation(4, _selected)
#: (memory, out, table, masks): the table's entry whose mask is set. A mask is a word, not an
#: element.
pick = _operation(3, Lanes.pick)
