"""Accuracies on the genuine MNIST. Minutes each: run by hand with FEDVEIL_DATA and -m slow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fedveil
from fedveil.federated.job import Job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("FEDVEIL_DATA" not in os.environ, reason="FEDVEIL_DATA names no folder"),
]

HUNDRED = (
    "data.name=mnist",
    "clients={number: 100, fraction: 1.0}",
    "training={epochs: 1, batch_size: 20, lr: 0.1}",
)


def test_federated_averaging_reaches_98_percent_in_30_rounds(tmp_path: Path) -> None:
    run = fedveil.simulate(Job.load(None, [*HUNDRED, "rounds=30"]), tmp_path / "run")
    assert run.metrics[-1]["accuracy"] >= 0.98


def test_signds_comes_within_4_percent_with_a_thousandth_of_the_bytes(tmp_path: Path) -> None:
    plain = fedveil.simulate(Job.load(None, [*HUNDRED, "rounds=30"]), tmp_path / "plain")
    signds = fedveil.simulate(
        Job.load(
            None,
            [
                *HUNDRED,
                "rounds=200",
                "evaluation.every=20",
                "protection=signds",
                "protection.signds.sign_k=0.2",
            ],
        ),
        tmp_path / "signds",
    )
    last, best = signds.metrics[-1], plain.metrics[-1]
    assert last["accuracy"] >= best["accuracy"] - 0.04
    assert last["bytes_up_per_client"] < 0.0015 * best["bytes_up_per_client"]
