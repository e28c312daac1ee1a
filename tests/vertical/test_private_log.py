"""A party has a log that others may be given, and a private file for all else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.pages.read_run import read_party, read_run
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.calibrator import CALIBRATOR, Calibrator
from fedveil.vertical.party_parts import Reports


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in which a lying leader has made the bank's part output NaN for some examples."""
    honest = Reports.__call__

    def attacked(self: Reports, crossing: Any, values: Any, occasion: Any) -> Any:
        values = np.array(values)
        if occasion.subset == "train":
            values[:2] = np.nan
        return honest(self, crossing, values, occasion)

    monkeypatch.setattr(Reports, "__call__", attacked)
    job = VerticalJob(
        task="vertical_parts:bottoms", epochs=2, batch_size=20, scoring={"calibration": 0.4},
        privacy={"embedding_dp": {"eps": 1.0}, "label_dp": {"eps": 2.0}},
    )  # fmt: skip
    return train(job, tmp_path / "run").folder


def test_no_value_from_private_data_is_in_a_log_that_others_may_be_given(run: Path) -> None:
    logs = {party: (run / party / "events.log").read_text() for party in ("lead", "bank", "shop")}
    private = {party: (run / party / "private.log").read_text() for party in ("lead", "bank")}
    kept = run / "lead" / CALIBRATOR
    factor = f"{Calibrator.read(kept.read_bytes(), str(kept)).factor:.4f}"
    assert f": factor {factor}" in private["lead"]
    assert "2 of 20 examples are reported as zeros: the output of left" in private["bank"]
    assert "labels: the gradients of left returned to bank " in private["lead"]
    for text in ("reported as zeros", "NaN", "calibrator", factor, "labels: the", "AUC"):
        assert not any(text in log for log in logs.values()), text


def test_the_page_reads_the_private_file_and_it_has_no_lines_without_a_time(run: Path) -> None:
    party = read_party(read_run(run), run / "bank")
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:]+ \d+ of \d+ examples", s) for s in party.private)
    assert party.said("2 of 20 examples are ").startswith("reported as zeros")
    assert party.all_said("2 of 20 examples ")
