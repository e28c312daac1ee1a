"""Multi-head attention, o = softmax(q k' / sqrt(size)) v, forward and backward.

q, k and v are a head's queries, keys and values, k' is k transposed, and size is the number of
entries of a query. A token's row holds the queries of all heads, then all keys, then all values.
"""

from __future__ import annotations

import math

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.exponential import exponentials
from fedveil.compiled.native import OPERATION, call, native
from fedveil.compiled.operation import Memory, Operation, Row, Value, filled, need, up
from fedveil.compiled.row_passes import inner_product
from fedveil.learning.residual import Heads

#: The longest supported sequence. Attention weights take memory for every pair of tokens.
_LONGEST = 512

#: The number of heads, a flag for causal attention, and the length of a row of attention weights.
#: Memory for these weights, scratch memory for their gradients, and a row of zeros.
(HEADS, CAUSAL, SHARE_ROW, SHARES, SLOPES, NOTHING) = f.own(6)


@compiled()
def _sizes(op: Int64s) -> tuple[int, int, int, int]:
    """Return four counts: tokens, heads, entries per head, and floats in a row of the softmax.

    `op` is the layer's row of the operation table.
    """
    return op[f.C], op[HEADS], op[f.OW] // op[HEADS], op[SHARE_ROW]


@native(OPERATION)
def attend(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute multi-head attention, softmax(q k' / sqrt(size)) v, for all examples of a batch.

    q, k and v are a head's queries, keys and values, k' is k transposed, and size is the number of
    entries of a query. `op`, the layer's row of the operation table, says where the values are in
    the float memory `m`. `w`, `setting` and `draws` are not used.
    """
    tokens, heads, size, row = _sizes(op)
    step, width, scale = op[f.W], op[f.OW], 1 / math.sqrt(size)
    for n in range(op[f.COUNT]):
        for head in range(heads):
            q = op[f.X] + n * op[f.XS] + head * size
            shares = op[SHARES] + (n * heads + head) * tokens * row
            call(
                op[f.MEET_ROWS], m, shares, row, op[NOTHING],
                q, step, q + width, step, tokens, tokens, size,
            )  # fmt: skip
            for i in range(tokens):
                at, seen = shares + i * row, i + 1 if op[CAUSAL] else tokens
                total = exponentials(m, at, at, seen, scale)
                for j in range(seen):
                    m[at + j] /= total
                for j in range(seen, tokens):
                    m[at + j] = 0
            call(
                op[f.PRODUCT], m, op[f.Y] + n * op[f.YS] + head * size, width, m, 0, -1,
                m, shares, row, 1, 0, m, q + 2 * width, step, 0, tokens, size, tokens, 1,
            )  # fmt: skip


@native(OPERATION)
def attend_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Compute the gradients of the queries, keys and values, for all examples of a batch.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    tokens, heads, size, row = _sizes(op)
    step, width, scale, slopes = op[f.W], op[f.OW], 1 / math.sqrt(size), op[SLOPES]
    for n in range(op[f.COUNT]):
        for head in range(heads):
            begin = n * op[f.XS] + head * size
            q, dq, dy = op[f.X] + begin, op[f.DX] + begin, op[f.DY] + n * op[f.YS] + head * size
            shares = op[SHARES] + (n * heads + head) * tokens * row
            call(
                op[f.PRODUCT], m, dq + 2 * width, step, m, 0, -1,
                m, shares, 1, row, 0, m, dy, width, 0, tokens, size, tokens, 1,
            )  # fmt: skip
            call(
                op[f.MEET_ROWS], m, slopes, row, op[NOTHING],
                dy, width, q + 2 * width, step, tokens, tokens, size,
            )  # fmt: skip
            for i in range(tokens):
                p, g = shares + i * row, slopes + i * row
                mean = inner_product(m, p, g, tokens)
                for j in range(tokens):
                    m[g + j] = m[p + j] * (m[g + j] - mean) * scale
            call(
                op[f.PRODUCT], m, dq, step, m, 0, -1,
                m, slopes, row, 1, 0, m, q + width, step, 0, tokens, size, tokens, 1,
            )  # fmt: skip
            call(
                op[f.PRODUCT], m, dq + width, step, m, 0, -1,
                m, slopes, 1, row, 0, m, q, step, 0, tokens, size, tokens, 1,
            )  # fmt: skip


class Attention(Operation):
    layer: Heads
    layers = (Heads,)
    forward, backward = attend, attend_back
    products = (f.PRODUCT, f.MEET_ROWS)

    def written(self) -> Value:
        tokens, _, asked = self.x.shape
        size = asked // 3 // self.layer.heads
        need(size == up(size), f"an attention head has {size} values, no multiple of 8")
        need(tokens <= _LONGEST, f"a text has {tokens} tokens, more than {_LONGEST}")
        return Value.of_tokens(tokens, asked // 3)

    def working_memory(self, memory: Memory, batch: int, changed: bool) -> Row:
        heads, tokens = self.layer.heads, self.x.shape[0]
        row = filled(tokens)
        pairs = tokens * row
        return {
            HEADS: heads, CAUSAL: int(self.layer.causal), SHARE_ROW: row,
            SHARES: memory.floats(batch * heads * pairs), SLOPES: memory.floats(pairs),
            NOTHING: memory.floats(tokens),
        }  # fmt: skip
