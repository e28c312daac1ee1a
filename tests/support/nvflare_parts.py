"""A job of NVFlare, a site's privacy scope, and the simulator in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedveil.site.code_folder import Module
from fedveil.site.one_report import config_digest
from fedveil.site.site_folder import POLICY, Site, create

#: A protection that a site's filter applies, with a cost of about 0.3 at delta 1e-5.
NOISE: dict[str, Any] = {
    "protection": "dp_encrypt", "dp_eps": 0.3, "dp_delta": 1e-5, "dp_norm_clip": 2.0,
}  # fmt: skip
STOCK = {
    "id": "aggregator",
    "path": "nvflare.app_common.aggregators.intime_accumulate_model_aggregator."
    "InTimeAccumulateWeightedAggregator",
    "args": {"expected_data_kind": "WEIGHT_DIFF"},
}
TRAINER = {"path": "nvflare.app_common.np.np_trainer.NPTrainer", "args": {"delta": 0.25}}


def site_in(folder: Path, **changes: Any) -> Site:
    """Make a site's folder with a policy that lets noised reports out when they are ready."""
    create(folder)
    keys: dict[str, Any] = {
        "name": "north", "protections": ["dp_encrypt", "rr", "oue"],
        "clear": {"answer_after_s": None}, "data": {"heart": {"named": "digits"}},
        "epsilon": {"run": 50.0, "month": 50.0, "ever": 90.0}, "counter": "../counter",
        "jobs": {"digests": [Module({}).digest]},  # of a job without files
    }  # fmt: skip
    (folder / POLICY).write_text(yaml.safe_dump({**keys, **changes}))
    return Site.open(folder)


def permit(folder: Path, app: Path) -> str:
    """Permit the configuration of a job's app in a site's policy. Returns its digest."""
    path = folder / POLICY
    keys = yaml.safe_load(path.read_text())
    digest = config_digest(app / "config")
    path.write_text(yaml.safe_dump({**keys, "jobs": {"digests": [digest]}}))
    return digest


def scope(
    site: Path, protection: dict[str, Any], plain: bool = True, **more: Any
) -> dict[str, Any]:
    """Return the content of `privacy.json`."""
    base = "fedveil.nvflare.components"
    arguments = {"site": str(site), "data": "heart", "protection": protection, "plain": plain}
    arguments |= more
    admits = {"path": f"{base}.SiteTaskFilter", "direction": "in", "args": arguments}
    lets_out = {"path": f"{base}.SiteResultFilter", "direction": "out", "args": {}}
    private = {
        "name": "private", "task_data_filters": [admits], "task_result_filters": [lets_out],
    }  # fmt: skip
    return {"scopes": [private], "default_scope": "private"}


def scatter(rounds: int) -> dict[str, Any]:
    """Return the workflow of a job."""
    return {
        "id": "workflow",
        "path": "nvflare.app_common.workflows.scatter_and_gather.ScatterAndGather",
        "args": {
            "min_clients": 2, "num_rounds": rounds, "start_round": 0,
            "wait_time_after_min_received": 0, "aggregator_id": "aggregator",
            "persistor_id": "persistor", "shareable_generator_id": "shareable_generator",
            "train_task_name": "train", "train_timeout": 0,
        },
    }  # fmt: skip


def write_job(
    folder: Path,
    workflow: dict[str, Any],
    aggregator: dict[str, Any] = STOCK,
    trainer: dict[str, Any] = TRAINER,
) -> Path:
    """Write a job with a trainer of NVFlare's own."""
    common = "nvflare.app_common"
    server = {
        "format_version": 2,
        "workflows": [workflow],
        "components": [
            {"id": "persistor", "path": f"{common}.np.np_model_persistor.NPModelPersistor"},
            {
                "id": "shareable_generator",
                "path": f"{common}.shareablegenerators.full_model_shareable_generator."
                "FullModelShareableGenerator",
            },
            aggregator,
        ],
    }
    phases = {"path": "fedveil.nvflare.phase_executor.PhaseExecutor", "args": {}}
    executors = [{"tasks": ["train", "validate", "submit_model"], "executor": trainer}]
    if "fedveil" in workflow["path"]:
        executors.append({"tasks": ["fedveil_phase"], "executor": phases})
    client = {"format_version": 2, "executors": executors, "components": []}
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    meta = {"name": "study", "resource_spec": {}, "min_clients": 2, "deploy_map": {"app": ["@ALL"]}}
    (folder / "meta.json").write_text(json.dumps(meta))
    (config / "config_fed_server.json").write_text(json.dumps(server))
    (config / "config_fed_client.json").write_text(json.dumps(client))
    return folder


def resources(*allow: str) -> dict[str, Any]:
    """Return a `resources.json` that closes all ways out but task results."""
    named = [
        "aggregators.intime_accumulate_model_aggregator", "np", "shareablegenerators", "workflows",
    ]  # fmt: skip
    listed = [f"nvflare.app_common.{name}" for name in named]
    return {
        "format_version": 2, "allow_log_streaming": False, "class_allow_list": [*allow, *listed],
    }  # fmt: skip


def simulate(job: Path, workspace: Path, policy: dict[str, Any], allow: Sequence[str] = ()) -> str:
    """Run a job with two clients in NVFlare's simulator. Returns its output.

    The simulator applies no privacy scope at its clients, so the scope's filters become the job's.
    `allow` are classes that a job may name, besides those of NVFlare.
    """
    put_filters(job / "app", policy)
    return run_simulator(job, workspace, 2, allow)


def simulate_each(job: Path, workspace: Path, policies: dict[str, dict[str, Any]]) -> str:
    """Run a job in which each client has the filters of a scope of its own."""
    for site, policy in policies.items():
        shutil.copytree(job / "app", job / f"app-{site}")
        put_filters(job / f"app-{site}", policy)
    meta = json.loads((job / "meta.json").read_text())
    meta["deploy_map"] = {"app": ["server"], **{f"app-{site}": [site] for site in policies}}
    (job / "meta.json").write_text(json.dumps(meta))
    return run_simulator(job, workspace, len(policies), ["fedveil.nvflare"])


def put_filters(app: Path, policy: dict[str, Any]) -> None:
    """Make a scope's filters those of a job's app, and permit the app at the scope's site."""
    file = app / "config" / "config_fed_client.json"
    client = json.loads(file.read_text())
    tasks = ["train", "validate", "submit_model", "fedveil_phase"]
    for name in ("task_data_filters", "task_result_filters"):
        filters = [{key: one[key] for key in ("path", "args")} for one in policy["scopes"][0][name]]
        client[name] = [{"tasks": tasks, "filters": filters}]
    file.write_text(json.dumps(client))
    permit(Path(policy["scopes"][0]["task_data_filters"][0]["args"]["site"]), app)


def run_simulator(job: Path, workspace: Path, clients: int, allow: Sequence[str]) -> str:
    """Run a job in the simulator, in a process of its own. Returns its output."""
    (workspace / "local").mkdir(parents=True)
    listed = resources("fedveil.nvflare.components", *allow)
    (workspace / "local" / "resources.json").write_text(json.dumps(listed))
    code = (
        "import sys; from nvflare.private.fed.app.simulator.simulator_runner import "
        "SimulatorRunner; sys.exit(SimulatorRunner(sys.argv[1], sys.argv[2], n_clients={n}, "
        "threads={n}).run())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code.replace("{n}", str(clients)), str(job), str(workspace)],
        capture_output=True, text=True, timeout=240, cwd=workspace.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    return run.stdout + run.stderr
