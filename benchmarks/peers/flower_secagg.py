"""Time the client's heavy work in Flower's SecAgg+: masking a vector, and Shamir's sharing.

Stand-alone: run it with the Python of an environment made from ``requirements-peers.txt``. The
last line of standard output is one JSON object. The loops are those of the client's own modifier
(``secaggplus_mod``): a key agreement, a pseudo-random mask and an addition for each neighbour,
and shares of the two secrets of 32 bytes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import generate_key_pairs

MODULUS = 1 << 32  # the workflow's own default


def best_s(work: Callable[[], Any], repeats: int) -> float:
    """Return the CPU seconds of the fastest of `repeats` runs of `work`."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--neighbours", type=int, default=100)
    parser.add_argument("--threshold", type=int, default=51)
    options = parser.parse_args()
    mine, _ = generate_key_pairs()
    peers = [generate_key_pairs()[1] for _ in range(options.neighbours)]
    vector = [np.zeros(options.entries, np.int64)]
    shapes = [array.shape for array in vector]

    def mask() -> None:
        total = parameters_addition(vector, pseudo_rand_gen(os.urandom(32), MODULUS, shapes))
        for place, public in enumerate(peers):
            drawn = pseudo_rand_gen(generate_shared_key(mine, public), MODULUS, shapes)
            combine = parameters_addition if place % 2 else parameters_subtraction
            total = combine(total, drawn)
        parameters_mod(total, MODULUS)

    secrets = [os.urandom(32), os.urandom(32)]

    def share() -> list[list[bytes]]:
        return [create_shares(s, options.threshold, options.neighbours) for s in secrets]

    shares = share()

    def join() -> None:
        for some in shares:
            combine_shares(some[: options.threshold])

    figures = {
        "version": importlib.metadata.version("flwr"),
        "mask_s": best_s(mask, 2),
        "share_s": best_s(share, 3),
        "join_s": best_s(join, 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
