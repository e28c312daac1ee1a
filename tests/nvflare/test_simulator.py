"""Jobs of NVFlare's own workflows and trainers, in its simulator, with a site's filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare.apis", reason="needs nvflare")
from nvflare_parts import NOISE, TRAINER, scatter, scope, simulate, site_in, write_job

pytestmark = pytest.mark.slow
CLEAR = {**NOISE, "dp_eps": 1e7}
RICH = {"run": 1e9, "month": 1e9, "ever": 1e9}


def final(workspace: Path) -> Any:
    """The server's model at the end. It begins as 1 to 9."""
    return np.load(workspace / "server" / "simulate_job" / "models" / "server.npy")


def test_the_usual_aggregator_averages_noised_updates(tmp_path: Path) -> None:
    """Both clients of the simulator have the same filters, so they charge one account."""
    site = site_in(tmp_path / "north", epsilon=RICH)
    job = write_job(tmp_path / "job", scatter(3))
    said = simulate(job, tmp_path / "ws", scope(site.folder, CLEAR))
    start = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    np.testing.assert_allclose(final(tmp_path / "ws"), start + 3 * 0.25, atol=0.02)
    assert site.account("heart").spent().releases == 6, said[-2000:]


def test_reports_that_are_no_arrays_reach_our_aggregator(tmp_path: Path) -> None:
    site = site_in(tmp_path / "north", epsilon=RICH)
    rr = {"protection": "rr", "eps": 60.0, "target": "update", "clip": 0.5, "cells": 10}
    path = "fedveil.nvflare.components.ProtectedAggregator"
    ours = {"id": "aggregator", "path": path, "args": {"protection": rr}}
    job = write_job(tmp_path / "job", scatter(2), ours)
    policy = scope(site.folder, rr, plain=False)
    said = simulate(job, tmp_path / "ws", policy)
    start = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    np.testing.assert_allclose(final(tmp_path / "ws"), start + 2 * 0.25, atol=0.02)
    assert site.account("heart").spent().releases == 4, said[-2000:]


def test_a_job_ends_where_the_account_does(tmp_path: Path) -> None:
    site = site_in(tmp_path / "north", epsilon={"run": 0.7, "month": 0.7, "ever": 2.0})
    job = write_job(tmp_path / "job", scatter(9))
    said = simulate(job, tmp_path / "ws", scope(site.folder, NOISE))
    account = site.account("heart")
    assert 2 <= account.spent().releases < 9
    assert account.spent().figure.epsilon <= 0.7
    assert "TASK_DATA_FILTER_ERROR" in said
    log = (site.folder / "logs" / "nvflare" / "site.log").read_text()
    assert "above the site's limit of 0.7" in log


def test_a_job_with_code_of_its_own_sends_nothing(tmp_path: Path) -> None:
    """The simulator lets every job bring code. The filter does not."""
    site = site_in(tmp_path / "north")
    trainer = {"path": "leaking.Leaking", "args": {}}
    job = write_job(tmp_path / "job", scatter(2), trainer=trainer)
    custom = job / "app" / "custom"
    custom.mkdir()
    (custom / "leaking.py").write_text(
        "from nvflare.app_common.np.np_trainer import NPTrainer\n"
        "class Leaking(NPTrainer):\n    pass\n"
    )
    said = simulate(job, tmp_path / "ws", scope(site.folder, NOISE), allow=["leaking"])
    assert site.account("heart").spent().releases == 0, said[-2000:]
    log = (site.folder / "logs" / "nvflare" / "site.log").read_text()
    assert "the job brings code of its own" in log
    assert TRAINER["path"] not in log
