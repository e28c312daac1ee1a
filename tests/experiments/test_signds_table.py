"""The worked example of SignDS, exactly."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from experiments import signds_table
from experiments.signds_table import SignDSTable, aggregate, likelihoods
from fedveil.mechanisms.signds.dimension_selection import SignDS


def test_the_printed_reports_give_the_printed_aggregate() -> None:
    """The three selections of the source, summed by hand."""
    by_hand = np.zeros(8)
    for dimensions, sign in ({1, 5, 8}, 1), ({2, 3, 4}, -1), ({3, 6, 7}, 1):
        for dimension in dimensions:
            by_hand[dimension - 1] += sign / 3
    np.testing.assert_allclose(aggregate(), by_hand, atol=1e-15)
    np.testing.assert_allclose(aggregate(), np.array([1, -1, 0, -1, 1, 1, 1, 1]) / 3, atol=1e-15)


def test_how_likely_the_printed_reports_are() -> None:
    """There are C(8, 3) = 56 sets. The 6 with both top dimensions are e^100 times more likely."""
    total = 50 + 6 * math.exp(100)
    expected = [math.log(0.5 * math.exp(100 * inside) / total) for inside in (1, 0, 0)]
    mechanism = SignDS(0.25, 100, dim_out=3)
    assert likelihoods(mechanism) == pytest.approx(expected)


def test_the_verdicts_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged() -> list[bool]:
        return [verdict.agrees for verdict in signds_table._verdicts(SignDS(0.25, eps, dim_out=3))]

    eps = 100.0
    assert judged() == [True, True, True, False]
    eps = 1.0  # under which every set is likely
    assert judged() == [True, True, True, True]
    monkeypatch.setattr(signds_table, "MEAN", (0.4, 0.14, -0.1, 0.3, 0.33, 0.2, -0.1, -0.13))
    monkeypatch.setattr(signds_table, "RESULT", (0.0,) * 8)
    assert judged() == [False, True, False, True]


def test_the_mean_of_many_rounds_is_the_mechanisms_own() -> None:
    """E[sign of d | update] by the law: 2 of the top two always, 1 of the other six uniformly."""
    expected = np.zeros(8)
    for update in signds_table.UPDATES:
        for sign in (1, -1):
            top = np.argsort(-sign * update, kind="stable")[:2]
            share = np.full(8, 1 / 6)
            share[top] = 1.0
            expected += 0.5 * sign * share / 3
    rounds = 2000
    drawn = signds_table._drawn(SignDS(0.25, 100, dim_out=3), rounds)
    # Each is the mean of 3 * 2,000 signs: six deviations at most.
    np.testing.assert_allclose(drawn, expected, atol=6 / math.sqrt(3 * rounds))


def test_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = signds_table._drawn
    monkeypatch.setattr(signds_table, "_drawn", lambda mechanism, rounds: drawn(mechanism, 20))
    outcome = SignDSTable().run(tmp_path, "small", lambda text: None)
    assert [len(plot.curves) for plot in outcome.plots] == [3]
    sent = outcome.tables[0].rows
    assert [row[3] for row in sent] == ["1, 5 (largest)", "7, 8 (smallest)", "1, 4 (largest)"]
    assert [row[4] for row in sent] == ["2", "0", "0"]
