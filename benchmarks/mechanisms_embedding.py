"""The speed of EmbeddingDP, and of plain NumPy in the same run, on one core.

    python benchmarks/mechanisms_embedding.py

Plain NumPy uses a generator that is not secure, and draws one double for each bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from fedveil.entropy import Secure
from fedveil.mechanisms import EmbeddingDP, LabelDP
from figures import Figure, best_s, show

VALUES = 10_000_000
LABELS = 1_000_000
CLASSES = 10
EPS = 5.0


def figures() -> Iterator[Figure]:
    """Yield every figure. The first call of each kernel, which compiles it, is not timed."""
    torch.set_num_threads(1)
    tensor = torch.randn(VALUES, generator=torch.Generator().manual_seed(0))
    values, mechanism, entropy = tensor.numpy(), EmbeddingDP(EPS), Secure()
    packed = mechanism.bits(values, entropy)
    of = f"{VALUES:.0e} values"
    for work, call, floor in (
        (f"EmbeddingDP, torch, {of}", partial(mechanism, tensor, entropy), 60),
        (
            f"EmbeddingDP, torch bfloat16, {of}",
            partial(mechanism, tensor.bfloat16(), entropy),
            None,
        ),
        (f"EmbeddingDP, torch, {of}, no eps", partial(EmbeddingDP(), tensor), None),
        (f"EmbeddingDP, packed bits of {of}", partial(mechanism.bits, values, entropy), None),
        (f"EmbeddingDP, {of} from packed bits", partial(mechanism.unpack, packed, (VALUES,)), None),
        (f"EmbeddingDP, plain NumPy, {of}", partial(_plain, values), None),
    ):
        yield Figure(work, 1e3 * best_s(call), "ms", at_most=floor)
    ratio = packed.nbytes / values.nbytes
    yield Figure("EmbeddingDP, packed bytes over float32's", ratio, "times", at_most=1 / 32)
    labels = np.arange(LABELS) % CLASSES
    label = partial(LabelDP(1.0).perturb_classes, labels, CLASSES, entropy)
    yield Figure("LabelDP, ten classes", 1e9 / LABELS * best_s(label), "ns/label")


def _plain(values: np.ndarray) -> np.ndarray:
    truth = values > 0
    lies = np.random.default_rng().random(len(values)) < 1 / (math.exp(EPS / 2) + 1)
    return (truth ^ lies).astype(np.float32)


if __name__ == "__main__":
    raise SystemExit(show(figures()))
