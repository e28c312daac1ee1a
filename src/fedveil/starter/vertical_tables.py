"""Writes two tables of the same patients, for two organisations."""

import csv
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer


def write(name: str, columns: list[str], rows: list[list[object]]) -> None:
    """Write a CSV file in this folder."""
    with Path(name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def main() -> None:
    """Write clinic.csv and laboratory.csv, two tables of mostly the same patients.

    Their rows are in different orders, and only the clinic's table has the diagnosis.
    """
    bunch = load_breast_cancer()
    names = [name.replace(" ", "_") for name in bunch.feature_names]
    mean, worst = np.round(bunch.data[:, :10], 4), np.round(bunch.data[:, 20:], 4)
    said = bunch.target_names[bunch.target]
    clinic = [[f"P-{i}", said[i], *row] for i, row in enumerate(mean)]
    laboratory = [[f"P-{i}", *row] for i, row in enumerate(worst)]
    write("clinic.csv", ["patient", "diagnosis", *names[:10]], clinic[20:])
    write("laboratory.csv", ["subject", *names[20:]], laboratory[::-1][20:])


if __name__ == "__main__":
    main()
