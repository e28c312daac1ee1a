"""Lower bounds on the epsilon of one report, for every mechanism and four claimed epsilons.

    python benchmarks/attack_distinguish.py [--trials 10000] [--only dp_encrypt] [--claim 2]
    python benchmarks/attack_distinguish.py --one-run 1.89

Each mechanism protects twelve parameters at claims of 1, 2, 4 and 8 at delta = 1e-5. The two
updates are far apart. `distributed_dp`, `central_gaussian`, and `pw_encrypt` with central noise are
attacked in the sum of two clients. `embedding_dp` sends twelve values, which are all positive or
all negative. A line took at most 168 seconds on a busy machine. docs/attacks/reports.md shows them.
`--one-run CLAIM` prints the lower bound that an audit inside one run with this claim can be
expected to find, for several numbers of canaries. The audit does not assume Gaussian noise.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from fedveil.attacks.distinguishing import Distinguished, distinguish, distinguished, far_apart
from fedveil.engine.target_epsilon import at_cost, whole_run
from fedveil.entropy import Seeded
from fedveil.errors import FedveilWarning
from fedveil.mechanisms import EmbeddingDP
from fedveil.privacy import Figure, format_epsilon
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.compose import Charge, compose
from fedveil.privacy.one_run_audit import distance_of_epsilon, expected_share, lower_bound
from fedveil.protections.base import JobContext, Protection
from fedveil.protections.catalog import POSITIONS
from row_choice import chosen

CLAIMS = (1.0, 2.0, 4.0, 8.0)
DIMENSION, DELTA = 12, 1e-5
SUM = {"reconstruct_secrets_threshold": 2}
#: Per label: the protection, its settings, and the values between which its cost is searched.
MECHANISMS: dict[str, tuple[str, dict[str, Any], float, float]] = {
    "dp_encrypt": ("dp_encrypt", {}, 1e-2, 1e2),
    "signds": ("signds", {"sign_k": 0.25, "sign_dim_out": 2}, 1e-2, 1e2),
    "rr": ("rr", {"cells": 3}, 1e-3, 4.0),
    "rr, bits": ("rr", {"cells": 3, "report": "bits"}, 1e-3, 4.0),
    "oue": ("oue", {"cells": 3}, 1e-3, 4.0),
    "oue, bits": ("oue", {"cells": 3, "report": "bits"}, 1e-3, 4.0),
    "distributed_dp": ("distributed_dp", {**SUM, "bits": 16, "noise_multiplier": 1.0}, 0.1, 50.0),
    "pw_encrypt, central": ("pw_encrypt", {**SUM, "central_eps": 1.0}, 1e-2, 1e2),
    "central_gaussian": ("central_gaussian", {"noise_multiplier": 1.0}, 0.1, 50.0),
}
#: The protection of split learning, which is not a protection of updates.
EMBEDDING = "embedding_dp"


def at_claim(label: str, claim: float) -> Protection:
    """Return the protection `label` at the setting whose report costs at most epsilon `claim`.

    The setting is accurate to 0.01%.
    """
    name, settings, low, high = MECHANISMS[label]
    kind = POSITIONS[name]
    context = JobContext(
        "equal", DIMENSION, clients_per_round=2, rounds=1, delta=DELTA, masks=False, seeded=True
    )
    protection = kind(kind.settings_type(**settings), context)
    key = protection.cost_key(protection.settings)
    assert key is not None

    def too_large(value: float) -> bool:
        costly = whole_run(at_cost(protection, key, value), 1, DELTA).epsilon > claim
        return costly != key.falls

    low, high = narrowed(low, high, too_large)
    return at_cost(protection, key, high if key.falls else low)


def narrowed(low: float, high: float, too_large: Callable[[float], bool]) -> tuple[float, float]:
    """Return a value that is not `too_large`, and a slightly larger one that is, by bisection."""
    while high > low * 1.0001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if too_large(middle) else (middle, high)
    return low, high


def tried(label: str, claim: float, trials: int) -> Distinguished:
    """Return the result of telling two inputs apart, by `trials` reports on each."""
    if label == EMBEDDING:
        return tried_embedding(claim, trials)
    protection, entropy = at_claim(label, claim), Seeded(17, "benchmark", label, str(claim))
    model = np.linspace(-0.5, 0.5, DIMENSION).astype(np.float32)
    sums = protection.rests_on_server(protection.settings)
    (found,) = distinguished(
        protection, model, [far_apart(protection, model, entropy, sums)],
        promised=lambda rounds: whole_run(protection, rounds, DELTA),
        trials=trials, rounds=1, entropy=entropy, sums=sums,
    )  # fmt: skip
    return found


def tried_embedding(claim: float, trials: int) -> Distinguished:
    """Return the result of telling a positive from a negative vector by the bits of each."""

    def charges(eps: float) -> list[Charge]:
        return EmbeddingDP(eps).loss.charges(DIMENSION)

    eps, _ = narrowed(1e-3, 16.0, lambda value: compose(charges(value), DELTA) > claim)
    entropy = Seeded(17, "benchmark", EMBEDDING, str(claim))
    sides = []
    for sign in (1.0, -1.0):
        ones = EmbeddingDP(eps)(np.full((trials, DIMENSION), sign), entropy).sum(axis=1)
        sides.append(eps * (ones - DIMENSION / 2))  # the logarithm of the likelihood ratio
    stated = Figure(compose(charges(eps), DELTA), DELTA)
    return distinguish(*sides, "two signs", 1, stated, lambda factor: charges(eps * factor))


def one_run(epsilon: float) -> None:
    """Print the expected lower bound of one run with Gaussian noise, by the number of canaries.

    Each canary is as easy to recognise as the claim `epsilon` allows, and reveals nothing about
    others. For m canaries, the number of guesses is the best of m, m / 2, m / 4 and so on.
    """
    distance = distance_of_epsilon(Figure(epsilon, DELTA))
    for canaries in (100, 1000, 10_000, 100_000, 1_000_000):
        found, guesses = [], canaries
        while guesses >= 8:
            right = math.floor(guesses * expected_share(distance, guesses / canaries))
            found.append((lower_bound(canaries, guesses, right, delta=DELTA), guesses, right))
            guesses //= 2
        bound, guesses, right = max(found)
        told = f"{right:,} of {guesses:,} guesses right: {rounded_down(bound)}"
        print(f"{canaries:>9,} canaries: {told}")


def main() -> None:
    """Print a line for each mechanism and claim."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=10_000, help="reports on each update")
    parser.add_argument("--claim", type=float, choices=CLAIMS, help="only this claim")
    parser.add_argument("--only", default="", help="mechanisms whose name starts with this")
    parser.add_argument("--one-run", type=float, help="a run's claim")
    arguments = parser.parse_args()
    if arguments.one_run is not None:
        one_run(arguments.one_run)
        return
    labels = chosen(parser, (*MECHANISMS, EMBEDDING), arguments.only)
    warnings.simplefilter("ignore", FedveilWarning)
    print("| mechanism | claim | share of right guesses | epsilon at least "
          "| epsilon at least, by the mechanism's curve | seconds |")  # fmt: skip
    print("|---|---|---|---|---|---|")
    claims = CLAIMS if arguments.claim is None else (arguments.claim,)
    for label in labels:
        for claim in claims:
            began = time.monotonic()
            found = tried(label, claim, arguments.trials)
            bounds = " | ".join(map(rounded_down, (found.audit.bound, found.curve)))
            print(
                f"| {label} | {format_epsilon(found.audit.claim.epsilon)} | "
                f"{found.right.value:.4f} | {bounds} | {time.monotonic() - began:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
