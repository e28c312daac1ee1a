"""Label protection: its effect on the attack, and its cost in accuracy.

    python benchmarks/label_protection.py                              the tables, 10 minutes
    python benchmarks/label_protection.py --choose                     on training data alone
    python benchmarks/label_protection.py --task halves [--data mnist]     10 minutes

`tables` is the breast cancer table of scikit-learn as two CSV files with half of the features each.
The attack (`fedveil attack labels`) gets the gradients of 60 steps, at default settings, before
anything is learnt. `sum` and `change` add up 300 steps, about twenty epochs of the tables. Quality
is that of runs of `--epochs` epochs: the mean and the spread over seeds. With `--choose` the
held-out part of the table is left out and a part of the rest is held out instead. Defaults are
chosen that way. One core.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch

from attack_labels import two_files
from fedveil.attacks.effort import Watch
from fedveil.attacks.split import split_target
from fedveil.attacks.split.labels import attack
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.base.array_types import Float64s
from fedveil.entropy import Secure
from fedveil.mechanisms.label_gradients import normal
from fedveil.tasks.tables.own_tables import held_out
from fedveil.vertical import VerticalJob, party_parts, train
from fedveil.vertical.returned_gradients import ReturnedGradients
from fedveil.vertical.split import Crossing

#: Settings of the job's privacy block and of its task.
Setting = tuple[Mapping[str, Any], Mapping[str, Any]]
MARVELL: dict[str, Setting] = {
    f"marvell, power {power:g}": ({"label_protection": {"name": "marvell", "power": power}}, {})
    for power in (1.0, 4.0, 16.0, 64.0)
}
MAX_NORM: dict[str, Setting] = {"max_norm": ({"label_protection": {"name": "max_norm"}}, {})}
TABLES: dict[str, Setting] = {
    "none, wide: linear": ({}, {"wide": "linear"}),
    "none, wide: hidden": ({}, {}),
    **MAX_NORM,
    **MARVELL,
    "label_dp, eps 1": ({"label_dp": {"eps": 1.0}}, {}),
}
HALVES: dict[str, Setting] = {"none": ({}, {}), **MAX_NORM}
SHARE = 0.2
#: Settings that are also measured with fresh noise in every step.
ANEW = {"max_norm", "marvell, power 16"}


def without_held_out(task: dict[str, Any]) -> dict[str, Any]:
    """Remove the held-out rows from the task's tables, and hold out a fifth of the other rows."""
    for table in task["tables"]["files"].values():
        path = Path(table["path"])
        with path.open() as file:
            rows = list(csv.reader(file))
        out = held_out(np.array([row[0] for row in rows[1:]]), SHARE)
        kept = [row for row, gone in zip(rows[1:], out, strict=True) if not gone]
        path.write_text("\n".join(map(",".join, [rows[0], *kept])) + "\n")
    task["tables"]["test_fraction"] = SHARE + SHARE * (1 - SHARE)  # relative to all digests
    return task


class DrawnAnew(ReturnedGradients):
    """Noise that is drawn anew in every step, as in the paper, for comparison."""

    def _own(self, crossing: Crossing, places: npt.NDArray[np.int64], values: int) -> Float64s:
        drawn = normal(len(places) * values, Secure())
        return drawn.reshape(len(places), values)


@contextmanager
def drawn_anew() -> Iterator[None]:
    """Make runs and attacks draw the noise anew in every step."""
    with (
        patch.object(party_parts, "ReturnedGradients", DrawnAnew),
        patch.object(split_target, "ReturnedGradients", DrawnAnew),
    ):
        yield


def measured(task: Mapping[str, Any], name: str, setting: Setting, epochs: int, seeds: int) -> str:
    """Attack the labels of `task`, and train it with several seeds. Returns a line of the table."""
    privacy, own = setting
    kind = task["name"]
    task = {**task, kind: {**task[kind], **own}}
    found = attack(SplitTarget.of(VerticalJob(task=task, privacy=privacy)), "quick", Watch())
    figures = {figure.name: figure.value for figure in found.figures}
    names = ("step 1", "10 labels known", "no label known", "direction AUC", "norm AUC")
    cells = [f"{figures[n]:.3f}" if n in figures else "" for n in names]
    longer = attack(SplitTarget.of(VerticalJob(task=task, privacy=privacy)), "standard", Watch())
    sums = {figure.name: figure.value for figure in longer.figures}
    cells += [f"{sums[n]:.3f}" if n in sums else "" for n in ("sum AUC", "change AUC")]
    reached: list[tuple[float, float]] = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            job = VerticalJob(task=task, privacy=privacy, seed=seed, epochs=epochs)
            last = train(job, Path(folder) / "run").metrics[-1]
        reached.append((last["test_accuracy"], last["test_loss"]))
    for values in zip(*reached, strict=True):
        cells.append(f"{np.mean(values):.3f} ± {np.std(values):.3f}")
    return f"| {name} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=("tables", "halves"), default="tables")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| protection | step 1 | 10 labels known | no label known | direction AUC | norm AUC "
          "| sum AUC | change AUC | accuracy | log loss |\n" + "|---" * 10 + "|",
          flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        if given.task == "tables":
            task, settings, epochs = two_files(Path(folder)), TABLES, given.epochs or 10
            task = without_held_out(task) if given.choose else task
        else:
            task = {"name": "mnist_halves", "mnist_halves": {"data": given.data}}
            settings, epochs = HALVES, given.epochs or (1 if given.data == "mnist" else 10)
        for name, setting in settings.items():
            print(measured(task, name, setting, epochs, given.seeds), flush=True)
        for name in sorted(ANEW & settings.keys()):
            with drawn_anew():
                line = measured(task, f"{name}, drawn anew", settings[name], epochs, given.seeds)
            print(line, flush=True)


if __name__ == "__main__":
    main()
