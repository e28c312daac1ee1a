"""Small blocks of matrix products whose sums stay in registers, generated as LLVM vector code.

Each entry of a product is a sum in a fixed order, whatever the shape of its block. So the bytes of
the entry do not depend on this shape. The terms are added one by one or, in `rows_tile`, first in
each lane of a vector and then over the lanes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from fedveil.compiled.operation import LINE
from fedveil.compiled.vector_code import INT, SMALL, Code, vector_code

#: Rows addressed from one pointer: an x86 address can express no more.
_GROUP = 3


def product_tile(lanes: int, vectors: int, rows: int) -> Any:
    """Return a function that computes a block of C = D + A B, of up to `rows` rows.

    The block has `vectors` times `lanes` columns, where `lanes` is the number of floats in a
    vector. Each entry of A B is a double sum of products: each of its outer terms is a sum of inner
    terms. The outer and the inner stride are the distances between the factors of two successive
    terms. The function has these arguments, in this order:

        C                                array, position of its first entry, row stride
        D                                array, position, row stride (negative: there is no D)
        A                                array, position, row stride, inner stride, outer stride
        B                                array, position, inner stride, outer stride
        number of rows
        number of inner terms
        number of outer terms
    """

    @vector_code(lanes)
    def tile(code: Code, c: Any, c0: Any, cm: Any, d: Any, d0: Any, dm: Any,
             a: Any, a0: Any, am: Any, ak: Any, ao: Any,
             b: Any, b0: Any, bk: Any, bo: Any, m: Any, k: Any, o: Any) -> None:  # fmt: skip
        builder = code.builder
        c_at, d_at, a_at, b_at = code.at(c, c0), code.at(d, d0), code.at(a, a0), code.at(b, b0)
        alone = builder.icmp_signed("<", dm, code.number(0))
        dm = builder.select(alone, code.number(0), dm)
        columns = [code.number(lanes * v) for v in range(vectors)]

        def write(rows: int) -> None:
            far = [builder.mul(am, code.number(row)) for row in range(0, rows, _GROUP)]
            near = [builder.mul(am, code.number(row)) for row in range(_GROUP)]

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
                        new += [code.fma(one, x, s) for x, s in zip(bs, sums[at:], strict=False)]
                    return [code.at(b_here, bk), *(code.at(p, ak) for p in a_here), *new]

                a_rows = [code.at(a_row, offset) for offset in far]
                made = code.loop(k, [b_row, *a_rows, *sums], inner)
                return [code.at(a_row, ao), code.at(b_row, bo), *made[1 + len(far) :]]

            sums = code.loop(o, [a_at, b_at, *code.zeros(rows * vectors)], outer)[2:]
            for row in range(rows):
                for v, column in enumerate(columns):
                    total = sums[row * vectors + v]
                    place = code.at(d_at, builder.mul(dm, code.number(row)), column)
                    both = builder.fadd(code.load(place), total)
                    place = code.at(c_at, builder.mul(cm, code.number(row)), column)
                    code.store(builder.select(alone, total, both), place)

        code.by_number(m, rows, write)

    return tile


def rows_tile(lanes: int, across: int, rows: int) -> Any:
    """Return a function that computes C = A Bᵀ and adds the vector d to each row of C.

    A has up to `rows` rows. B has `across` rows, and d has `across` entries. The function
    multiplies `lanes` entries at once. It has these arguments, in this order:

        float memory                     the array with C, d, A and B
        C                                position, row stride
        d                                position
        A                                position, row stride
        B                                position, row stride
        number of rows of A
        number of entries in a row of A and of B
    """

    @vector_code(lanes)
    def tile(code: Code, x: Any, c0: Any, cm: Any, d0: Any, a0: Any, am: Any, b0: Any, bm: Any,
             m: Any, k: Any) -> None:  # fmt: skip
        builder = code.builder
        whole = builder.sdiv(k, code.number(lanes))
        end = builder.mul(whole, code.number(lanes))
        left = builder.sub(k, end)

        def starts(base: Any, stride: Any, count: int) -> list[Any]:
            return [code.at(x, base, builder.mul(stride, code.number(i))) for i in range(count)]

        def write(rows: int) -> None:
            places = starts(a0, am, rows) + starts(b0, bm, across)
            after = starts(builder.add(b0, builder.mul(bm, code.number(across))), bm, across)

            def meet(sums: list[Any], at: Any, read: Any) -> list[Any]:
                values = [read(code.load(code.at(place, at))) for place in places]
                pairs = [(a, b) for a in values[:rows] for b in values[rows:]]
                return [code.fma(a, b, s) for (a, b), s in zip(pairs, sums, strict=True)]

            def vector(turn: Any, sums: list[Any]) -> list[Any]:
                at = builder.mul(turn, code.number(lanes))
                for place in after:
                    code.fetch(code.at(place, at))
                return meet(sums, at, lambda value: value)

            def rest(turn: Any, sums: list[Any]) -> list[Any]:
                return meet(sums, end, lambda value: code.part(value, left))

            sums = code.loop(whole, code.zeros(rows * across), vector)
            over = builder.zext(builder.icmp_signed(">", left, code.number(0)), INT)
            sums = code.loop(over, sums, rest)
            added = code.load(code.at(x, d0), ir.VectorType(code.scalar, across))
            for row, place in enumerate(starts(c0, cm, rows)):
                total = code.sums(sums[row * across : (row + 1) * across])
                code.store(builder.fadd(added, total), place)

        code.by_number(m, rows, write)

    return tile


def winners_tile(lanes: int, vectors: int, rows: int) -> Any:
    """Return a function for the backward pass of one filter of a convolution with max-pooling.

    Only outputs that are the maximum of a pool (winners) have a gradient. Winner i has the gradient
    values[i]. Its window, the part of the input from which it was computed, begins at the position
    places[i]. A window and the filter have the same shape: up to `rows` rows of `vectors` vectors,
    each of `lanes` floats.

    If the argument `back` is 0, `map` has the input and `filter` receives the filter's gradient:
    the function adds gradient * window to `filter` for each winner. Otherwise `filter` has the
    filter and `map` receives the input's gradient: the function adds gradient * filter to each
    winner's window.

    The function has these arguments, in this order:

        map                              array
        filter                           array, position of its first entry, row stride
        places                           array, position of the first winner's entry
        values                           array, position of the first winner's entry
        number of winners
        row stride of the map
        number of rows of the filter
        offset                           a number that is added to every entry of places
        back                             0 or 1
        prefetched memory                its distance from the filter, in entries (back = 0)
    """

    @vector_code(lanes)
    def tile(code: Code, x: Any, f: Any, f0: Any, fr: Any, p: Any, p0: Any, g: Any, g0: Any,
             count: Any, xr: Any, m: Any, column: Any, back: Any, ahead: Any) -> None:  # fmt: skip
        builder = code.builder
        x_at, f_at, p_at, g_at = code.at(x, column), code.at(f, f0), code.at(p, p0), code.at(g, g0)

        def write(rows: int, back: bool) -> None:
            def places(base: Any, stride: Any) -> list[Any]:
                return [
                    code.at(base, builder.mul(stride, code.number(row)), code.number(lanes * v))
                    for row in range(rows)
                    for v in range(vectors)
                ]

            held = [code.load(place) for place in places(f_at, fr)]

            def one(turn: Any, values: list[Any]) -> list[Any]:
                offset = builder.load(code.at(p_at, turn), typ=SMALL)
                value = code.spread(code.at(g_at, turn))
                if not back:
                    code.fetch(code.at(f_at, ahead, builder.mul(turn, code.number(LINE))))
                under = places(code.at(x_at, builder.sext(offset, INT)), xr)
                if not back:
                    return [
                        code.fma(value, code.load(place), total)
                        for place, total in zip(under, values, strict=True)
                    ]
                for place, weights in zip(under, held, strict=True):
                    code.store(code.fma(value, weights, code.load(place)), place)
                return []

            made = code.loop(count, [] if back else code.zeros(len(held)), one)
            for place, total in zip(places(f_at, fr), made, strict=False):
                code.store(builder.fadd(code.load(place), total), place)

        spreads = builder.icmp_signed("!=", back, code.number(0))
        with builder.if_else(spreads) as (then, otherwise):
            with then:
                code.by_number(m, rows, lambda rows: write(rows, True))
            with otherwise:
                code.by_number(m, rows, lambda rows: write(rows, False))

    return tile


def largest_tile(lanes: int) -> Any:
    """Return a function that finds the largest value of a window, for `lanes` channels at once.

    The function writes this value and its index: the number `first` + r * `row step` + c * `column
    step` for a value in row r and column c of the window. Among equal values the first one counts
    as the largest, and NaN counts as larger than all numbers, as in torch. The function has these
    arguments, in this order:

        values                           array, position of the window, row stride, column stride
        size of the window               rows, columns
        numbers for the index            first, row step, column step
        largest values                   position to which they are written
        indices                          array, position to which they are written
    """

    @vector_code(lanes)
    def tile(code: Code, z: Any, z0: Any, zr: Any, zc: Any, rows: Any, columns: Any, first: Any,
             row_step: Any, column_step: Any, y0: Any, p: Any, p0: Any) -> None:  # fmt: skip
        builder, z_at = code.builder, code.at(z, z0)
        places = ir.VectorType(SMALL, lanes)

        def all_lanes(number: Any) -> Any:
            return code.all_lanes(builder.trunc(number, SMALL), SMALL)

        def meet(r: Any, c: Any, best: list[Any]) -> list[Any]:
            value = code.load(code.at(z_at, builder.mul(r, zr), builder.mul(c, zc)))
            far = builder.add(builder.mul(r, row_step), builder.mul(c, column_step))
            larger = builder.fcmp_ordered(">", value, best[0])
            take = builder.or_(larger, builder.fcmp_unordered("!=", value, value))
            here = all_lanes(far)
            return [builder.select(take, value, best[0]), builder.select(take, here, best[1])]

        def write(best: list[Any]) -> None:
            code.store(best[0], code.at(z, y0))
            pointer = builder.bitcast(code.at(p, p0), places.as_pointer())
            builder.store(builder.add(best[1], all_lanes(first)), pointer, align=4)

        def row(r: Any, best: list[Any]) -> Any:
            return code.loop(columns, best, lambda c, best: meet(r, c, best))

        zero, one, two = (code.number(number) for number in range(3))
        start = [code.load(z_at), ir.Constant(places, None)]
        square = builder.and_(
            builder.icmp_signed("==", rows, two), builder.icmp_signed("==", columns, two)
        )
        with builder.if_else(square) as (then, otherwise):
            with then:
                write(meet(one, one, meet(one, zero, meet(zero, one, start))))
            with otherwise:
                write(code.loop(rows, start, row))

    return tile


@vector_code(8, gives=True)
def list_winners(code: Code, g: Any, g0: Any, gi: Any, gj: Any, gn: Any, p: Any, p0: Any, pi: Any,
                 pj: Any, pn: Any, rows: Any, columns: Any, count: Any, places: Any, places0: Any,
                 values: Any, values0: Any, found: Any) -> Any:  # fmt: skip
    """Append the nonzero entries of the array g to the list `values`, and their places to `places`.

    g has the shape (rows, columns, count), begins at g0 and has the strides gi, gj and gn. The
    place of an entry is the corresponding entry of p, which begins at p0 and has the strides pi, pj
    and pn. The lists begin at values0 and places0, and already have `found` entries each. Returns
    their new length. The code has no branch: it writes a zero too, and the next entry overwrites
    it.
    """
    builder = code.builder
    bits = ir.IntType(32 if isinstance(code.scalar, ir.FloatType) else 64)
    places_at, values_at = code.at(places, places0), code.at(values, values0)

    def one(turn: Any, values: list[Any]) -> list[Any]:
        g_at, p_at, found = values
        value = builder.load(builder.bitcast(g_at, bits.as_pointer()), typ=bits)
        place = builder.load(p_at, typ=SMALL)
        builder.store(value, builder.bitcast(code.at(values_at, found), bits.as_pointer()))
        builder.store(place, code.at(places_at, found))
        some = builder.icmp_unsigned("!=", builder.shl(value, bits(1)), bits(0))
        return [code.at(g_at, gn), code.at(p_at, pn), builder.add(found, builder.zext(some, INT))]

    def column(turn: Any, values: list[Any]) -> list[Any]:
        g_at, p_at, found = values
        found = code.loop(count, [g_at, p_at, found], one)[2]
        return [code.at(g_at, gj), code.at(p_at, pj), found]

    def row(turn: Any, values: list[Any]) -> list[Any]:
        g_at, p_at, found = values
        found = code.loop(columns, [g_at, p_at, found], column)[2]
        return [code.at(g_at, gi), code.at(p_at, pi), found]

    return code.loop(rows, [code.at(g, g0), code.at(p, p0), found], row)[2]
