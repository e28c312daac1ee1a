"""Each key of a job, changed alone, changes something that can be observed.

A key that is read, checked and never handed on leaves every record and every byte as it was. The
base of each case is a job in which nothing is equal: a part of the clients in a round, sizes off
the batch, settings away from their defaults, an evaluation every second round.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.errors import FedveilError
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.record.run_folder import EVENTS
from fedveil.settings.allowed import dotted, keys
from folders import ROOT
from key_case import Case

BASE = {
    "name": "unequal",
    "seed": 3,
    "rounds": 3,
    "clients.number": 7,
    "clients.fraction": 0.6,
    "data.name": "parts:data",
    "data.split": "dirichlet",
    "data.alpha": 3.0,
    "model": "parts:plain",
    "training.epochs": 2,
    "training.batch_size": 9,
    "training.lr": 0.15,
    "training.momentum": 0.3,
    "server.lr": 0.9,
    "evaluation.every": 2,
    "privacy.delta": 3e-4,
    "simulation.workers": 0,
    "record.page": False,
}
DP = {"protection.name": "dp_encrypt", "protection.dp_encrypt.dp_norm_clip": 0.3}
SIGNDS = {"protection.name": "signds", "protection.signds.sign_k": 0.2,
          "protection.signds.sign_eps": 9.0}  # fmt: skip
UNARY = {"protection.name": "rr", "protection.unary.eps": 3.0, "protection.unary.cells": 7}
PW = {"protection.name": "pw_encrypt", "protection.pw_encrypt.reconstruct_secrets_threshold": 3,
      "clients.number": 10}  # fmt: skip
SLOW = {"simulation.answer_ms": 60.0, "simulation.answer_spread": 0.5}
STEP_EACH = {"training.momentum": 0.0, "training.epochs": 1, "training.sampling_rate": 0.4}
EXAMPLE = DP | STEP_EACH | {"privacy.unit": "example"}
CENTRAL_PW = PW | {"protection.pw_encrypt.central_eps": 5.0}
CENTRAL = {"protection.name": "central_gaussian",
           "protection.central_gaussian.noise_multiplier": 0.7}  # fmt: skip
DISTRIBUTED = {
    "protection.name": "distributed_dp",
    "protection.distributed_dp.noise_multiplier": 0.7,
    "protection.distributed_dp.reconstruct_secrets_threshold": 3,
    "protection.distributed_dp.dropout_tolerance": 0.25,
    "clients.number": 10,
}
QUANTILE = {
    "protection.distributed_dp.clip_quantile": 0.4,
    "protection.distributed_dp.clip_bit_noise": 1.5,
}
CENTRAL_QUANTILE = {
    "protection.central_gaussian.clip_quantile": 0.4,
    "protection.central_gaussian.clip_bit_noise": 1.5,
}
LEAVING = {"simulation.dropouts": {"unmask": 0.4}}  # 2 of a round's 6
SILENT = {"simulation.dropouts": {"share": 0.2}, "clients.number": 20}
SHARDS, STEP = {"data.split": "shards"}, {"training.lr_schedule": "step", "training.lr_rounds": 1}
ADAM, MOMENTUM = {"server.optimizer": "adam"}, {"server.optimizer": "momentum"}
STOPPING = {"stopping.metric": "accuracy", "rounds": 6, "evaluation.every": 1}


CASES: dict[str, Case] = {
    "name": Case("another"),
    "seed": Case(4),
    "rounds": Case(2),
    "clients.number": Case(6),
    "clients.fraction": Case(0.4),
    "clients.sampling": Case("poisson", {"evaluation.every": 1} | CENTRAL),
    "clients.own_layers": Case(["2.*"]),
    "data.name": Case("parts:other_data"),
    "data.split": Case("iid"),
    "data.shards_per_client": Case(3, SHARDS),
    "data.alpha": Case(1.0),
    "model": Case("parts:net"),
    "task": Case("multilabel", refused="y_train holds values other than 0 and 1"),
    "training.train": Case("head", {"model": "parts:backbone"}),
    "training.epochs": Case(3),
    "training.batch_size": Case(8),
    "training.sampling_rate": Case(0.3, EXAMPLE),
    "training.algorithm": Case("scaffold", {"training.momentum": 0.0}),
    "training.normal_steps": Case(
        2.5,
        {"training.algorithm": "fednova", "training.momentum": 0.0, "training.normal_steps": 6.0},
    ),
    "training.dynamic": Case(
        0.3, {"training.algorithm": "feddyn", "training.momentum": 0.0, "server.lr": 1.0}
    ),
    "training.own_direction": Case(0.3, {"training.algorithm": "fedcm", "training.momentum": 0.0}),
    "training.optimizer": Case("adam", {"training.momentum": 0.0}),
    "training.lr": Case(0.1),
    "training.lr_schedule": Case("cosine"),
    "training.lr_rounds": Case(2, STEP),
    "training.lr_factor": Case(0.3, STEP),
    "training.momentum": Case(0.5),
    "training.nesterov": Case(True),
    "training.weight_decay": Case(0.01),
    "training.gradient_norm": Case(0.2),
    "training.class_weights": Case([1.0, 2.0, 3.0]),
    "training.proximal": Case(0.4),
    "training.device": Case("cuda:7", refused="cuda:7 cannot be used here"),
    "training.precision": Case("bfloat16"),
    "training.engine": Case("loop"),
    "server.weighting": Case("equal"),
    "server.aggregation": Case("median"),
    "server.trim": Case(0.3, {"server.aggregation": "trimmed_mean", "clients.number": 8}),
    "server.norm_bound": Case(0.02, {"server.aggregation": "norm_bound"}),
    "server.optimizer": Case("adam"),
    "server.lr": Case(0.5),
    "server.momentum": Case(0.5, MOMENTUM),
    "server.beta1": Case(0.5, ADAM),
    "server.beta2": Case(0.5, ADAM),
    "server.tau": Case(0.1, ADAM),
    "evaluation.every": Case(1),
    "evaluation.clients": Case(0.2, {"evaluation.every": 1}),
    "evaluation.metrics": Case(["f1"]),
    "stopping.metric": Case("loss", {"stopping.patience": 1} | STOPPING),
    "stopping.target": Case(0.4, STOPPING),
    "stopping.patience": Case(1, STOPPING | {"training.lr": 2.0}),
    "stopping.keep": Case("best", STOPPING | {"training.lr": 2.0}),
    "protection.name": Case("dp_encrypt"),
    "protection.not_encrypt.max_examples": Case(34),  # of 34 and 35
    "protection.dp_encrypt.dp_eps": Case(20.0, DP),
    "protection.dp_encrypt.dp_delta": Case(0.001, DP),
    "protection.dp_encrypt.dp_norm_clip": Case(0.1, DP),
    "protection.dp_encrypt.noise": Case("continuous", DP),
    "protection.pw_encrypt.share_secrets_ratio": Case(
        1.0, PW | SILENT | {"protection.pw_encrypt.share_secrets_ratio": 0.5}
    ),
    "protection.pw_encrypt.reconstruct_secrets_threshold": Case(
        5, PW | LEAVING, refused="4 clients answered in phase unmask, but 5 are needed"
    ),
    "protection.pw_encrypt.cipher_time_window": Case(150, PW | SLOW),
    "protection.pw_encrypt.neighbours": Case(3, PW | {"clients.number": 12}),
    "protection.pw_encrypt.active_security": Case(
        True, PW | {"protection.pw_encrypt.reconstruct_secrets_threshold": 4}
    ),
    "protection.pw_encrypt.clip": Case(0.01, PW),
    "protection.pw_encrypt.entry_bits": Case(12, PW),
    "protection.pw_encrypt.max_examples": Case(26, PW),
    "protection.pw_encrypt.central_eps": Case(8.0, CENTRAL_PW),
    "protection.pw_encrypt.central_delta": Case(1e-3, CENTRAL_PW),
    "protection.pw_encrypt.central_norm_clip": Case(0.2, CENTRAL_PW),
    "protection.distributed_dp.clip_quantile": Case(0.6, DISTRIBUTED | QUANTILE),
    "protection.distributed_dp.clip_rate": Case(0.5, DISTRIBUTED | QUANTILE),
    "protection.distributed_dp.clip_bit_noise": Case(3.0, DISTRIBUTED | QUANTILE),
    "protection.distributed_dp.share_secrets_ratio": Case(
        1.0, DISTRIBUTED | SILENT | {"protection.distributed_dp.share_secrets_ratio": 0.5}
    ),
    "protection.distributed_dp.reconstruct_secrets_threshold": Case(
        5, DISTRIBUTED | LEAVING, refused="4 clients answered in phase unmask, but 5 are needed"
    ),
    "protection.distributed_dp.cipher_time_window": Case(150, DISTRIBUTED | SLOW),
    "protection.distributed_dp.neighbours": Case(3, DISTRIBUTED | {"clients.number": 12}),
    "protection.distributed_dp.active_security": Case(
        True, DISTRIBUTED | {"protection.distributed_dp.reconstruct_secrets_threshold": 4}
    ),
    "protection.distributed_dp.clip": Case(0.2, DISTRIBUTED),
    "protection.distributed_dp.noise_multiplier": Case(1.1, DISTRIBUTED),
    "protection.distributed_dp.target_epsilon": Case(
        9.0,
        DISTRIBUTED
        | {
            "protection.distributed_dp.noise_multiplier": None,
            "protection.distributed_dp.target_epsilon": 20.0,
        },
    ),
    "protection.distributed_dp.bits": Case(10, DISTRIBUTED),
    "protection.distributed_dp.rotation": Case(False, DISTRIBUTED),
    "protection.distributed_dp.dropout_tolerance": Case(0.0, DISTRIBUTED),
    "protection.distributed_dp.assume_honest": Case(0.6, DISTRIBUTED),
    "protection.central_gaussian.clip_quantile": Case(0.6, CENTRAL | CENTRAL_QUANTILE),
    "protection.central_gaussian.clip_rate": Case(0.5, CENTRAL | CENTRAL_QUANTILE),
    "protection.central_gaussian.clip_bit_noise": Case(3.0, CENTRAL | CENTRAL_QUANTILE),
    "protection.central_gaussian.clip": Case(0.2, CENTRAL),
    "protection.central_gaussian.noise_multiplier": Case(1.1, CENTRAL),
    "protection.central_gaussian.target_epsilon": Case(
        9.0,
        CENTRAL
        | {
            "protection.central_gaussian.noise_multiplier": None,
            "protection.central_gaussian.target_epsilon": 20.0,
        },
    ),
    "protection.signds.sign_k": Case(0.1, SIGNDS),
    "protection.signds.sign_eps": Case(4.0, SIGNDS),
    "protection.signds.sign_thr_ratio": Case(0.9, SIGNDS),
    "protection.signds.sign_global_lr": Case(
        2.0, SIGNDS | {"protection.signds.magnitude": "fixed"}
    ),
    "protection.signds.sign_dim_out": Case(3, SIGNDS),
    "protection.signds.sign_mag_eps": Case(0.5, SIGNDS),
    "protection.signds.magnitude": Case("fixed", SIGNDS),
    "protection.signds.regrow": Case(
        True, SIGNDS | {"rounds": 24, "evaluation.every": 24, "protection.signds.sign_mag_eps": 0.2}
    ),
    "protection.unary.eps": Case(2.0, UNARY),
    "protection.unary.cells": Case(12, UNARY),
    "protection.unary.rounding": Case("stochastic", UNARY),
    "protection.unary.report": Case("bits", UNARY),
    "protection.unary.target": Case("update", UNARY),
    "protection.unary.clip": Case(0.4, UNARY),
    "protection.unary.adaptive": Case(True, UNARY | {"protection.unary.total_eps": None}),
    "protection.unary.total_eps": Case(1200.0, UNARY | {"protection.unary.adaptive": True}),
    "protection.unary.fidelity": Case("aggregate", UNARY),
    "protection.own": Case({"factor": 2.0}, {"protection.name": "parts:TwoPhases"}),
    "privacy.randomness": Case("secure", DP),
    "privacy.max_epsilon": Case(30.0, DP | {"protection.dp_encrypt.dp_eps": 10.0, "rounds": 6}),
    "privacy.delta": Case(1e-6, DP),
    "privacy.unit": Case("client", EXAMPLE, refused="needs privacy.unit = example"),
    "audit.canaries": Case(2, DP),
    "audit.norm": Case(0.1, DP | {"audit.canaries": 2}),
    "simulation.dropouts": Case({"masked": 0.3}, PW),
    "simulation.masks": Case(False, PW),
    "simulation.answer_ms": Case(60.0, PW | {"protection.pw_encrypt.cipher_time_window": 150}),
    "simulation.answer_spread": Case(
        0.1, PW | SLOW | {"protection.pw_encrypt.cipher_time_window": 150}
    ),
    "record.tensorboard": Case(True),
    "record.callbacks": Case(["parts:Missing"], refused="the module parts has no Missing"),
    "record.page": Case(True),
}
#: What a simulation does not show, and the tests that do.
ELSEWHERE: dict[str, str] = {
    "data.folder": "tests/data/test_image_folder.py",
    "adapter.kind": "tests/pretrained/test_language_keys.py",
    "adapter.rank": "tests/pretrained/test_language_keys.py",
    "adapter.alpha": "tests/pretrained/test_language_keys.py",
    "adapter.targets": "tests/pretrained/test_language_keys.py",
    "language.length": "tests/pretrained/test_language_keys.py",
    "language.config": "tests/pretrained/test_language_keys.py",
    "language.recompute": "tests/pretrained/test_language_keys.py",
    "language.prompts": "tests/pretrained/test_language_keys.py",
    "language.new_tokens": "tests/pretrained/test_language_keys.py",
    "privacy.account": "tests/engine/test_shared_account.py",
    "simulation.on": "tests/engine/test_many_machines.py",  # the same bytes by definition
    "simulation.workers": "tests/engine/test_simulation.py",  # the same bytes by definition
    "checkpoint.every": "tests/engine/test_simulation.py",
    "deployment.reveal": "tests/flower/test_flower_engine.py",
    "deployment.repeats": "tests/flower/test_flower_client.py",
    "deployment.start_clients": "tests/flower/test_flower_engine.py",
    "deployment.clients_per_node": "tests/flower/test_shared_nodes.py",
    "deployment.answer_s": "tests/flower/test_late_replies.py",
    "deployment.answer_after_s": "tests/flower/test_fixed_time.py",
    "deployment.wait_s": "tests/flower/test_flower_engine.py",
}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for place, value in flat.items():
        *blocks, key = place.split(".")
        block = made
        for name in blocks:
            block = block.setdefault(name, {})
        block[key] = value
    return made


def observed(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a job and return all that it leaves, except for what a clock says."""
    try:
        run = fedveil.simulate(Job(**nested(settings)), folder)
    except FedveilError as refusal:
        return {"refused": str(refusal)}
    records = [
        {k: v for k, v in record.items() if not k.startswith("seconds_")} for record in run.metrics
    ]
    events = [line.partition(" ")[2] for line in (folder / EVENTS).read_text("utf-8").splitlines()]
    return {
        "records": json.dumps(records, default=repr),
        "weights": Layout(run.model).vector().astype(np.float32).tobytes(),
        "stopped": run.stopped,
        "events": [text for text in events if " s" not in text],
        "files": sorted(path.name.partition(".")[0] for path in folder.iterdir()),
        "name": run.job.name,
        "audit": str(run.audit),
    }


