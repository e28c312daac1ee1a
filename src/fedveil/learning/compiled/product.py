"""Matrix products over parts of arrays, from the tiles that fit."""

from __future__ import annotations

from fedveil._arrays import Float32s, Int32s
from fedveil.learning.compiled.native import native
from fedveil.learning.compiled.tiles import WIDE, product_tile, winners_tile

#: Rows and columns of a tile: as many sums as registers hold, and what is left over of them.
_MOST_COLUMNS = 64 if WIDE else 16
_ROWS_64, _ROWS_32, _ROWS_16, _ROWS_8 = (6, 12, 14, 14) if WIDE else (1, 1, 6, 12)
#: Sums of so few terms are met a strip of so many rows after another: C is read as it lies.
_SHORT, _STRIP = 64, 12
_tile_64 = product_tile(16, 4, _ROWS_64)
_tile_32 = product_tile(16, 2, _ROWS_32)
_tile_16 = product_tile(16, 1, _ROWS_16)
_tile_8 = product_tile(8, 1, _ROWS_8)

_WINDOW_ROWS_32, _WINDOW_ROWS_16 = (5, 10) if WIDE else (2, 5)
_gather_32 = winners_tile(16, 2, _WINDOW_ROWS_32, False)
_gather_16 = winners_tile(16, 1, _WINDOW_ROWS_16, False)
_gather_8 = winners_tile(8, 1, _WINDOW_ROWS_16, False)
_spread_32 = winners_tile(16, 2, _WINDOW_ROWS_32, True)
_spread_16 = winners_tile(16, 1, _WINDOW_ROWS_16, True)
_spread_8 = winners_tile(8, 1, _WINDOW_ROWS_16, True)


@native("FiiFiiFiiiiFiiiiiii")
def product(
    c: Float32s, c0: int, cm: int, d: Float32s, d0: int, dm: int,
    a: Float32s, a0: int, am: int, ak: int, ao: int,
    b: Float32s, b0: int, bk: int, bo: int, m: int, n: int, k: int, o: int
) -> None:  # fmt: skip
    """C = D + A B for m rows and n columns, a multiple of 8, each entry one sum of o times k terms.

    Row i of C begins at c[c0 + i cm], that of D, which may be C, likewise; there is no D where
    its stride is below 0. Term (s, t) of it is a[a0 + i am + s ao + t ak] times the
    row of B that begins at b[b0 + s bo + t bk].
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


@native("FiiFiiiiIiFiii")
def meet_winners(
    x: Float32s, x0: int, xr: int, f: Float32s, f0: int, fr: int, rows: int, columns: int,
    places: Int32s, p0: int, values: Float32s, g0: int, count: int, back: int
) -> None:  # fmt: skip
    """Add value * window to a filter for each of a list of winners; `back`: to the windows.

    A filter has `rows` rows of `columns` entries, a multiple of 8; a winner's window begins at
    x0 and its place in x.
    """
    if count == 0:
        return
    column = 0
    while column < columns:
        width, most = 8, _WINDOW_ROWS_16
        if columns - column >= 32:
            width, most = 32, _WINDOW_ROWS_32
        elif columns - column >= 16:
            width = 16
        row = 0
        while row < rows:
            some = min(most, rows - row)
            fi, at = f0 + row * fr + column, x0 + row * xr + column
            if back != 0:
                if width == 32:
                    _spread_32(x, f, fi, fr, places, p0, values, g0, count, xr, some, at)
                elif width == 16:
                    _spread_16(x, f, fi, fr, places, p0, values, g0, count, xr, some, at)
                else:
                    _spread_8(x, f, fi, fr, places, p0, values, g0, count, xr, some, at)
            elif width == 32:
                _gather_32(x, f, fi, fr, places, p0, values, g0, count, xr, some, at)
            elif width == 16:
                _gather_16(x, f, fi, fr, places, p0, values, g0, count, xr, some, at)
            else:
                _gather_8(x, f, fi, fr, places, p0, values, g0, count, xr, some, at)
            row += some
        column += width
