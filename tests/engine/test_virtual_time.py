"""Clients that would answer too late have dropped out; nothing waits for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import fedveil
from fedveil.engine.round_loop import PHASES
from fedveil.engine.virtual_time import late_clients, silent_in
from fedveil.entropy import Seeded
from fedveil.federated.job import Job

COHORT = range(20_000)
PARAMETERS = "{reconstruct_secrets_threshold: 6, cipher_time_window: 1000}"
PW = f"protection={{name: pw_encrypt, pw_encrypt: {PARAMETERS}}}"


def test_the_share_that_is_late_is_the_tail_of_the_law() -> None:
    late = late_clients(COHORT, PHASES[:3], 1000, 250, 0.8, Seeded(1))
    tail = norm.sf(np.log(4) / 0.8)
    expected = tail
    for phase in PHASES[:3]:
        share = sum(missed == phase for missed in late.values()) / len(COHORT)
        assert abs(share - expected) < 5 * np.sqrt(expected / len(COHORT))
        expected *= 1 - tail  # of those that were in time before


def test_without_spread_all_are_in_time_or_none() -> None:
    assert late_clients(COHORT, PHASES, 1000, 1000, 0, Seeded(1)) == {}
    assert set(late_clients(COHORT, PHASES, 1000, 1001, 0, Seeded(1)).values()) == {"advertise"}
    assert late_clients(COHORT, PHASES, 1000, 0, 5, Seeded(1)) == {}
    assert len(late_clients(range(50), PHASES, 1000, 1e300, 1e300, Seeded(1))) > 40


def plan(*overrides: str) -> dict[int, str]:
    job = Job.load(None, ["clients={number: 20, fraction: 1.0}", *overrides])
    return silent_in(job, range(20), Seeded(0, "faults"), Seeded(0, "times"))


def test_the_fault_plan_and_lateness_add_up() -> None:
    faults, slow = "simulation.dropouts={share: 0.2}", "simulation.answer_ms=500"
    early, late, both = plan(PW, faults), plan(PW, slow), plan(PW, faults, slow)
    assert early
    assert late
    assert both.keys() == early.keys() | late.keys()
    for client, phase in both.items():
        found = [plan[client] for plan in (early, late) if client in plan]
        assert phase == min(found, key=PHASES.index)
    assert "consistency" not in late.values()


def test_only_secure_aggregation_has_deadlines() -> None:
    assert plan("protection=signds", "simulation.answer_ms=1e9") == {}


@pytest.mark.parametrize(("answer_ms", "void"), [(300, False), (900, True)])
def test_a_run_goes_on_without_those_who_are_late(
    tmp_path: Path, answer_ms: int, void: bool
) -> None:
    job = Job.load(
        None,
        [
            PW,
            "model=logistic",
            "rounds=2",
            "training.epochs=1",
            "clients={number: 12, fraction: 1.0}",
            "simulation.workers=0",
            f"simulation.answer_ms={answer_ms}",
        ],
    )
    runs = [fedveil.simulate(job, tmp_path / name) for name in ("one", "two")]
    for record in runs[0].metrics:
        assert record["dropped"] > 0
        assert (record["void"] is not None) == void
        assert record["reports"] == 0 if void else 6 <= record["reports"] < 12
    models = [(run.folder / "model.safetensors").read_bytes() for run in runs]
    assert models[0] == models[1]
