"""A round's record is of that round: its clip, its figures, what went down, and what it cost."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.base.message import encode
from fedveil.engine.job_protection import report_entropy
from fedveil.engine.run_records import figures_of, is_free
from fedveil.errors import RunStopped
from fedveil.federated.job import Job
from fedveil.privacy import Gaussian, PrivacyLoss, compose
from fedveil.record.metric_names import LOSS
from parts import TwoPhases

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


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("accuracy", 0.5, "shown() returns 'accuracy', which cannot be a record's key"),
        ("loss", 0.5, "shown() returns 'loss', which cannot"),
        ("clients", 3, "shown() returns 'clients', which cannot"),
        ("epsilon_per_round", 0.1, "shown() returns 'epsilon_per_round', which cannot"),
        ("seconds_round", 0.5, "shown() returns 'seconds_round', which cannot"),
        ("Told!", 0.5, "shown() returns 'Told!', which cannot"),
        (3, 0.5, "shown() returns 3, which cannot"),
        ("told", "0.5", "shown() returns 'told' as a str, not a number"),
        ("told", True, "shown() returns 'told' as a bool, not a number"),
    ],
)
def test_no_figure_of_a_protection_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, value: Any, said: str
) -> None:
    monkeypatch.setattr(TwoPhases, "shown", lambda self, state: {name: value})
    settings = {**SETTINGS, "protection": {"name": "parts:TwoPhases"}}
    with pytest.raises(RunStopped) as caught:
        fedveil.simulate(Job(**settings), tmp_path / "run")
    assert str(caught.value).startswith(f"protection.name = parts:TwoPhases: {said}")
    assert not (tmp_path / "run").exists()


def test_a_figure_of_a_protection_is_in_the_record_of_its_round() -> None:
    protection: Any = SimpleNamespace(shown=lambda state: state)
    assert figures_of(protection, {"clip": np.float32(0.5), "steps": 3}, ["accuracy"]) == {
        "clip": 0.5, "steps": 3.0,
    }  # fmt: skip
    with pytest.raises(RunStopped, match="returns 'clip', which cannot"):
        figures_of(protection, {"clip": 0.5}, ["clip"])
    assert is_free("clip")
