"""MNIST under distributed noise: accuracy by epsilon, with the real protocol and discrete noise.

Runs the jobs of examples/private_mnist with `fedveil.simulate`. Prints test accuracy over seeds,
and the ledger's epsilon: replace-one, whole run, delta 1e-5. The settings were chosen on a part of
the training images (`private_mnist_study.py`), not here.

    FEDVEIL_DATA=... python benchmarks/private_mnist.py clients --seeds 3      about half an hour
    FEDVEIL_DATA=... python benchmarks/private_mnist.py central | dropouts | bits | clip | example
    FEDVEIL_DATA=... python benchmarks/private_mnist.py curve

`clients`: the claims. `central`: the same with a trusted server. `dropouts`: 10% of the clients
drop out in every round. `bits`: the precision of the sum with 100 clients, also with 30% dropouts,
beside a trusted server that misses the same clients. `clip`: an adaptive clip that starts at the
chosen value or far from it, scored on the part of the training images on which settings are
chosen. `example`: five clients of 12,000 images, with one example as the unit. `curve`: every
protection at many epsilons, 1,000 clients.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import fedveil
from fedveil.federated.job import Job
from fedveil.privacy.loss import format_epsilon
from row_choice import chosen

JOBS = Path(__file__).parent.parent / "examples" / "private_mnist"
BLOCK = "protection.distributed_dp"


class Row(NamedTuple):
    """A line of the table: its name, the job's file and the changes to it."""

    name: str
    job: str
    changes: Sequence[str]


def shares(clients: int, epsilon: float, rate: float, *more: str, name: str = "") -> Row:
    """Return a row for distributed noise at an epsilon, with the server's rate."""
    changes = [f"{BLOCK}.target_epsilon={epsilon}", f"server.lr={rate}", *more]
    said = f"{clients} clients, epsilon {epsilon:g}"
    return Row(f"{said}, {name}" if name else said, f"clients-{clients}.yaml", changes)


#: (clients, epsilon) -> the server's rate chosen on the validation part.
RATES = {(6000, 8): 12.0, (6000, 1): 1.28, (1000, 8): 2.56, (1000, 2): 0.64}
EXACT = f"{BLOCK}.dropout_tolerance=0"


def trusted(clients: int, epsilon: float, rate: float, *more: str) -> Row:
    """Return a row for central noise at an epsilon, with the server's rate."""
    clip = {6000: 0.3, 1000: 0.15, 100: 0.1}[clients]
    file = "clients-6000.yaml" if clients == 6000 else "clients-1000.yaml"
    changes = [
        "protection=central_gaussian", f"protection.central_gaussian.clip={clip}",
        f"protection.central_gaussian.target_epsilon={epsilon}", f"server.lr={rate}", *more,
    ]  # fmt: skip
    return Row(f"{clients} clients, epsilon {epsilon:g}, central_gaussian", file, changes)


def bits() -> Iterable[Row]:
    """Yield rows for 100 clients of 600 images that send more or fewer bits."""
    hundred = ("clients.number=100", f"{BLOCK}.clip=0.1")
    for epsilon, rate in ((8, 0.32), (2, 0.08), (1, 0.04)):
        yield trusted(100, epsilon, rate, "clients.number=100")
        missing_too = trusted(
            100, epsilon, rate, "clients.number=100", "simulation.dropouts.masked=0.3"
        )
        yield missing_too._replace(name=f"{missing_too.name}, 30% missing")
        for width, missing in ((16, 0.0), (14, 0.0), (8, 0.0), (5, 0.0), (14, 0.3)):
            changes = [
                *hundred, f"{BLOCK}.target_epsilon={epsilon}", f"server.lr={rate}",
                f"{BLOCK}.bits={width}", f"{BLOCK}.dropout_tolerance={missing}",
                f"simulation.dropouts.masked={missing}",
            ]  # fmt: skip
            said = f"100 clients, epsilon {epsilon:g}, {width} bits" + (
                f", {missing:.0%} missing" if missing else ""
            )
            yield Row(said, "clients-1000.yaml", changes)


#: Use the part of the training images on which settings are chosen. Only this process has it.
HELD_OUT = ("data.name=private_mnist_study:held_out", "simulation.workers=0")
QUANTILE, CLIP_RATE = 0.2, 0.5


def moving_clip() -> Iterable[Row]:
    """Yield rows with the chosen clip, and with one that is ten times too large or too small."""
    for epsilon in (8, 2):
        rate = RATES[1000, epsilon]
        for clip in (0.15, 1.5, 0.015):
            begins = (*HELD_OUT, f"{BLOCK}.clip={clip}")
            follows = (f"{BLOCK}.clip_quantile={QUANTILE}", f"{BLOCK}.clip_rate={CLIP_RATE}")
            yield shares(1000, epsilon, rate, *begins, name=f"clip {clip:g}")
            yield shares(1000, epsilon, rate, *begins, *follows, name=f"clip {clip:g}, moving")


def curve() -> Iterable[Row]:
    """Yield rows for each protection at seven epsilons. The rate falls with the noise."""
    for epsilon in (0.25, 0.5, 1, 2, 4, 8, 16):
        rate = min(2.56, 0.32 * epsilon)
        yield shares(1000, epsilon, rate)
        yield trusted(1000, epsilon, rate)


MODES = {
    "clients": lambda: [shares(n, e, rate) for (n, e), rate in RATES.items()],
    "central": lambda: [
        row
        for (n, e), rate in RATES.items()
        for row in (shares(n, e, rate, EXACT, name="no dropouts allowed"), trusted(n, e, rate))
    ],
    "dropouts": lambda: [
        shares(n, e, rate, "simulation.dropouts.masked=0.1", name="10% missing")
        for (n, e), rate in RATES.items()
        if n == 1000
    ],
    "bits": lambda: [*bits()],
    "example": lambda: [
        Row(f"5 x 12,000 images, unit example, epsilon {e}", "examples-5.yaml", changes)
        for e, changes in (
            (3, []),
            (1, [f"{BLOCK}.target_epsilon=1", f"{BLOCK}.clip=3.3e-5", "server.lr=3.2"]),
        )
    ],
    "clip": lambda: [*moving_clip()],
    "curve": lambda: [*curve()],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    asked = parser.parse_args()
    rows = MODES[asked.mode]()
    names = chosen(parser, (row.name for row in rows), asked.only, anywhere=True)
    print("| setting | accuracy, mean | each seed | epsilon | bytes per report | seconds per run |")
    print("|---|---|---|---|---|---|", flush=True)
    for row in rows:
        if row.name not in names:
            continue
        found, lasts, began = [], {}, time.perf_counter()
        for seed in range(asked.seeds):
            job = Job.load(JOBS / row.job, [*row.changes, f"seed={seed}"])
            with tempfile.TemporaryDirectory() as folder:
                run = fedveil.simulate(job, Path(folder) / "run")
            lasts = run.metrics[-1]
            found.append(lasts["accuracy"])
        took = (time.perf_counter() - began) / asked.seeds
        each = " ".join(f"{100 * a:.2f}" for a in found)
        print(
            f"| {row.name} | {100 * statistics.mean(found):.2f} | {each} | "
            f"{format_epsilon(lasts['epsilon_run_every_round'])} | "
            f"{lasts['bytes_up_per_client']:.0f} | {took:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
