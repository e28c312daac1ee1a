"""Two tables of the same patients, from scikit-learn's breast cancer data: `python make_tables.py`.

clinic.csv has the diagnosis and what was measured on average; laboratory.csv has the worst cells,
in another order, under another name for the patient, with a word for their size and some cells
that nobody filled in. Each lacks a few of the other's patients.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedveil.entropy import Seeded

HERE = Path(__file__).parent
LACKING, UNFILLED = 20, 25


def main() -> None:
    """Write both tables beside this script."""
    bunch = load_breast_cancer()
    names = [name.replace(" ", "_") for name in bunch.feature_names]
    patients = [f"P-{number:04d}" for number in Seeded(1).permutation(9000)[: len(bunch.data)]]
    clinic = {
        "patient": patients,
        "diagnosis": [bunch.target_names[label] for label in bunch.target],
        **{name: [f"{x:g}" for x in bunch.data[:, i]] for i, name in enumerate(names[:10])},
    }
    sizes = np.digitize(bunch.data[:, names.index("worst_area")], (500, 700, 1000))
    laboratory = {
        "subject": patients,
        "size": [("small", "medium", "large", "giant")[size] for size in sizes],
        **{name: [f"{x:g}" for x in bunch.data[:, i]] for i, name in enumerate(names) if i >= 20},
    }
    for row in Seeded(2).permutation(len(patients))[:UNFILLED]:
        laboratory["worst_symmetry"][row] = ""
    write(HERE / "clinic.csv", clinic, Seeded(3).permutation(len(patients))[LACKING:])
    write(HERE / "laboratory.csv", laboratory, Seeded(4).permutation(len(patients))[LACKING:])


def write(path: Path, columns: dict[str, list[str]], rows: Sequence[int]) -> None:
    """The columns' `rows`, in that order."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(columns)
        lines.writerows([column[row] for column in columns.values()] for row in rows)
    print(f"wrote {path}: {len(rows)} rows, {len(columns)} columns")


if __name__ == "__main__":
    main()
