"""Matrix products over parts of arrays, computed in small blocks (tiles)."""

from __future__ import annotations

from fedveil.base.array_types import Float32s, Int32s
from fedveil.compiled import fields
from fedveil.compiled.native import native
from fedveil.compiled.operation import Memory, Row
from fedveil.compiled.tiles import list_winners, product_tile, rows_tile, winners_tile
from fedveil.compiled.vector_code import WIDE

#: The scratch memory of `product_of_few` in an operation that calls it.
(LISTS, VALUES) = fields.own(2)

#: Rows and columns of a tile. Its sums fill the registers, less those that the factors need.
_MOST_COLUMNS = 64 if WIDE else 16
_ROWS_64, _ROWS_32, _ROWS_16, _ROWS_8 = (6, 12, 14, 14) if WIDE else (1, 1, 6, 12)
#: Sums of at most `_SHORT` terms are computed in strips of `_STRIP` rows, to read C sequentially.
_SHORT, _STRIP = 64, 12
_tile_64 = product_tile(16, 4, _ROWS_64)
_tile_32 = product_tile(16, 2, _ROWS_32)
_tile_16 = product_tile(16, 1, _ROWS_16)
_tile_8 = product_tile(8, 1, _ROWS_8)

_ROWS_4 = 6 if WIDE else 3
_rows_4 = rows_tile(16 if WIDE else 8, 4, _ROWS_4)
_rows_1 = rows_tile(16 if WIDE else 8, 1, _ROWS_4)

_WINDOW_ROWS_32, _WINDOW_ROWS_16 = (5, 10) if WIDE else (2, 5)
#: The rows of a sparse factor that are listed at a time, so that lists and operands stay in a
#: cache. Rows of C are prefetched `_BEFORE` rows ahead.
LISTED, _BEFORE = 48, 3
_winners_32 = winners_tile(16, 2, _WINDOW_ROWS_32)
_winners_16 = winners_tile(16, 1, _WINDOW_ROWS_16)
_winners_8 = winners_tile(8, 1, _WINDOW_ROWS_16)


@native("FiiFiiFiiiiFiiiiiii")
def product(
    c: Float32s, c0: int, cm: int, d: Float32s, d0: int, dm: int,
    a: Float32s, a0: int, am: int, ak: int, ao: int,
    b: Float32s, b0: int, bk: int, bo: int, m: int, n: int, k: int, o: int
) -> None:  # fmt: skip
    """Compute C = D + A B for m rows and n columns.

    n is a multiple of 8. Row i of C begins at c[c0 + i cm], and row i of D at d[d0 + i dm]. Row i
    of C is row i of D plus the sum, over s < o and t < k, of a[a0 + i am + s ao + t ak] times the
    row of B that begins at b[b0 + s bo + t bk]. D may be C. A negative dm means that there is no D.
    If k or o is 0, C is not written.
    """
    if k == 0 or o == 0:
        return
    strip, first = m if k * o > _SHORT else _STRIP, 0
    while first < m:
        last, column = min(m, first + strip), 0
        while column < n:
            width, most = 8, _ROWS_8
            if n - column >= 64 and _MOST_COLUMNS >= 64:
                width, most = 64, _ROWS_64
            elif n - column >= 32 and _MOST_COLUMNS >= 32:
                width, most = 32, _ROWS_32
            elif n - column >= 16:
                width, most = 16, _ROWS_16
            row = first
            while row < last:
                blocks = (last - row + most - 1) // most
                rows = (last - row + blocks - 1) // blocks
                ci, di = c0 + row * cm + column, d0 + row * max(dm, 0) + column
                ai, bi = a0 + row * am, b0 + column
                if width == 64:
                    _tile_64(c, ci, cm, d, di, dm, a, ai, am, ak, ao, b, bi, bk, bo, rows, k, o)
                elif width == 32:
                    _tile_32(c, ci, cm, d, di, dm, a, ai, am, ak, ao, b, bi, bk, bo, rows, k, o)
                elif width == 16:
                    _tile_16(c, ci, cm, d, di, dm, a, ai, am, ak, ao, b, bi, bk, bo, rows, k, o)
                else:
                    _tile_8(c, ci, cm, d, di, dm, a, ai, am, ak, ao, b, bi, bk, bo, rows, k, o)
                row += rows
            column += width
        first = last


@native("Fiiiiiiiiii")
def meet_rows(
    x: Float32s, c0: int, cm: int, d0: int, a0: int, am: int, b0: int, bm: int,
    m: int, n: int, k: int
) -> None:  # fmt: skip
    """Compute C = d + A B' for m rows of A and n rows of B, each with k entries.

    B' is B transposed, and the vector d is added to each row of C. All arrays are in the float
    memory `x`: row i of C begins at x[c0 + i cm], row i of A at x[a0 + i am], row j of B at x[b0 +
    j bm], and d at x[d0].
    """
    column = 0
    while column < n:
        across = 4 if n >= 4 else 1
        column = min(column, n - across)  # the last block of four may overlap the one before
        row, ci, bi = 0, c0 + column, b0 + column * bm
        while row < m:
            blocks = (m - row + _ROWS_4 - 1) // _ROWS_4
            rows = (m - row + blocks - 1) // blocks
            at, ai = ci + row * cm, a0 + row * am
            if across == 4:
                _rows_4(x, at, cm, d0 + column, ai, am, bi, bm, rows, k)
            else:
                _rows_1(x, at, cm, d0 + column, ai, am, bi, bm, rows, k)
            row += rows
        column += across


