"""What an operation of a compiled program says of itself: the columns of its row of numbers.

An example's value (channel c, row i, column j) of what it reads lies in the float memory at
X + example XS + i XR + j XC + c XF, and its gradient at the same place after DX, which is -1 where
nobody wants it. What it writes lies likewise after Y, with OC channels, OH rows and OW columns, and
DY; most operations that keep an example's shape work in place. A plain vector is one channel's only
row; of tokens each is a channel, one row long.
"""

from __future__ import annotations

(
    X, XS, XR, XC, XF, DX, Y, YS, YR, YC, YF, DY, C, H, W, OC, OH, OW,
    # The weight and its row's length, the bias; whether there is one, and how they are indexed.
    WEIGHT, ROW, BIAS, BIASED, AR, AC, AF,
    # Where gradients of the two are added: behind them, or to them under bare SGD.
    DWEIGHT, DBIAS,
    # A window's rows and columns, its steps and its border; a convolution's own output.
    KH, KW, SH, SW, PH, PW, ZH, ZW,
    # Whether a pooling follows, whose windows are these.
    POOLED, QKH, QKW, QSH, QSW, QPH, QPW,
    # Parts of the float memory that are the operation's own.
    TURNED, OUTPUT, PARTS, VALUES,
    # Parts of the integer memory: where winners lie, and lists of them.
    PLACES, LISTS,
    # Contiguous runs of values: how many (to a dense layer: tokens), how far apart, how long.
    RUNS, RUN_STEP, RUN,
    # The activation, the number of groups or heads, the first of an example's draws, and how many
    # each has.
    CURVE, GROUPS, DRAWS, EACH,
    # Whether a token sees none of those that follow; whether a weight is inputs by outputs.
    # And how many of a weight's row are computed with: whole vectors.
    CAUSAL, ACROSS, COLUMNS,
    # How many examples the batch has.
    COUNT,
    # Steps that are held: how many rows at most and now (-1: none are), the two factors, what is
    # met with one, and nothing but zeros. Where the weight is in a model's vector.
    MOST, HELD, HELD_X, HELD_DY, MET, ZEROS, FLAT,
    # Where the code of its ways lies, and of the products.
    FORWARD, BACKWARD, PRODUCT, MEET_ROWS, MEET_WINNERS, PRODUCT_OF_FEW, TAKE_STEPS,
    FIELDS,
) = range(74)  # fmt: skip
