"""The speed of a client's work under `distributed_dp`: rotation, rounding, noise.

    python benchmarks/mechanisms_shares.py

One core, half a minute. The rotation is compared with the same butterfly in NumPy, and with SciPy's
FFT of the same number of reals, which other implementations use for rotation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import scipy.fft

from fedveil.entropy import Secure, Seeded
from fedveil.mechanisms import hadamard
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian
from figures import Figure, best_s, show

LENGTH = 1 << 20
SMALL = 1 << 13


def figures() -> Iterator[Figure]:
    """Yield the nanoseconds that each kind of work takes per entry of a vector."""
    vector = Seeded(0).generator().standard_normal(LENGTH).astype(np.float32)

    def per_entry(seconds: float, length: int = LENGTH) -> float:
        return seconds / length * 1e9

    work = vector.copy()

    def again(transform) -> float:
        work[:] = vector
        return best_s(lambda: transform(work, LENGTH), repeats=9)

    with np.errstate(over="ignore", invalid="ignore"):  # grows with every repeat
        ours = per_entry(again(hadamard.walsh_hadamard))
        numpy = per_entry(again(hadamard._walsh_hadamard_numpy))
    fft = per_entry(best_s(lambda: scipy.fft.rfft(vector), repeats=9))
    yield Figure("Walsh-Hadamard of 2^20 entries", ours, "ns", at_most=6)
    yield Figure("  the same butterfly in NumPy", numpy, "ns")
    yield Figure("  SciPy's FFT of 2^20 real numbers", fft, "ns")
    for length in (LENGTH, SMALL):
        noise = DistributedGaussian(1.0, 5.0, shares=1000, clients=1000, dimension=length)
        signs, entropy = hadamard.random_signs(noise.length, Seeded(1)), Secure()
        part = vector[:length]
        turned = best_s(lambda p=part, n=noise, s=signs: hadamard.rotate(p, s, n.block), repeats=9)
        whole = best_s(
            lambda p=part, n=noise, s=signs, e=entropy: n.share(p, s, e),
            repeats=9 * LENGTH // length,
        )
        yield Figure(
            f"noise and rounding of {length:,} entries",
            per_entry(whole - turned, length),
            "ns",
            at_most=25,
        )
        yield Figure("  a whole share, rotation and all", per_entry(whole, length), "ns")


if __name__ == "__main__":
    sys.exit(show(figures()))