@native("FiiFiiiiIiFiii")
def meet_winners(
    x: Float32s, x0: int, xr: int, f: Float32s, f0: int, fr: int, rows: int, columns: int,
    places: Int32s, p0: int, values: Float32s, g0: int, count: int, back: int
) -> None:  # fmt: skip
    """Compute one filter's part of the backward pass of a convolution with max-pooling.

    Only outputs that are the maximum of a pool have a gradient. There are `count` such outputs
    (winners), and winner i has the gradient values[g0 + i]. Its window, the part of the input from
    which it was computed, begins at x[x0 + places[p0 + i]], with rows `xr` apart.

    If `back` is 0, x is the input and f receives the filter's gradient: the function adds
    gradient * window to f for each winner. If `back` is 1, f is the filter and x receives the
    input's gradient: the function adds gradient * filter to each winner's window. The filter has
    `rows` rows of `columns` entries, a multiple of 8. It begins at f[f0], with rows `fr` apart.
    """
    if count == 0:
        return
    column = 0
    while column < columns:
        width = 32 if columns - column >= 32 else 16 if columns - column >= 16 else 8
        most = _WINDOW_ROWS_32 if width == 32 else _WINDOW_ROWS_16
        for row in range(0, rows, most):
            some = min(most, rows - row)
            fi, at = f0 + row * fr + column, x0 + row * xr + column
            if width == 32:
                _winners_32(x, f, fi, fr, places, p0, values, g0, count, xr, some, at, back, 0)
            elif width == 16:
                _winners_16(x, f, fi, fr, places, p0, values, g0, count, xr, some, at, back, 0)
            else:
                _winners_8(x, f, fi, fr, places, p0, values, g0, count, xr, some, at, back, 0)
        column += width


@native("FiiFiiiFiiiiiIiFi")
def product_of_few(
    c: Float32s, c0: int, cm: int, a: Float32s, a0: int, am: int, ak: int,
    b: Float32s, b0: int, bk: int, m: int, n: int, k: int,
    places: Int32s, p0: int, values: Float32s, v0: int
) -> None:  # fmt: skip
    """Compute C += A B for a sparse A with m rows and k columns, by skipping the zeros of A.

    Row i of C begins at c[c0 + i cm] and has n entries, a multiple of 8. Entry t in row i of A is
    a[a0 + i am + t ak], and row t of B begins at b[b0 + t bk]. `room_for_few` reserves the working
    memory: `places` from position p0 on, and `values` from position v0 on.
    """
    counts, lists, soon = p0 + k, p0 + k + LISTED, _BEFORE * cm
    for t in range(k):
        places[p0 + t] = t * bk
    for first in range(0, m, LISTED):
        rows, column = min(LISTED, m - first), 0
        for i in range(rows):
            places[counts + i] = list_winners(
                a, a0 + (first + i) * am, 0, 0, ak, places, p0, 0, 0, 1, 1, 1, k,
                places, lists + i * k, values, v0 + i * k, 0,
            )  # fmt: skip
        while column < n:
            width, parts = 16 if n - column >= 16 else 8, 1
            if n - column >= 32:
                width, parts = 32, min(_WINDOW_ROWS_32, (n - column) // 32)
            for i in range(rows):
                found, pi, vi = places[counts + i], lists + i * k, v0 + i * k
                ci, at = c0 + (first + i) * cm + column, b0 + column
                if width == 32:
                    _winners_32(b, c, ci, 32, places, pi, values, vi, found, 32, parts, at, 0, soon)
                elif width == 16:
                    _winners_16(b, c, ci, 0, places, pi, values, vi, found, 0, 1, at, 0, soon)
                else:
                    _winners_8(b, c, ci, 0, places, pi, values, vi, found, 0, 1, at, 0, soon)
            column += width * parts


def room_for_few(memory: Memory, terms: int) -> Row:
    """Reserve working memory for `product_of_few`, for a sparse factor with `terms` columns.

    Returns the positions of this memory, as values of columns of the operation table.
    """
    return {LISTS: memory.ints(terms + LISTED * (1 + terms)), VALUES: memory.floats(LISTED * terms)}


#: The column that holds a product's address -> the product.
PRODUCTS = {
    fields.PRODUCT: product,
    fields.MEET_ROWS: meet_rows,
    fields.MEET_WINNERS: meet_winners,
    fields.PRODUCT_OF_FEW: product_of_few,
}
