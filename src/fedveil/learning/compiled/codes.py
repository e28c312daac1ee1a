"""The code of each kind of operation."""

from __future__ import annotations

import numpy.typing as npt

from fedveil._arrays import Int64s
from fedveil.learning.compiled import (
    attention,
    beside,
    convolution,
    cost,
    dense_layer,
    lookup,
    normalisation,
    pointwise,
    product,
    steps,
    window,
)
from fedveil.learning.compiled import fields as f
from fedveil.learning.compiled.native import Native

_WAYS: dict[int, tuple[Native, Native]] = {
    f.DENSE: (dense_layer.dense, dense_layer.dense_back),
    f.CONVOLUTION: (convolution.convolve, convolution.convolve_back),
    f.LARGEST: (window.largest, window.largest_back),
    f.AVERAGE: (window.average, window.average_back),
    f.POINTWISE: (pointwise.curve, pointwise.curve_back),
    f.NORM: (normalisation.normalise, normalisation.normalise_back),
    f.NORM_OF_ROWS: (normalisation.normalise_rows, normalisation.normalise_rows_back),
    f.DROPOUT: (pointwise.drop, pointwise.drop_back),
    f.LOOKUP: (lookup.look_up, lookup.look_up_back),
    f.PLACE: (beside.place, beside.place_back),
    f.ATTENTION: (attention.attend, attention.attend_back),
    f.BRANCH: (beside.branch, beside.branch_back),
    f.JOIN: (beside.join, beside.join_back),
}
_USES = {
    f.DENSE: [f.PRODUCT, f.MEET_ROWS, f.PRODUCT_OF_FEW],
    f.CONVOLUTION: [f.PRODUCT, f.MEET_WINNERS],
    f.ATTENTION: [f.PRODUCT, f.MEET_ROWS],
}
_PRODUCTS = {
    f.PRODUCT: product.product,
    f.MEET_ROWS: product.meet_rows,
    f.MEET_WINNERS: product.meet_winners,
    f.PRODUCT_OF_FEW: product.product_of_few,
}


def link(ops: Int64s, ends: Int64s, loss: str, kind: npt.DTypeLike) -> None:
    """Write the addresses of their code into the operations' rows."""
    ends[0, f.FORWARD] = steps.read_in.address(kind)
    ends[1, f.FORWARD] = cost.COSTS[loss].address(kind)
    for op in ops:
        forward, backward = _WAYS[op[f.KIND]]
        op[f.FORWARD], op[f.BACKWARD] = forward.address(kind), backward.address(kind)
        for which in _USES.get(op[f.KIND], []):
            op[which] = _PRODUCTS[which].address(kind)
