"""The speed of SignDS, and of NumPy's selection in the same run.

    python benchmarks/mechanisms_signds.py

NumPy's argpartition only finds the top-k set. Ours also draws the report and the magnitude.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from fedveil.base.message import encode
from fedveil.entropy import Secure
from fedveil.mechanisms.signds.dimension_selection import SignDS
from fedveil.mechanisms.signds.index_code import decode_indices, encode_indices
from figures import Figure, best_s, show

LENET_FEMNIST = 66_521


def figures() -> Iterator[Figure]:
    """Yield every figure. The first call of each kernel, which compiles it, is not timed."""
    yield from _planning()
    yield from _report()
    for dimension in (1_000_000, 10_000_000):
        yield from _selecting(dimension)


def _planning() -> Iterator[Figure]:
    def plan() -> int:
        return SignDS(k=0.2, eps=100, thr_ratio=0.6).plan(LENET_FEMNIST).dim_out

    began = time.perf_counter()
    dim_out = plan()
    first_ms = 1e3 * (time.perf_counter() - began)
    yield Figure(f"SignDS plan, h = {dim_out}, first in a process", first_ms, "ms", at_most=50)
    yield Figure(f"SignDS plan, h = {dim_out}", 1e3 * best_s(plan), "ms", at_most=50)


def _report() -> Iterator[Figure]:
    update = np.random.default_rng(0).standard_normal(LENET_FEMNIST).astype(np.float32)
    mechanism, entropy = SignDS(k=0.2), Secure()
    selection = mechanism.select(update, entropy)
    code = encode_indices(selection.indices, LENET_FEMNIST)
    size = len(encode({"round": 1, "sign": selection.sign, "indices": code, "bit": True}))
    count = len(selection.indices)
    limit = 1.1 * math.log2(math.comb(LENET_FEMNIST, count)) / 8 + 48
    name = f"SignDS report, {count} of {LENET_FEMNIST}"
    yield Figure(name, size, "bytes", at_most=limit)
    for work, seconds in (
        ("select", best_s(lambda: mechanism.select(update, entropy), 50)),
        ("code", best_s(lambda: encode_indices(selection.indices, LENET_FEMNIST), 50)),
        ("decode and check", best_s(lambda: decode_indices(code, LENET_FEMNIST, count), 50)),
    ):
        yield Figure(f"{name}: {work}", 1e6 * seconds, "us")


def _selecting(dimension: int) -> Iterator[Figure]:
    per_dimension = 1e9 / dimension
    dense = np.random.default_rng(1).standard_normal(dimension).astype(np.float32)
    sparse = np.where(np.random.default_rng(2).random(dimension) < 0.9, np.float32(0), dense)
    entropy = Secure()
    for share in (0.01, 0.2):
        mechanism = SignDS(k=share)
        topk = mechanism.plan(dimension).topk
        name = f"SignDS select, d = {dimension:.0e}, k = {share:.0%}"
        ours = best_s(partial(mechanism.select, dense, entropy), 9)
        peer = best_s(partial(np.argpartition, dense, dimension - topk), 5)
        zeros = best_s(partial(mechanism.select, sparse, entropy), 9)
        yield Figure(name, per_dimension * ours, "ns/dim", at_most=5)
        yield Figure(f"{name}, 90% zeros", per_dimension * zeros, "ns/dim", at_most=5)
        yield Figure(f"{name}: NumPy's argpartition", per_dimension * peer, "ns/dim")


if __name__ == "__main__":
    raise SystemExit(show(figures()))
