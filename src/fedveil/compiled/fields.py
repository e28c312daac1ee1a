"""Columns of the operation table of a compiled model. Each row describes one operation.

The native code of an operation calls its row `op`, and the float memory `m`. An operation reads its
input x and writes its output y. These columns describe x and y:

    x               y
    X               Y               where the batch's values begin in the float memory
    DX              DY              where their gradients begin; DX is -1 if nothing needs them
    XS              YS              the distance in memory between two successive examples
    XR, XC, XF      YR, YC, YF      the same between two rows, two columns and two channels
    C, H, W         OC, OH, OW      the numbers of channels, rows and columns of an example

The input's value in example n, channel k, row i and column j is at the position

    X + n XS + i XR + j XC + k XF

A plain vector is one channel with one row. In a sequence, each token is a channel with one row.

Each kind of operation has further columns, which begin at OWN and are named beside its code.
"""

from __future__ import annotations

(
    X, XS, XR, XC, XF, DX, Y, YS, YR, YC, YF, DY, C, H, W, OC, OH, OW,
    # Contiguous runs of the input's values: their number, distance and length.
    RUNS, RUN_STEP, RUN,
    # The weight, the length of its rows, the bias, and a flag for having one.
    WEIGHT, ROW, BIAS, BIASED,
    # Positions of the gradients of the weight and bias. Under SGD without momentum or decay:
    # positions of the weight and bias themselves.
    DWEIGHT, DBIAS,
    # The number of examples in the batch, the first of an example's random draws, and the number of
    # draws per example.
    COUNT, DRAWS, EACH,
    # Deferred steps: the most rows, and the rows so far (-1: not deferred). The weight's position
    # in the model's vector.
    MOST, HELD, FLAT,
    # Addresses of the operation's native functions and of the products.
    FORWARD, BACKWARD, TAKE_STEPS, PRODUCT, MEET_ROWS, MEET_WINNERS, PRODUCT_OF_FEW,
    OWN,
) = range(41)  # fmt: skip


def own(count: int, first: int = OWN) -> range:
    """Return `count` numbers of table columns, from `first` on, for one kind of operation.

    Different kinds of operations use the same numbers for different columns.
    """
    return range(first, first + count)
