"""A round's record is of that round: its clip, its figures, what went down, and what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedveil
from fedveil.base.message import encode
from fedveil.engine.job_protection import report_entropy
from fedveil.federated.job import Job
from fedveil.privacy import Gaussian, PrivacyLoss, compose
from fedveil.record.metric_names import LOSS

#: Cohorts of three of seven clients, two rounds without a test, and a clip that moves.
SETTINGS: dict[str, Any] = {
    "name": "unequal",
    "seed": 5,
    "rounds": 5,
    "clients": {"number": 7, "fraction": 0.4},
    "data": {"name": "parts:data", "alpha": 9.0},
    "model": "parts:linear",
    "training": {"epochs": 1, "batch_size": 9, "lr": 0.1},
    "evaluation": {"every": 2},
    "privacy": {"delta": 1e-4},
    "protection": {
        "name": "central_gaussian",
        "central_gaussian": {"clip": 0.7, "clip_quantile": 0.3, "noise_multiplier": 3.0},
    },
    "simulation": {"workers": 0},
}


def test_each_record_is_of_its_own_round(tmp_path: Path) -> None:
    run = fedveil.simulate(Job(**SETTINGS), tmp_path / "run")
    clips = [record["clip"] for record in run.metrics]
    assert clips[0] == 0.7
    assert len(set(clips)) == 5
    assert [LOSS in record for record in run.metrics] == [False, True, False, True, True]
    for number, record in enumerate(run.metrics, start=1):
        assert (record["round"], record["clients"], record["reports"]) == (number, 3, 3)
        opening = encode({"round": number, "clip": record["clip"]})
        assert record["bytes_down"] == 3 * (len(opening) + 4 * 21)
        rounds = [(PrivacyLoss.of_release(Gaussian(3.0)), number)]
        assert record["epsilon_run_every_round"] == pytest.approx(compose(rounds, 1e-4))
        assert record["delta_run_every_round"] == 1e-4
        assert record["epsilon_run_most_drawn"] <= record["epsilon_run_every_round"]
        assert record["rests_on_server"]
    assert run.metrics[-1]["epsilon_run_most_drawn"] < run.metrics[-1]["epsilon_run_every_round"]
    events = (run.folder / "events.log").read_text()
    assert "rounds: 5 in all" in events
    assert f"randomness of reports: {report_entropy(run.job).description}" in events
    assert "finished after round 5: the last" in events
    assert run.job.warnings[-1] == "data.alpha = 9.0 has no effect under data.split = iid"
    assert all(warning in events for warning in run.job.warnings)
