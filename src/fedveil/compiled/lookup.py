"""An embedding layer: maps token ids, stored as floats, to rows of the weight."""

from __future__ import annotations

from torch import nn

from fedveil.base.array_types import Float32s, Int32s, Int64s
from fedveil.base.kernels import compiled
from fedveil.compiled import fields as f
from fedveil.compiled.native import OPERATION, native
from fedveil.compiled.operation import ROW, Laid, Operation, Value, filled, matrix, need

#: Every integer up to this is exact in float32.
_EXACT = 1 << 24


@compiled()
def _look_up(m: Float32s, op: Int64s, values: int, weight: int, back: bool) -> None:
    """Copy each token's row of the weight to its output. If `back` is True, run the backward pass.

    The weight begins at position `weight` of the float memory `m`, and the outputs at `values`. In
    the backward pass, these are the positions of their gradients: each token's output gradient is
    added to the gradient of the token's row. `op` is the layer's row of the operation table.
    """
    for n in range(op[f.COUNT]):
        for t in range(op[f.OC]):
            row = weight + int(m[op[f.X] + n * op[f.XS] + t]) * op[f.ROW]
            at = values + n * op[f.YS] + t * op[f.YF]
            for j in range(op[f.OW]):
                if back:
                    m[row + j] += m[at + j]
                else:
                    m[at + j] = m[row + j]


@native(OPERATION)
def look_up(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Write each token's vector to its output: row t of the layer's weight for the token id t.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    _look_up(m, op, op[f.Y], op[f.WEIGHT], False)


@native(OPERATION)
def look_up_back(m: Float32s, w: Int32s, op: Int64s, setting: float, draws: Float32s) -> None:
    """Add each token's output gradient to the gradient of the weight's row that the token selects.

    `op`, the layer's row of the operation table, says where the values are in the float memory `m`.
    `w`, `setting` and `draws` are not used.
    """
    _look_up(m, op, op[f.DY], op[f.DWEIGHT], True)


class Lookup(Operation):
    layer: nn.Embedding
    layers = (nn.Embedding,)
    forward, backward = look_up, look_up_back

    def written(self) -> Value:
        table = self.layer
        fits = self.x.form == ROW and self.x.shape[:2] == (1, 1)
        need(fits, "the input of nn.Embedding is not a row of tokens")
        need(table.num_embeddings <= _EXACT, "nn.Embedding has more than 2^24 rows")
        plain = table.padding_idx is None and table.max_norm is None
        plain = plain and not table.scale_grad_by_freq and not table.sparse
        need(plain, "nn.Embedding has options")
        return Value.of_tokens(self.x.shape[2], table.embedding_dim)

    @property
    def row(self) -> int:
        return filled(self.layer.embedding_dim)

    def laid(self, weight: nn.Parameter) -> Laid:
        return matrix(weight, self.row)
