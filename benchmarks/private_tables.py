"""Two tables of real people under every protection: accuracy by the epsilon of the whole run.

    python benchmarks/private_tables.py patients --folder DIR
    FEDVEIL_DATA=... python benchmarks/private_tables.py organisations --rounds 20 --folder DIR
    FEDVEIL_DATA=... python benchmarks/private_tables.py location --rounds 6 --folder DIR

Epsilon covers a person's row: replace-one, whole run, delta 1e-5. `patients`: scikit-learn's breast
cancer table, 456 people, 30 columns, 2 classes. `location`: Location-30, 4,007 people, 446 columns,
30 classes. In both, every person is a client. `organisations`: Location-30 at five organisations of
801 people each, or one more, under the protections that have `privacy.unit: example`. The model is
linear, and every client takes one step in each round. `fedveil.simulate` runs the jobs. The
settings of a protection are those with which `fedveil compare` reaches an epsilon. rr and oue draw
the sum of all reports at once, from its exact distribution.

The server's rate of each point is the best one on a fifth of the training people, whom the choice
holds out. The test people are read once the rate is known. Results are saved in `--folder`, and the
command resumes there. `--plot` draws the curve.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

import fedveil
from fedveil.base.array_types import Array
from fedveil.data import datasets
from fedveil.data.examples import holdout
from fedveil.federated.job import Job
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.svg import svg
from fedveil.privacy import epsilon_text
from fedveil.studies.comparison import Asked, Cell, Comparison
from row_choice import chosen

JOB = (
    "model=logistic", "clients.fraction=1.0", "server.optimizer=momentum",
    "server.weighting=equal", "simulation={masks: false, workers: 0}", "record.page=false",
    "protection.distributed_dp.dropout_tolerance=0", "protection.dp_encrypt.dp_delta=1e-7",
    "protection.signds.sign_k=0.25",
    "protection.unary={fidelity: aggregate, target: update, rounding: stochastic, clip: 0.5}",
)  # fmt: skip
#: The epsilons of protections that noise the sum, and of those that noise every report.
SUM, REPORT = (1.0, 2.0, 4.0, 8.0), (8.0, 1000.0, 100_000.0)
PEOPLE = {
    "not_encrypt": (), "pw_encrypt": (), "central_gaussian": SUM, "distributed_dp": SUM,
    "rr": REPORT, "oue": REPORT, "signds": REPORT, "dp_encrypt": REPORT,
}  # fmt: skip
ORGANISATIONS = {"not_encrypt": (), "distributed_dp": SUM, "dp_encrypt": SUM}
SITES = 5
TITLES = {
    "patients": "Breast cancer, 456 patients",
    "organisations": "Location-30, 4,007 people at five organisations",
    "location": "Location-30, 4,007 people",
}
#: Protections with the rates of another one, which gives the mean the same noise or similar noise.
LIKE = {"pw_encrypt": "not_encrypt", "distributed_dp": "central_gaussian", "oue": "rr"}
#: Rates that are tried, from the one of the next larger epsilon down, until two are worse.
RATES = tuple(655.36 / 4**step for step in range(11))
#: The largest rate that is tried on each table.
LARGEST = {"patients": 40.96, "organisations": 655.36, "location": 655.36}
#: Makes the data function return training people only: a fifth of them is then the test part.
CHOOSING = "FEDVEIL_TABLES_CHOOSE"


def location() -> tuple[Array, Array, Array, Array]:
    """Return Location-30, each row divided by its length."""
    data = datasets.load("location30")
    train, test = (part.x / np.linalg.norm(part.x, axis=1, keepdims=True).clip(1)
                   for part in (data.train, data.test))  # fmt: skip
    return _asked(train, data.train.y, test, data.test.y)


organisations = location


def patients() -> tuple[Array, Array, Array, Array]:
    """Return the breast cancer table, with four features for each column, and rows of length 1.

    A feature says how near a value is to one of four points, which divide the column's range
    equally. The ranges are those of the table's public description: no epsilon covers them.
    """
    rows, labels = load_breast_cancer(return_X_y=True)
    place = 3 * (rows - rows.min(0)) / np.ptp(rows, axis=0)
    near = (1 - np.abs(place[:, :, None] - np.arange(4))).clip(0).reshape(len(rows), -1)
    x = near / np.linalg.norm(near, axis=1, keepdims=True)
    train, test = holdout("breast cancer", labels)
    return _asked(x[train], labels[train], x[test], labels[test])


def _asked(x: Array, y: Array, x_test: Array, y_test: Array) -> tuple[Array, Array, Array, Array]:
    x, x_test = x.astype(np.float32), x_test.astype(np.float32)
    if not os.environ.get(CHOOSING):
        return x, y, x_test, y_test
    ours, held = holdout("choosing", y)
    return x[ours], y[ours], x[held], y[held]


class Point(NamedTuple):
    """A protection at an epsilon: the server's rate, and each seed's accuracy and last record."""

    protection: str
    rate: float
    accuracies: Sequence[float]
    last: dict[str, Any]

    @property
    def epsilon(self) -> float:
        return float(self.last["epsilon_run_every_round"])

    def __str__(self) -> str:
        right = [100 * one for one in self.accuracies]
        return (
            f"| {self.protection} | {epsilon_text(self.epsilon, 1e-5)} | {self.rate:g} | "
            f"{statistics.mean(right):.1f} | {' '.join(f'{one:.1f}' for one in right)} | "
            f"{self.last['bytes_up_per_client']:.0f} |"
        )


def protections(table: str) -> Mapping[str, Sequence[float]]:
    """Return the protections of a table, each with its epsilons."""
    return ORGANISATIONS if table == "organisations" else PEOPLE


class Study:
    """Computes the points of a table. Every run's last record is saved in a file."""

    def __init__(self, table: str, folder: Path, rounds: int) -> None:
        self._table, self._file = table, folder / f"{table}-{rounds}.json"
        self._protections = protections(table)
        self._saved: dict[str, Any] = json.loads(
            self._file.read_text() if self._file.exists() else "{}"
        )
        changes = [f"data.name=private_tables:{table}", f"rounds={rounds}",
                   f"evaluation.every={rounds}", f"checkpoint.every={rounds}"]  # fmt: skip
        self._job = Job.load(None, [*JOB, *changes, *self._sizes(held_out=False)])

    def _sizes(self, held_out: bool) -> list[str]:
        """Return the settings that depend on the number of people. Gradients are clipped to 1."""
        os.environ[CHOOSING] = "1" if held_out else ""
        people = len(globals()[self._table]()[1])
        sites = self._table == "organisations"
        each, rate = (people // SITES, ", sampling_rate: 1.0") if sites else (1, "")
        return [
            f"clients.number={SITES if sites else people}",
            f"privacy.unit={'example' if sites else 'client'}",
            f"training={{epochs: 1, batch_size: {each}, lr: 1.0{rate}}}",
            *(f"protection.{name}={1 / each}" for name in
              ("distributed_dp.clip", "central_gaussian.clip", "dp_encrypt.dp_norm_clip")),
        ]  # fmt: skip

    def points(self, wanted: AbstractSet[str], seeds: int) -> list[Point]:
        """Print and return the points of the protections `wanted`."""
        found, rates = list[Point](), dict[tuple[str, float], float]()
        needed = wanted | {LIKE[name] for name in wanted & LIKE.keys()}
        for name, epsilons in self._protections.items():
            if name not in needed:
                continue
            begin = LARGEST[self._table]
            for epsilon in reversed(epsilons or (math.inf,)):
                cell = self._cell(name, epsilon)
                if cell.job is None:
                    print(f"| {name} at {epsilon:g} | {cell.reason} |", flush=True)
                    continue
                like = rates.get((LIKE.get(name, ""), epsilon))
                begin = rates[name, epsilon] = like or self._chosen(cell, begin)
                if name in wanted:
                    runs = [self._run(cell, begin, seed) for seed in range(seeds)]
                    found.append(Point(name, begin, [one["accuracy"] for one in runs], runs[0]))
                    print(found[-1], flush=True)
        return found

    def _cell(self, name: str, epsilon: float) -> Cell:
        """Return the job under a protection, with settings that reach `epsilon`."""
        asked = Asked(protections=[name], epsilons=[epsilon] if math.isfinite(epsilon) else [])
        solved = self._saved.setdefault("settings", {})
        cell = next(iter(Comparison(self._job, asked, solved).cells()))
        self._save()
        return cell

    def _chosen(self, cell: Cell, begin: float) -> float:
        """Return the rate with the best accuracy on held-out training people, from `begin` down."""
        best, most = begin, -1.0
        for rate in RATES[RATES.index(begin) :]:
            found = self._run(cell, rate, 0, held_out=True)["accuracy"]
            if found >= most:
                best, most = rate, found
            if rate < best / 4:
                break
        return best

    def _run(self, cell: Cell, rate: float, seed: int, held_out: bool = False) -> dict[str, Any]:
        """Return the last record of a run. It is saved, so that no run is repeated."""
        name = f"{cell.setting.name},rate={rate:g},seed={seed}{',held out' * held_out}"
        if name not in self._saved:
            assert cell.job is not None
            changes = [f"server.lr={rate}", f"seed={seed}", *self._sizes(held_out)]
            job = Job.read(cell.job.model_dump(), changes)
            with tempfile.TemporaryDirectory() as folder:
                self._saved[name] = dict(fedveil.simulate(job, Path(folder) / "run").metrics[-1])
            self._save()
        known: dict[str, Any] = self._saved[name]
        return known

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._saved, indent=1))


