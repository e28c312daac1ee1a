"""Drift of new rows: the figures against their definitions, and what is said of each column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp

from fedveil.errors import DataInvalid
from fedveil.tasks.tables import drift as module
from fedveil.tasks.tables.drift import Summary, drift
from fedveil.tasks.tables.table_file import Table, Wanted, read
from scoring_parts import write_table


def table(path: Path, **columns: Any) -> Table:
    count = len(next(iter(columns.values())))
    write_table(path, {"id": range(count), **columns})
    words = tuple(name for name in columns if name.startswith("w"))
    numbers = tuple(name for name in columns if name not in words)
    return read(str(path), Wanted("id", numbers, words, columns))


def compared(tmp_path: Path, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    old = table(tmp_path / "old.csv", **before)
    summary = Summary.of(old, list(before), [name for name in before if name.startswith("w")])
    assert Summary.read(summary.written(), "file") == summary
    return {one.column: one for one in drift(summary, table(tmp_path / "new.csv", **now))}


def test_numbers_are_compared_as_scipy_does(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    before = {"a": draw.normal(size=901).round(3), "b": draw.integers(0, 4, 901)}
    now = {"a": draw.normal(0.4, 1.3, size=207).round(3), "b": draw.integers(1, 5, 207)}
    found = compared(tmp_path, before, now)
    for name in before:
        exact = ks_2samp(before[name], now[name])
        assert exact.statistic - 1 / 128 <= found[name].ks <= exact.statistic + 1e-12
        assert found[name].has_shifted == (exact.pvalue < 0.001)
    assert found["b"].ks == pytest.approx(ks_2samp(before["b"], now["b"]).statistic, abs=1e-12)


def test_the_index_is_that_of_its_definition(tmp_path: Path) -> None:
    before = {"n": np.repeat([1.0, 2.0], [60, 140]), "w": np.repeat(["x", "y"], [150, 50])}
    now = {"n": np.repeat([1.0, 2.0], [90, 30]), "w": np.repeat(["x", "y", "z"], [30, 60, 30])}
    found = compared(tmp_path, before, now)

    def index(p: list[float], q: list[float]) -> float:
        p, q = (np.array(c) + 0.5 for c in (p, q))  # type: ignore[assignment]
        p, q = p / sum(p), q / sum(q)  # type: ignore[operator]
        return float(((q - p) * np.log(q / p)).sum())  # type: ignore[operator]

    assert found["n"].psi == pytest.approx(index([60, 140, 0, 0], [90, 30, 0, 0]))
    assert found["w"].psi == pytest.approx(index([150, 50, 0, 0], [30, 60, 30, 0]))
    assert found["w"].unseen == {"z": 30}
    assert found["w"].has_shifted


def test_like_rows_do_not_drift_and_few_rows_say_nothing(tmp_path: Path) -> None:
    draw = np.random.default_rng(7)
    before = {"n": draw.normal(size=1500), "w": draw.choice(["x", "y"], 1500)}
    now = {"n": draw.normal(size=400), "w": draw.choice(["x", "y"], 400)}
    found = compared(tmp_path, before, now)
    assert not any(one.has_shifted for one in found.values())
    few = compared(tmp_path, before, {"n": ["", "9"], "w": ["x", "q"]})
    assert str(few["n"]) == "n: 1 of 2 cells are missing"
    assert str(few["w"]) == "w: 1 rows have words that no training row has: 'q'"


def test_a_word_beyond_the_summary_is_not_called_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WORDS", 2)
    found = compared(tmp_path, {"w": ["a", "a", "b", "b", "c"]}, {"w": ["c", "d"]})
    assert found["w"].unseen == {}


def test_a_damaged_summary_is_refused() -> None:
    with pytest.raises(DataInvalid, match="not a summary"):
        Summary.read(b'{"rows": 0, "columns": {}}', "file")
