"""Jobs of NVFlare's own workflows and trainers, in its simulator, with a site's filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare.apis", reason="needs nvflare")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedveil.flower.job.signing_key_file import read_identity
from nvflare_parts import (
    NOISE,
    TRAINER,
    scatter,
    scope,
    simulate,
    simulate_each,
    site_in,
    write_job,
)

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
    assert "the job brings its own code" in log
    assert TRAINER["path"] not in log


SITES = ("site-1", "site-2", "site-3")


def public_key(identity: Path) -> str:
    private = Ed25519PrivateKey.from_private_bytes(read_identity(identity).reveal())
    return private.public_key().public_bytes_raw().hex()


def controller(protection: dict[str, Any], **more: Any) -> dict[str, Any]:
    path = "fedveil.nvflare.controller.ProtectedController"
    arguments = {"protection": protection, "rounds": 2, "timeout_s": 60, **more}
    return {"id": "workflow", "path": path, "args": arguments}


@pytest.mark.parametrize("name", ["pw_encrypt", "distributed_dp"])
def test_sites_send_a_sum_that_no_single_report_shows(tmp_path: Path, name: str) -> None:
    """The default policy's protections, with signed keys, on NVFlare's own tasks."""
    noise = {"noise_multiplier": 5.0, "clip": 0.01} if name == "distributed_dp" else {}
    summed = {"protection": name, "clients": 3, "active_security": True, **noise}
    sites, keys = {}, []
    for number, of in enumerate(SITES):
        server = {"client": number, "roster": "roster.yaml"}
        sites[of] = site_in(
            tmp_path / of, protections=[name], counter=None, strength={"survivors": 2},
            servers={"study": server}, epsilon={},
        )  # fmt: skip
        keys.append(public_key(sites[of].folder / "identity.pem"))
    roster = "".join(f'client-{n}: "{key}"\n' for n, key in enumerate(keys))
    for site in sites.values():
        (site.folder / "roster.yaml").write_text(roster)
    job = write_job(tmp_path / "job", controller(summed, sites=list(SITES), keys=keys))
    scopes = {of: scope(site.folder, summed, server="study") for of, site in sites.items()}
    said = simulate_each(job, tmp_path / "ws", scopes)
    start = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    expected = start + 2 * 0.25 if name == "pw_encrypt" else start
    np.testing.assert_allclose(final(tmp_path / "ws"), expected, atol=1e-3 if not noise else 0.5)
    for site in sites.values():
        charges = site.account("heart").charges
        assert [one.mechanism for one in charges] == [name] * 2, said[-3000:]
        assert not (site.folder / "logs" / "nvflare" / "site.log").exists(), "nothing was refused"


def test_signds_adapts_its_step_by_our_workflow(tmp_path: Path) -> None:
    signds = {"protection": "signds", "sign_k": 0.25, "sign_eps": 9.0, "sign_dim_out": 2}
    site = site_in(tmp_path / "north", protections=["signds"], epsilon=RICH)
    job = write_job(tmp_path / "job", controller(signds))
    said = simulate(job, tmp_path / "ws", scope(site.folder, signds), ["fedveil.nvflare"])
    start = np.arange(1, 10, dtype=np.float32).reshape(3, 3)
    assert 0 < np.count_nonzero(final(tmp_path / "ws") - start) <= 8, said[-3000:]
    assert site.account("heart").spent().releases == 4
