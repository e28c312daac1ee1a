"""The privacy curves of all pairs of output distributions, which are the rows of a table."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.kernels import compiled

Pairs: TypeAlias = Int64s

#: Represents the logarithm of a probability of 0.
NEVER = -1e9
_BATCH = 1 << 20


def ordered_pairs(table: Float64s) -> Pairs:
    """Return the pairs (i, j) of indices of two rows of `table`, i not equal to j, in both orders.

    A row is an output distribution, and its entries are the probabilities of the outputs. If the
    table, of n rows, does not change when both of its axes are reversed, the pairs (i, j) and
    (n-1-i, n-1-j) have the same privacy curve. In this case, pairs with i+j >= n are left out.
    """
    count = len(table)
    i, j = np.triu_indices(count, 1)
    if np.array_equal(table, table[::-1, ::-1]):
        i, j = i[i + j < count], j[i + j < count]
    return np.concatenate([np.stack([i, j], axis=1), np.stack([j, i], axis=1)])


def largest_curve(
    table: Float64s, pairs: Pairs, largest: float, high: int, error: float, *, infinite: bool
) -> Float64s:
    """Return the pointwise maximum of the privacy curves of all `pairs` of rows of `table`.

    A row is an output distribution. The result has delta at 2 `high` + 1 equally spaced epsilons,
    from -`largest` to `largest`. `largest` must be at least the largest finite loss. `error` is a
    bound on the losses' numerical error, and is added to every loss. An output that only the first
    row of a pair can produce has infinite loss if `infinite` is True, otherwise the loss `largest`.
    """
    step = largest / high
    logs = np.full(table.shape, NEVER)
    np.log(table, out=logs, where=table > 0)
    growth = np.exp(np.minimum(step * np.arange(-high, high + 1.0), 700.0) - error)
    curve = np.zeros(2 * high + 1)
    decay, share = float(np.exp(-step)), float(-np.expm1(-step))
    _raise(table, logs, pairs, largest, error, infinite, growth, decay, share, curve)
    return curve


def _raise_numpy(
    table: Float64s, logs: Float64s, pairs: Pairs, largest: float, error: float, infinite: bool,
    growth: Float64s, decay: float, share: float, curve: Float64s
) -> None:  # fmt: skip
    high = len(growth) // 2
    size = 2 * high + 2
    rows = max(1, _BATCH // table.shape[1])
    for begin in range(0, len(pairs), rows):
        a, b = pairs[begin : begin + rows].T
        p, q = table[a], table[b]
        row = np.broadcast_to(np.arange(len(a))[:, None], p.shape)
        certain = (p > 0) & (q == 0) & infinite
        never = np.bincount(row[certain], p[certain], len(a))
        counted = (p > 0) & ~certain
        p, q, row = p[counted], q[counted], row[counted]
        losses = logs[a][counted] - logs[b][counted] + error
        cells = np.floor(np.clip(losses, -largest, largest) / (largest / high))
        cells = np.minimum(cells, high - 1).astype(np.int64) + high
        upper = np.clip((1.0 - growth[cells] * (q / p)) / share, 0.0, 1.0)
        upper = np.where(losses >= largest, 1.0, np.where(losses <= -largest, 0.0, upper))
        index = row * size + cells
        masses = np.bincount(index, p * (1.0 - upper), len(a) * size).reshape(-1, size)
        masses[:, 1:] += np.bincount(index, p * upper, len(a) * size).reshape(-1, size)[:, :-1]
        tails, deltas = np.zeros(len(a)), np.zeros(len(a))
        for k in range(2 * high, -1, -1):
            deltas = share * tails + decay * deltas
            curve[k] = max(curve[k], float((deltas + never).max()))
            tails = tails + masses[:, k]


@compiled(_raise_numpy)
def _raise(
    table: Float64s, logs: Float64s, pairs: Pairs, largest: float, error: float, infinite: bool,
    growth: Float64s, decay: float, share: float, curve: Float64s
) -> None:  # fmt: skip
    # An output whose loss lies between two grid points is split into two outputs on them that
    # preserve its mass under both rows. Merging the two gives the original distribution, so the
    # split pair loses no less.
    high = len(growth) // 2
    step = largest / high
    lower = np.empty(2 * high + 2)
    raised = np.empty(2 * high + 2)
    for pair in range(len(pairs)):
        a, b = pairs[pair]
        lower[:] = 0.0
        raised[:] = 0.0
        never = 0.0
        for o in range(table.shape[1]):
            p, q = table[a, o], table[b, o]
            if p == 0.0:
                continue
            if q == 0.0 and infinite:
                never += p
                continue
            loss = logs[a, o] - logs[b, o] + error
            bounded = min(max(loss, -largest), largest)
            cell = min(int(np.floor(bounded / step)), high - 1) + high
            if loss >= largest:
                upper = 1.0
            elif loss <= -largest:
                upper = 0.0
            else:
                upper = min(max((1.0 - growth[cell] * (q / p)) / share, 0.0), 1.0)
            lower[cell] += p * (1.0 - upper)
            raised[cell] += p * upper
        tail = delta = 0.0
        for k in range(2 * high, -1, -1):
            # delta(eps) is the integral over y > eps of Pr[loss > y] e^(eps - y).
            delta = share * tail + decay * delta
            curve[k] = max(curve[k], delta + never)
            tail += lower[k] + (raised[k - 1] if k > 0 else 0.0)
