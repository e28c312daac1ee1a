"""Training in native code against torch's loop, round by round: do the curves agree?

    FEDVEIL_DATA=FOLDER python benchmarks/training_curves.py [--seeds 3] [--set KEY=VALUE]

LeNet on MNIST, 100 clients with classes drawn at alpha 0.5, 20 of them per round, 50 rounds. With
the same seed both have the same clients, batches and initial weights. They differ only by rounding,
and that difference is compared with the one between two seeds of the loop. Accuracy is measured on
the test set, which is not used to choose anything. Takes six minutes on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import numpy as np

import fedveil
from fedveil import Job

ENGINES = ("auto", "loop")


def accuracies(engine: str, seed: int, options: argparse.Namespace) -> np.ndarray:
    """Return the accuracy after each round, in percent."""
    job = Job.load(
        None,
        [
            f"seed={seed}",
            f"rounds={options.rounds}",
            "data={name: mnist, split: dirichlet, alpha: 0.5}",
            "clients={number: 100, fraction: 0.2}",
            "model=lenet",
            "training={epochs: 1, batch_size: 20, lr: 0.05}",
            "evaluation.every=1",
            "protection=not_encrypt",
            "simulation.workers=2",
            *options.set,
            f"training.engine={engine}",
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        run = fedveil.simulate(job, Path(folder) / "run", progress=None)
    return 100 * np.array([record["accuracy"] for record in run.metrics])


def main() -> None:
    """Measure and print. Exits with status 1 if the engines differ by more than seeds do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--set", action="append", default=[], help="further settings of the job")
    options = parser.parse_args()
    curves = {
        (engine, seed): accuracies(engine, seed, options)
        for seed in range(options.seeds)
        for engine in ENGINES
    }
    for (engine, seed), curve in curves.items():
        some = ", ".join(f"{curve[r - 1]:.2f}" for r in (1, 5, 10, 20, options.rounds))
        print(f"seed {seed}, {engine}: after rounds 1, 5, 10, 20 and the last {some}")
    between = [np.abs(curves["auto", s] - curves["loop", s]) for s in range(options.seeds)]
    pairs = itertools.combinations(range(options.seeds), 2)
    noise = [np.abs(curves["loop", a] - curves["loop", b]) for a, b in pairs]
    for what, found in (("engines, the same seed", between), ("seeds of the loop", noise)):
        found = np.array(found)
        print(f"between two {what}: mean {found.mean():.3f} points, most {found.max():.2f}")
    raise SystemExit(int(np.mean(between) > np.mean(noise)))


if __name__ == "__main__":
    main()
