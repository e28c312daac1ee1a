"""Small blocks of products that stay in the processor's registers, written as LLVM's vectors.

LLVM cuts a vector into whatever registers the machine has (AVX-512, AVX2, NEON). Every entry of a
product is one sum in the order of its terms, so that its bytes do not depend on the shape of the
block that it was computed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_INT = ir.IntType(64)
_cgutils: Any = cgutils
#: So many rows are reached from one pointer: what an x86 address can say.
_GROUP = 3
#: With AVX-512 there are four times as many bytes of registers as elsewhere.
WIDE = bool(binding.get_host_cpu_features().get("avx512f"))


class Code:
    """Writes one block's instructions; offsets and counts are in entries of the arrays."""

    def __init__(self, context: Any, builder: Any, lanes: int, entry: Any) -> None:
        self.builder = builder
        self.scalar = context.get_value_type(entry)
        self.vector = ir.VectorType(self.scalar, lanes)
        name = f"llvm.fmuladd.v{lanes}f{8 * self._align}"
        function = ir.FunctionType(self.vector, [self.vector] * 3)
        self._fma = _cgutils.get_or_insert_function(builder.module, function, name)

    def number(self, value: int) -> Any:
        return ir.Constant(_INT, value)

    def at(self, base: Any, *offsets: Any) -> Any:
        """The place that lies so far from another."""
        for offset in offsets:
            base = self.builder.gep(base, [offset])
        return base

    def load(self, place: Any) -> Any:
        pointer = self.builder.bitcast(place, self.vector.as_pointer())
        return self.builder.load(pointer, align=self._align, typ=self.vector)

    def store(self, value: Any, place: Any) -> None:
        pointer = self.builder.bitcast(place, self.vector.as_pointer())
        self.builder.store(value, pointer, align=self._align)

    @property
    def _align(self) -> int:
        return 4 if isinstance(self.scalar, ir.FloatType) else 8

    def spread(self, place: Any) -> Any:
        """A vector that holds one entry in all its lanes."""
        value = self.builder.load(place, typ=self.scalar)
        nowhere = ir.Constant(self.vector, ir.Undefined)
        one = self.builder.insert_element(nowhere, value, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), self.vector.count), None)
        return self.builder.shuffle_vector(one, nowhere, lanes)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])

    def zeros(self, count: int) -> list[Any]:
        return [ir.Constant(self.vector, None)] * count

    def loop(self, count: Any, start: Sequence[Any], body: Callable[[Any, list[Any]], Any]) -> Any:
        """Values that `body` makes of themselves in turns; there is one at least."""
        builder = self.builder
        before, head = builder.block, builder.append_basic_block("turn")
        builder.branch(head)
        builder.position_at_end(head)
        turn = builder.phi(_INT)
        turn.add_incoming(self.number(0), before)
        values = []
        for value in start:
            values.append(builder.phi(value.type))
            values[-1].add_incoming(value, before)
        made = body(turn, list(values))
        following = builder.add(turn, self.number(1))
        turn.add_incoming(following, builder.block)
        for value, new in zip(values, made, strict=True):
            value.add_incoming(new, builder.block)
        after = builder.append_basic_block("after")
        again = builder.cbranch(builder.icmp_signed("<", following, count), head, after)
        again.set_metadata("llvm.loop", self._as_it_is())
        builder.position_at_end(after)
        return made

    def _as_it_is(self) -> Any:
        """What tells LLVM not to unroll a loop: its body has work enough."""
        module = self.builder.module
        told = module.add_metadata(["llvm.loop.unroll.disable"])
        loop = module.add_metadata([told, told])
        loop.operands = (loop, told)  # a loop is known by itself
        return loop

    def by_number(self, value: Any, most: int, write: Callable[[int], None]) -> None:
        """The code for each number from 1 to `most`, of which the value chooses."""
        builder = self.builder
        end = builder.append_basic_block("end")
        choice = builder.switch(value, end)
        for number in range(1, most + 1):
            case = builder.append_basic_block(f"case{number}")
            choice.add_case(self.number(number), case)
            builder.position_at_end(case)
            write(number)
            builder.branch(end)
        builder.position_at_end(end)


