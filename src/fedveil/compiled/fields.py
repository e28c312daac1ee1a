"""The columns of an operation's row of numbers in a compiled program.

An operation reads its input x and writes its output y. For example n, channel c, row i and column
j, the input is in the float memory at X + n XS + i XR + j XC + c XF, and its gradient at the same
offset from DX. DX is -1 if no operation needs the gradient. The output is likewise at Y, and its
gradient at DY; it has OC channels, OH rows and OW columns. Most operations that preserve the shape
work in place. A plain vector is one channel with one row; each token is a channel with one row.
"""

from __future__ import annotations

(
    X, XS, XR, XC, XF, DX, Y, YS, YR, YC, YF, DY, C, H, W, OC, OH, OW,
    # The weight, the length of its rows, the bias, a flag for having one, and their strides.
    WEIGHT, ROW, BIAS, BIASED, AR, AC, AF,
    # Positions for the gradients of the weight and bias. Under bare SGD: of the parameters
    # themselves.
    DWEIGHT, DBIAS,
    # The size, stride and padding of a window, and the convolution's own output size.
    KH, KW, SH, SW, PH, PW, ZH, ZW,
    # A flag for a pooling behind the convolution, and the size, stride and padding of its windows.
    POOLED, QKH, QKW, QSH, QSW, QPH, QPW,
    # Scratch areas in the float memory.
    TURNED, OUTPUT, PARTS, VALUES,
    # Scratch areas in the integer memory: the positions of winners, and lists of winners.
    PLACES, LISTS,
    # Contiguous runs of values: their number (in a dense layer: tokens), distance and length.
    RUNS, RUN_STEP, RUN,
    # The activation, the number of groups or heads, the first of an example's random draws, and the
    # number of draws per example.
    CURVE, GROUPS, DRAWS, EACH,
    # Flags for causal attention and for a weight stored as inputs by outputs. The number of entries
    # of a weight's row that take part in products: whole vectors.
    CAUSAL, ACROSS, COLUMNS,
    # The number of examples in the batch.
    COUNT,
    # Deferred steps: the most rows, the rows so far (-1: not deferred), the two factors, a product
    # with one of them, and zeros. The weight's position in the model's vector.
    MOST, HELD, HELD_X, HELD_DY, MET, ZEROS, FLAT,
    # Addresses of the operation's native functions and of the products.
    FORWARD, BACKWARD, PRODUCT, MEET_ROWS, MEET_WINNERS, PRODUCT_OF_FEW, TAKE_STEPS,
    FIELDS,
) = range(74)  # fmt: skip