def drawn(table: str, points: Sequence[Point]) -> bytes:
    """Draw the mean accuracy by epsilon, with the range over the seeds."""
    curves = []
    finite = [point for point in points if math.isfinite(point.epsilon)]
    for name in dict.fromkeys(point.protection for point in finite):
        mine = sorted((p for p in finite if p.protection == name), key=lambda p: p.epsilon)
        columns = zip(*((statistics.mean(p.accuracies), min(p.accuracies), max(p.accuracies))
                        for p in mine), strict=True)  # fmt: skip
        curves.append(Curve(name, [p.epsilon for p in mine], *columns, marks=True, protection=name))
    epsilon = Axis("epsilon of the whole run, for one person", log=True)
    accuracy = Axis("test accuracy", zero=True, unit="percent")
    return svg(Plot(table, f"{TITLES[table]}: accuracy by epsilon", epsilon, accuracy, curves))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", choices=TITLES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="only protections whose name starts with this")
    parser.add_argument("--folder", type=Path, default="tables", help="of the saved results")
    parser.add_argument("--plot", type=Path, help="the file of the curve, an SVG")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    wanted = set(chosen(parser, protections(asked.table), asked.only))
    print("| protection | epsilon | rate | accuracy, mean | each seed | bytes per report |")
    print("|---|---|---|---|---|---|", flush=True)
    points = Study(asked.table, asked.folder, asked.rounds).points(wanted, asked.seeds)
    if asked.plot is not None:
        asked.plot.write_bytes(drawn(asked.table, points))


if __name__ == "__main__":
    main()