def product_tile(lanes: int, vectors: int, rows: int) -> Any:
    """A function that makes a block of C = D + A B: some rows, `vectors` of `lanes` columns.

    Its arguments are (c, c's row stride, what is added, its row stride, a, a's row stride, a's
    inner stride, a's outer stride, b, b's inner stride, b's outer stride, number of rows, inner
    terms, outer terms), each memory with the place where it begins: a sum runs over outer and
    inner terms.
    Nothing is added where what would be has a row stride below 0.
    """

    @intrinsic
    def tile(typing: Any, c: Any, c0: Any, cm: Any, d: Any, d0: Any, dm: Any,
             a: Any, a0: Any, am: Any, ak: Any, ao: Any,
             b: Any, b0: Any, bk: Any, bo: Any, m: Any, k: Any, o: Any) -> Any:  # fmt: skip
        i = types.int64
        signature = types.void(c, i, i, d, i, i, a, i, i, i, i, b, i, i, i, i, i, i)

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            code = Code(context, builder, lanes, c.dtype)
            c_, c0, cm, d_, d0, dm, a_, a0, am, ak, ao, b_, b0, bk, bo, m, k, o = given
            c_at, d_at = code.at(c_, c0), code.at(d_, d0)
            alone = builder.icmp_signed("<", dm, code.number(0))
            dm = builder.select(alone, code.number(0), dm)
            a_at = code.at(a_, a0)
            b_at = code.at(b_, b0)
            columns = [code.number(lanes * v) for v in range(vectors)]

            def write(rows: int) -> None:
                groups = range(0, rows, _GROUP)
                far = [builder.mul(am, code.number(row)) for row in groups]
                near = [builder.mul(am, code.number(row)) for row in range(_GROUP)]
                sums = code.zeros(rows * vectors)

                def outer(turn: Any, values: list[Any]) -> Any:
                    a_row, b_row, *sums = values

                    def inner(turn: Any, values: list[Any]) -> Any:
                        b_here, *values = values
                        a_here, sums = values[: len(far)], values[len(far) :]
                        bs = [code.load(code.at(b_here, column)) for column in columns]
                        new = []
                        for row in range(rows):
                            place = code.at(a_here[row // _GROUP], near[row % _GROUP])
                            one, at = code.spread(place), row * vectors
                            new += [
                                code.fma(one, x, s) for x, s in zip(bs, sums[at:], strict=False)
                            ]
                        return [code.at(b_here, bk), *(code.at(p, ak) for p in a_here), *new]

                    a_rows = [code.at(a_row, offset) for offset in far]
                    made = code.loop(k, [b_row, *a_rows, *sums], inner)
                    return [code.at(a_row, ao), code.at(b_row, bo), *made[1 + len(far) :]]

                sums = code.loop(o, [a_at, b_at, *sums], outer)[2:]
                for row in range(rows):
                    for v, column in enumerate(columns):
                        total = sums[row * vectors + v]
                        place = code.at(d_at, builder.mul(dm, code.number(row)), column)
                        both = builder.fadd(code.load(place), total)
                        place = code.at(c_at, builder.mul(cm, code.number(row)), column)
                        code.store(builder.select(alone, total, both), place)

            code.by_number(m, rows, write)
            return context.get_dummy_value()

        return signature, generate

    return tile


def winners_tile(lanes: int, vectors: int, rows: int, back: bool) -> Any:
    """A function that meets a window's rows with every winner of a list.

    Its arguments are (map, filter, the filter's place, its row stride, places, first of the list,
    values, first of the list, how many winners, the map's row stride, number of rows, the column
    that the rows begin at). Adds value * window to the filter; `back`: the other way round.
    """

    @intrinsic
    def tile(typing: Any, x: Any, f: Any, f0: Any, fr: Any, p: Any, p0: Any, g: Any, g0: Any,
             count: Any, xr: Any, m: Any, column: Any) -> Any:  # fmt: skip
        i = types.int64
        signature = types.void(x, f, i, i, p, i, g, i, i, i, i, i)

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            code = Code(context, builder, lanes, x.dtype)
            x_, f_, f0, fr, p_, p0, g_, g0, count, xr, m, column = given
            x_at = code.at(x_, column)
            f_at = code.at(f_, f0)
            p_at, g_at = code.at(p_, p0), code.at(g_, g0)

            def write(rows: int) -> None:
                def places(base: Any, stride: Any) -> list[Any]:
                    return [
                        code.at(base, builder.mul(stride, code.number(row)), code.number(lanes * v))
                        for row in range(rows)
                        for v in range(vectors)
                    ]

                held = [code.load(place) for place in places(f_at, fr)]
                zeros = code.zeros(len(held))

                def one(turn: Any, values: list[Any]) -> list[Any]:
                    offset = builder.load(code.at(p_at, turn), typ=context.get_value_type(p.dtype))
                    value = code.spread(code.at(g_at, turn))
                    under = places(code.at(x_at, builder.sext(offset, _INT)), xr)
                    if not back:
                        return [
                            code.fma(value, code.load(place), total)
                            for place, total in zip(under, values, strict=True)
                        ]
                    for place, weights in zip(under, held, strict=True):
                        code.store(code.fma(value, weights, code.load(place)), place)
                    return []

                made = code.loop(count, [] if back else zeros, one)
                for place, total in zip(places(f_at, fr), made, strict=False):
                    code.store(builder.fadd(code.load(place), total), place)

            code.by_number(m, rows, write)
            return context.get_dummy_value()

        return signature, generate

    return tile


def largest_tile(lanes: int) -> Any:
    """A function that finds the largest of a window's values in every lane, and where it lies.

    Its arguments are (values, the window's place, row stride, column stride, rows, columns, the
    places' first, row step, column step, where the largest go: array and place, where their places
    go: array and place). Of equal values the first is taken, and NaN wins, as in torch.
    """

    @intrinsic
    def tile(typing: Any, z: Any, z0: Any, zr: Any, zc: Any, rows: Any, columns: Any, first: Any,
             row_step: Any, column_step: Any, y0: Any, p: Any, p0: Any) -> Any:  # fmt: skip
        i = types.int64
        signature = types.void(z, i, i, i, i, i, i, i, i, i, p, i)

        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            code = Code(context, builder, lanes, z.dtype)
            z_, z0, zr, zc, rows, columns, first, row_step, column_step, y0, p_, p0 = given
            base = z_
            z_at = code.at(base, z0)
            place_type = ir.VectorType(ir.IntType(32), lanes)

            def all_lanes(number: Any) -> Any:
                nowhere = ir.Constant(place_type, ir.Undefined)
                small = builder.trunc(number, ir.IntType(32))
                one = builder.insert_element(nowhere, small, ir.Constant(ir.IntType(32), 0))
                return builder.shuffle_vector(one, nowhere, ir.Constant(place_type, None))

            def meet(r: Any, c: Any, best: list[Any]) -> list[Any]:
                value = code.load(code.at(z_at, builder.mul(r, zr), builder.mul(c, zc)))
                place = builder.add(first, builder.mul(r, row_step))
                here = all_lanes(builder.add(place, builder.mul(c, column_step)))
                larger = builder.fcmp_ordered(">", value, best[0])
                take = builder.or_(larger, builder.fcmp_unordered("!=", value, value))
                return [builder.select(take, value, best[0]), builder.select(take, here, best[1])]

            def write(best: list[Any]) -> None:
                code.store(best[0], code.at(base, y0))
                pointer = builder.bitcast(code.at(p_, p0), place_type.as_pointer())
                builder.store(best[1], pointer, align=4)

            def row(r: Any, best: list[Any]) -> Any:
                return code.loop(columns, best, lambda c, best: meet(r, c, best))

            zero, one, two = (code.number(number) for number in range(3))
            start = [code.load(z_at), all_lanes(first)]
            square = builder.and_(
                builder.icmp_signed("==", rows, two), builder.icmp_signed("==", columns, two)
            )
            with builder.if_else(square) as (then, otherwise):
                with then:
                    write(meet(one, one, meet(one, zero, meet(zero, one, start))))
                with otherwise:
                    write(code.loop(rows, start, row))
            return context.get_dummy_value()

        return signature, generate

    return tile


@intrinsic
def _list_winners(typing: Any, g: Any, g0: Any, gi: Any, gj: Any, gn: Any, p: Any, p0: Any, pi: Any,
                 pj: Any, pn: Any, rows: Any, columns: Any, count: Any, places: Any, places0: Any,
                 values: Any, values0: Any, found: Any) -> Any:  # fmt: skip
    """Append what is not zero to two lists that have `found` already; gives how many then.

    Of rows, columns and examples, the last in turns, each has its strides in g, and in p the places
    that go with it. There is no branch: a zero is written too, and then the next over it.
    """
    i = types.int64
    signature = i(g, i, i, i, i, p, i, i, i, i, i, i, i, p, i, g, i, i)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        code = Code(context, builder, 8, g.dtype)
        (g_, g0, gi, gj, gn, p_, p0, pi, pj, pn, rows, columns, count, places_, places0, values_,
         values0, found) = given  # fmt: skip
        bits = ir.IntType(32 if isinstance(code.scalar, ir.FloatType) else 64)
        places_at, values_at = code.at(places_, places0), code.at(values_, values0)

        def one(turn: Any, values: list[Any]) -> list[Any]:
            g_at, p_at, found = values
            value = builder.load(builder.bitcast(g_at, bits.as_pointer()), typ=bits)
            place = builder.load(p_at, typ=ir.IntType(32))
            target = builder.bitcast(code.at(values_at, found), bits.as_pointer())
            builder.store(value, target)
            builder.store(place, code.at(places_at, found))
            some = builder.icmp_unsigned("!=", builder.shl(value, bits(1)), bits(0))
            return [
                code.at(g_at, gn),
                code.at(p_at, pn),
                builder.add(found, builder.zext(some, _INT)),
            ]

        def column(turn: Any, values: list[Any]) -> list[Any]:
            g_at, p_at, found = values
            found = code.loop(count, [g_at, p_at, found], one)[2]
            return [code.at(g_at, gj), code.at(p_at, pj), found]

        def row(turn: Any, values: list[Any]) -> list[Any]:
            g_at, p_at, found = values
            found = code.loop(columns, [g_at, p_at, found], column)[2]
            return [code.at(g_at, gi), code.at(p_at, pi), found]

        return code.loop(rows, [code.at(g_, g0), code.at(p_, p0), found], row)[2]

    return signature, generate


list_winners: Any = _list_winners
