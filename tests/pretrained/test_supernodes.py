"""Adapters of a language model on real Flower processes, by hand: `make language SLOW=1`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tiny_language
from folders import EXAMPLES

pytest.importorskip("flwr")

import fedveil
from fedveil.federated.job import Job
from fedveil.flower.job.deploy import deployable, write_app
from fedveil.pages.read_run import read_run

sys.path.append(str(EXAMPLES / "flower"))
from loopback import Loopback

pytestmark = [pytest.mark.slow, pytest.mark.timeout(700)]

LIMIT_S = 400.0


def test_masked_adapters_end_with_the_simulators_bytes(
    model: Path, texts: Path, tmp_path: Path
) -> None:
    """Five clients on three SuperNodes, each with the texts of its own clients."""
    more = {
        "rounds": 2, "clients.number": 5, "clients.fraction": 1.0,
        "deployment.clients_per_node": 2, "protection.name": "pw_encrypt",
        "protection.pw_encrypt.reconstruct_secrets_threshold": 3,
        "protection.pw_encrypt.cipher_time_window": 60_000,
    }  # fmt: skip
    settings = Job.load(None, tiny_language.settings(model, texts, **more))
    folder = tmp_path / "run"
    write_app(tmp_path / "app", deployable(settings, seeded=True))
    with Loopback(tmp_path / "flower", 3, secured=True) as loopback:
        loopback.start_superlink()
        for number, clients in {0: "0,2", 1: "1,4", 2: "3"}.items():
            loopback.start_node(number, "seeded=true", clients)
        assert loopback.run(tmp_path / "app", folder).wait(LIMIT_S) == 0
    records = read_run(folder).records
    assert [(record["reports"], record["dropped"]) for record in records] == [(5, 0)] * 2
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    theirs = (simulated.folder / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == theirs
    assert [r["perplexity"] for r in records] == [r["perplexity"] for r in simulated.metrics]
    assert records[0]["perplexity"] != records[1]["perplexity"]
