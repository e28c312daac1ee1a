"""Two real tables under every protection: accuracy by epsilon of the whole run.

    FEDVEIL_DATA=... python benchmarks/private_tables.py places      about eight minutes of one core
    python benchmarks/private_tables.py patients                     about five

`places`: Location-30, 4,007 people's check-ins at 446 kinds of places, dealt to 200 clients. Rows
have 30 classes. `patients`: scikit-learn's breast cancer table, 426 patients with 30 measurements,
each of whom is a client. Each measurement is scaled by the range that the data's description
publishes. The model is multinomial regression; epsilon is replace-one, for a client's whole data
and whole run, delta 1e-5. Each point has the server's rate that was best on a fifth of the training
rows, which the choice holds out. The test rows choose nothing. No epsilon covers that choice.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedveil
from fedveil.base.array_types import Array
from fedveil.data import datasets
from fedveil.federated.job import Job
from fedveil.privacy import told
from fedveil.studies.comparison import Asked, Cell, Comparison

Rows = dict[str, Array]
SPLIT_SEED = 2026
TABLES = {"places": ("clients.number=200",), "patients": ("clients.number=340",)}
#: The clients of the test's jobs, where nothing is held out.
ALL = {"places": "clients.number=200", "patients": "clients.number=426"}
JOB = (
    "model=private_tables:linear", "rounds=20", "clients.fraction=1.0", "evaluation.every=20",
    "training={epochs: 1, batch_size: 1000, lr: 1.0}", "server.optimizer=momentum",
    "server.weighting=equal", "simulation={masks: false, workers: 0}",
    "protection.distributed_dp.dropout_tolerance=0.1",
)  # fmt: skip
#: For noise in the sum, and for noise in every report.
SUM, REPORT = (0.5, 2.0, 8.0), (2.0, 8.0, 100.0, 1000.0)
EPSILONS = {
    "not_encrypt": (), "pw_encrypt": (), "distributed_dp": SUM, "central_gaussian": SUM,
    "dp_encrypt": REPORT, "signds": REPORT, "rr": REPORT, "oue": REPORT,
}  # fmt: skip
RATES = (0.05, 0.25, 1.25)


def linear(shape: Sequence[int], classes: int) -> nn.Module:
    """Return multinomial regression with zero weights."""
    head = nn.Linear(shape[0], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def places() -> Rows:
    """Return Location-30."""
    data = datasets.load("location30")
    x = (2 * part.x.astype(np.float32) - 1 for part in (data.train, data.test))
    return _named(*x, data.train.y, data.test.y)


def patients() -> Rows:
    """Return the breast cancer table, each column scaled to -1 to 1 by its published range."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    low, high = np.array(list(_ranges(table.DESCR))).T
    x = (2 * (table.data - low) / (high - low) - 1).astype(np.float32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    test, train = order[:143], order[143:]
    return _named(x[train], x[test], table.target[train], table.target[test])


def _ranges(description: str) -> Iterator[tuple[float, float]]:
    """Yield each measurement's least and largest value, as the description states them."""
    for line in description.splitlines():
        name, _, numbers = line.partition(":")
        words = numbers.split()
        if "(" in name and len(words) == 2:
            yield float(words[0]), float(words[1])


def _named(x_train: Array, x_test: Array, y_train: Array, y_test: Array) -> Rows:
    return {"x_train": x_train, "x_test": x_test, "y_train": y_train, "y_test": y_test}


def _held(data: Rows) -> Rows:
    """Return the training rows alone, with a fifth of them as the test part."""
    x, y = data["x_train"], data["y_train"]
    order = np.random.default_rng(SPLIT_SEED).permutation(len(x))
    held, kept = order[: len(x) // 5], order[len(x) // 5 :]
    return _named(x[kept], x[held], y[kept], y[held])


def held_places() -> Rows:
    """Return the rows on which the rates of `places` are chosen."""
    return _held(places())


def held_patients() -> Rows:
    """Return the rows on which the rates of `patients` are chosen."""
    return _held(patients())


def cells(changes: Sequence[str], name: str, epsilon: float | None, seeds: int) -> Iterator[Cell]:
    """Yield the runs of a protection at an epsilon."""
    epsilons = [] if epsilon is None else [epsilon]
    asked = Asked(protections=[name], seeds=seeds, epsilons=epsilons)
    return Comparison(Job.load(None, [*JOB, *changes]), asked).cells()


def accuracies(found: Iterator[Cell]) -> tuple[list[float], float]:
    """Return each run's accuracy and the epsilon of the whole run. There are none without a job."""
    scores, epsilon = [], float("nan")
    for cell in found:
        if cell.job is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            last = fedveil.simulate(cell.job, Path(folder) / "run").metrics[-1]
        scores.append(100 * last["accuracy"])
        epsilon = last["epsilon_run_every_round"]
    return scores, epsilon


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="only this protection")
    asked = parser.parse_args()
    sys.modules["private_tables"] = sys.modules["__main__"]
    torch.set_num_threads(1)
    print("| protection | epsilon of the whole run | rate | accuracy, mean | each seed |")
    print("|---|---|---|---|---|", flush=True)
    for name, epsilons in EPSILONS.items():
        for epsilon in epsilons or (None,) if asked.only in name else ():
            held = [f"data.name=private_tables:held_{asked.table}", *TABLES[asked.table]]
            tried = [
                (accuracies(cells([*held, f"server.lr={rate}"], name, epsilon, 1))[0], rate)
                for rate in RATES
            ]
            scores, rate = max(tried)
            if not scores:
                print(f"| {name} | {epsilon:g}: no setting reaches it | | | |", flush=True)
                continue
            whole = [f"data.name=private_tables:{asked.table}", ALL[asked.table]]
            found, cost = accuracies(
                cells([*whole, f"server.lr={rate}"], name, epsilon, asked.seeds)
            )
            each = " ".join(f"{score:.1f}" for score in found)
            print(
                f"| {name} | {told(cost, 1e-5)} | {rate:g} | {statistics.mean(found):.1f} | "
                f"{each} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
