"""A job in NVFlare's POC mode: a server and two sites, each a process of its own, with TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare.apis", reason="needs nvflare")
from nvflare_parts import NOISE, permit, resources, scatter, scope, site_in, write_job

pytestmark = pytest.mark.slow
SITES = ("site-1", "site-2")
ADMIN = "admin@nvidia.com"


def environment(folder: Path) -> dict[str, str]:
    paths = {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "NVFLARE_POC_WORKSPACE": str(folder / "poc"),
        "HOME": str(folder),
    }
    return {**os.environ, **paths}


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """The startup kits of a server, two sites and an administrator."""
    command = [sys.executable, "-m", "nvflare.cli", "poc", "prepare", "-n", str(len(SITES))]
    subprocess.run(command, env=environment(tmp_path), check=True, cwd=tmp_path, timeout=100)
    return tmp_path / "poc" / "example_project" / "prod_00"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start(kit: Path, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{kit.name}.txt").open("wb") as out:
        return subprocess.Popen(
            ["bash", str(kit / "startup" / "sub_start.sh"), "--once"],
            env=environment(folder), cwd=folder, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip


def logged_in(kit: Path) -> Any:
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    for _ in range(20):
        try:
            session = new_secure_session(ADMIN, str(kit), timeout=5.0)
        except Exception:  # the server is not ready
            time.sleep(2.0)
            continue
        if len(session.get_system_info().client_info) == len(SITES):
            return session
        session.close()
        time.sleep(2.0)
    raise AssertionError("the sites did not join")


def test_two_sites_charge_their_own_accounts_until_one_is_spent(
    kits: Path, processes: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    limits = dict(zip(SITES, (5.0, 0.5), strict=True))
    owners = {}
    for name, most in limits.items():
        epsilon = {"run": most, "month": most, "ever": 9.0}
        owners[name] = site_in(tmp_path / f"owner-{name}", epsilon=epsilon)
        local = kits / name / "local"
        policy = scope(owners[name].folder, NOISE)
        (local / "privacy.json").write_text(json.dumps(policy))
        kept = json.loads((local / "resources.json.default").read_text())
        kept |= {k: v for k, v in resources().items() if k != "format_version"}
        kept["components"] = [c for c in kept["components"] if c["id"] != "site_log_streamer"]
        (local / "resources.json").write_text(json.dumps(kept))
    processes.append(start(kits / "server", tmp_path))
    time.sleep(5.0)
    processes += [start(kits / name, tmp_path) for name in SITES]
    written = write_job(tmp_path / "job", scatter(9))
    for owner in owners.values():
        permit(owner.folder, written / "app")
    session = logged_in(kits / ADMIN)
    job = session.submit_job(str(written))
    session.monitor_job(job, timeout=150.0)
    session.close()
    spent = {name: owner.account("heart").spent() for name, owner in owners.items()}
    assert 1 <= spent["site-2"].releases < 9
    assert spent["site-2"].figure.epsilon <= 0.5
    assert 1 <= spent["site-1"].releases <= spent["site-2"].releases + 1
    log = (owners["site-2"].folder / "logs" / "nvflare" / "site.log").read_text()
    assert "above the site's limit of 0.5" in log
    assert {c.through for c in owners["site-1"].account("heart").charges} == {"NVFlare"}
