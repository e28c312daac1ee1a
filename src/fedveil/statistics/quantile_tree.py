"""Quantiles from a tree of noisy counts. Least squares makes the levels consistent.

The counts of all nodes are y = A x + noise, where x has the true counts of the leaves. A has a row
for each node, with a 1 for each of its leaves and 0 elsewhere. The best linear unbiased estimate of
x is (Aᵀ W A)⁻¹ Aᵀ W y with W = diag(1 / variance), and its covariance is (Aᵀ W A)⁻¹ (Hay, Rastogi,
Miklau and Suciu, 2010).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.statistics.answers import Estimate
from fedveil.statistics.estimates import Sums


def quantiles(
    levels: Sequence[Sums], edges: Float64s, at: Sequence[float], z: float, label: dict[str, str]
) -> list[Estimate]:
    """Return the estimated quantiles `at` (numbers between 0 and 1), with their intervals.

    `levels` has the noisy counts of rows in the nodes of each level of the tree, from the top.
    `edges` are the edges of its leaves, which are intervals. `label` says what is estimated.

    For the quantile q, the number of rows below an edge is compared with q times the number of all
    rows. The interval spans all edges at which the two numbers differ by at most `z` standard
    deviations, and one more leaf on each side.
    """
    leaves, covariance = _leaves(levels)
    below = np.concatenate([[0.0], np.cumsum(leaves)])
    steps = np.tril(np.ones((len(below), len(leaves))), -1)
    sampled = min(levels, key=lambda sums: sums.asked).repeated
    return [
        _quantile(
            q, below, steps, covariance, edges, sampled, z, {**label, "quantile": f"{q:.15g}"}
        )
        for q in at
    ]


def _quantile(
    q: float,
    below: Float64s,
    steps: Float64s,
    covariance: Float64s,
    edges: Float64s,
    sampled: float,
    z: float,
    label: dict[str, str],
) -> Estimate:
    total = max(float(below[-1]), 1.0)
    contrast = steps - q
    noise = np.maximum(np.einsum("ij,jk,ik->i", contrast, covariance, contrast), 0.0)
    sampling = total * q * (1 - q) * sampled
    excess = _rising(below - q * below[-1])
    reach = z * np.sqrt(noise + sampling)
    possible = np.flatnonzero(np.abs(excess) <= reach)
    value = _crossing(excess, edges)
    place = int(np.searchsorted(edges, value))
    near = possible if len(possible) else np.array([place])
    low = float(edges[max(0, min(int(near[0]) - 1, place - 1))])
    high = float(edges[min(len(edges) - 1, max(int(near[-1]) + 1, place))])
    # Splits the interval's width in the proportion of the two variances.
    width = (high - low) / (2 * z)
    both = max(float(noise[place]) + sampling, 1e-300)
    spread = [width * math.sqrt(part / both) for part in (float(noise[place]), sampling)]
    return Estimate(label, value, low, high, *spread)


def _rising(values: Float64s) -> Float64s:
    """Return a nondecreasing version of `values`.

    Entry i is the mean of the largest of values[: i + 1] and the smallest of values[i:]. If
    `values` approximate a nondecreasing function, the result is at least as close to it, measured
    by the largest error of an entry.
    """
    above = np.maximum.accumulate(values)
    below = np.minimum.accumulate(values[::-1])[::-1]
    risen: Float64s = (above + below) / 2
    return risen


def _crossing(excess: Float64s, edges: Float64s) -> float:
    """Return the point at which an increasing function is zero.

    `excess` has the values of the function at `edges`. Between two edges, the function is linear.
    Returns the first or the last edge if the function is never zero.
    """
    after = int(np.searchsorted(excess, 0.0))
    if after == 0 or after == len(excess):
        return float(edges[min(after, len(edges) - 1)])
    low, high = float(excess[after - 1]), float(excess[after])
    part = -low / (high - low)
    return float(edges[after - 1] + part * (edges[after] - edges[after - 1]))


def _leaves(levels: Sequence[Sums]) -> tuple[Float64s, Float64s]:
    values = np.concatenate([sums.values for sums in levels])
    noise = np.concatenate([sums.noise for sums in levels])
    tree = _tree(tuple(len(sums.values) for sums in levels))
    weights = np.ones(len(noise)) if (noise <= 0).all() else 1 / np.maximum(noise, 1e-300)
    inverse = np.linalg.inv((tree.T * weights) @ tree).astype(np.float64)
    leaves: Float64s = inverse @ (tree.T @ (weights * values))
    return leaves, np.zeros_like(inverse) if (noise <= 0).all() else inverse


@lru_cache(maxsize=8)
def _tree(widths: tuple[int, ...]) -> Float64s:
    """Return a matrix with a row for each node: 1 in the columns of its leaves, otherwise 0.

    Level i of the tree has widths[i] nodes, and the last level has the leaves.
    """
    leaves = widths[-1]
    return np.concatenate([np.repeat(np.eye(width), leaves // width, axis=1) for width in widths])