@cache
def base_of(under: str, folder: Path) -> dict[str, Any]:
    return observed(BASE | json.loads(under), folder / str(abs(hash(under))))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


def test_every_key_has_a_case_or_a_test_elsewhere_that_sets_it() -> None:
    places = [dotted(key) for key in keys(Job)]
    assert sorted(places) == sorted({**CASES, **ELSEWHERE})
    for place, file in ELSEWHERE.items():
        assert f'"{place.rpartition(".")[2]}"' in (ROOT / file).read_text("utf-8"), place


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", CASES)
def test_a_key_that_changes_alone_changes_something(
    place: str, bases: Path, tmp_path: Path
) -> None:
    value, under, refused = CASES[place]
    base = base_of(json.dumps(dict(under), sort_keys=True), bases)
    assert "refused" not in base, base
    changed = observed(BASE | dict(under) | {place: value}, tmp_path / "changed")
    assert (refused or "") in changed.get("refused", "")
    assert refused is not None or "refused" not in changed, changed
    different = [name for name in base if changed.get(name) != base[name]]
    assert different, f"{place} = {value!r} changes nothing"


def test_a_run_that_is_repeated_changes_nothing(bases: Path, tmp_path: Path) -> None:
    """Else the test above could not fail."""
    assert observed(BASE, tmp_path / "again") == base_of("{}", bases)
