"""Faults planted in the shipped protections, each of which the audit inside a run must find."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

import fedveil
import sabotage
from fedveil.engine.canary_bounds import (
    ALONE,
    BY_CALM,
    BY_LAG,
    BY_MOVE,
    BY_NOISE,
    BY_PAIRS,
    BY_SPARE,
    TURNED,
)
from fedveil.errors import FedveilWarning
from fedveil.federated.job import Job
from fedveil.privacy.finding import BOUND, Finding

SUM = {"distributed_dp": {"reconstruct_secrets_threshold": 2, "target_epsilon": 6.0}}
SIGNS = {"signds": {"sign_eps": 1.0}}
BITS = {"unary": {"report": "bits", "cells": 20}}


def job(position: str, canaries: int, rounds: int, own: dict[str, Any], seed: int) -> Job:
    """1,400 parameters, fewer canaries than clients, and clients that learn."""
    return Job(
        name="sabotaged", seed=seed, rounds=rounds, model="parts:wider",
        data={"name": "parts:data"},
        clients={"number": canaries + 3, "fraction": 1.0},
        training={"epochs": 1, "batch_size": 6, "lr": 0.05},
        evaluation={"every": rounds}, record={"page": False},
        simulation={"workers": 0, "masks": False}, audit={"canaries": canaries},
        protection={"name": position, **own},
    )  # fmt: skip


def audited(
    folder: Path, position: str, own: dict[str, Any], canaries: int, rounds: int, seed: int = 5
) -> Finding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedveilWarning)  # of a small top-k set
        finding = fedveil.simulate(job(position, canaries, rounds, own, seed), folder).audit
    assert finding is not None
    return finding


def bound(text: str) -> str:
    return f"{BOUND}, {text}"


CASES: list[tuple[sabotage.Sabotage, str, dict[str, Any], tuple[int, int], list[str]]] = [
    (sabotage.same_noise_each_round, "distributed_dp", SUM, (60, 2), [BY_LAG, TURNED]),
    (sabotage.same_noise_each_round, "central_gaussian", {}, (20, 2), [BY_LAG]),
    (sabotage.same_noise_each_round, "dp_encrypt", {}, (20, 2), [BY_LAG]),
    (sabotage.same_noise_every_second_round, "distributed_dp", SUM, (60, 3), [BY_LAG]),
    (sabotage.same_noise_every_second_round, "central_gaussian", {}, (20, 3), [BY_LAG]),
    (sabotage.same_noise_every_second_round, "dp_encrypt", {}, (20, 3), [BY_LAG]),
    (sabotage.same_noise_each_round, "signds", SIGNS, (60, 4),
     [bound("the sign told true in two rounds")]),
    (sabotage.same_noise_each_round, "rr", {}, (12, 2),
     [bound("a code's sum told true in two rounds")]),
    (sabotage.same_noise_each_round, "rr", BITS, (12, 2),
     [bound("a bit of the code told true in two rounds")]),
    (sabotage.same_noise_each_round, "oue", BITS, (12, 2),
     [bound("the own bit of the code told true in two rounds"),
      bound("another bit of the code told true in two rounds")]),
    (sabotage.same_noise_every_second_round, "signds", SIGNS, (60, 7),
     [bound("the sign told true two rounds apart")]),
    (sabotage.same_noise_every_second_round, "rr", {}, (12, 3),
     [bound("a code's sum told true two rounds apart")]),
    (sabotage.same_noise_every_second_round, "oue", BITS, (12, 3),
     [bound("the own bit of the code told true two rounds apart"),
      bound("another bit of the code told true two rounds apart")]),
    (sabotage.same_noise_for_all_clients, "dp_encrypt", {}, (11, 2), [BY_PAIRS]),
    (sabotage.same_noise_for_all_clients, "rr", {}, (12, 2),
     [bound("a code's sum told true by two canaries")]),
    (sabotage.clip_twice_too_large, "dp_encrypt", {}, (20, 2), [BY_MOVE]),
    (sabotage.clip_twice_too_large, "central_gaussian", {}, (90, 4), [BY_MOVE, ALONE]),
    (sabotage.clip_twice_too_large, "distributed_dp", SUM, (90, 4), [BY_MOVE]),
    (sabotage.a_tenth_of_the_shares_missing, "distributed_dp", SUM, (27, 6),
     [BY_NOISE, BY_SPARE, BY_CALM]),
    (sabotage.half_the_noise, "distributed_dp", SUM, (20, 2), [BY_NOISE, BY_SPARE, BY_CALM]),
    (sabotage.half_the_noise, "central_gaussian", {}, (20, 2), [BY_NOISE, BY_LAG]),
    (sabotage.bit_in_clear, "signds", SIGNS, (60, 2),
     [bound("the bit of the magnitude told true")]),
    (sabotage.selection_of_twice_the_epsilon, "signds", SIGNS, (90, 4),
     [bound("a favoured selection told true")]),
    (sabotage.epsilon_off_by_a_hundredth, "rr", {"unary": {"eps": 6.0, "report": "bits"}}, (90, 7),
     [bound("a bit of the code told true")]),
    (sabotage.lies_off_by_a_hundredth, "rr", {}, (12, 2), [bound("a code's sum told true")]),
    (sabotage.half_the_lies, "oue", {}, (12, 2), [bound("a code's sum told true")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "position", "own", "effort", "by"),
    CASES,
    ids=[f"{fault.__name__}-{position}-{n}" for n, (fault, position, *_) in enumerate(CASES)],
)
def test_a_fault_is_found_by_the_bounds_that_are_made_for_it(
    fault: sabotage.Sabotage,
    position: str,
    own: dict[str, Any],
    effort: tuple[int, int],
    by: list[str],
    tmp_path: Path,
) -> None:
    with fault():
        finding = audited(tmp_path / "run", position, own, *effort)
    assert finding.refutes
    assert {figure.name for figure in finding.excesses} >= set(by), finding.refutation


@pytest.mark.parametrize(
    ("position", "own"),
    [("dp_encrypt", {}), ("central_gaussian", {}), ("distributed_dp", SUM), ("signds", SIGNS),
     ("rr", {}), ("rr", BITS), ("oue", BITS)],
)  # fmt: skip
def test_a_sound_protection_is_refuted_at_most_as_often_as_the_confidence_allows(
    position: str, own: dict[str, Any], tmp_path: Path
) -> None:
    found = [audited(tmp_path / str(s), position, own, 20, 2, seed=s) for s in range(4)]
    assert sum(finding.refutes for finding in found) <= 1
    assert all(finding.limits for finding in found)


def test_every_bound_stands_beside_its_own_claim(tmp_path: Path) -> None:
    finding = audited(tmp_path / "run", "signds", SIGNS, 20, 2)
    claims = {figure.name: figure.claim(finding.epsilon) for figure in finding.bounds}
    assert claims[BOUND] == claims[ALONE] == finding.epsilon
    assert finding.epsilon == pytest.approx(4.0, rel=1e-4)
    assert claims[bound("the sign told true in two rounds")] == 0
    assert claims[bound("the bit of the magnitude told true")] == 1


def test_a_finding_says_what_its_effort_could_not_have_seen(tmp_path: Path) -> None:
    """With too few canaries nothing is refuted, and the finding says that nothing could be."""
    few = audited(tmp_path / "few", "signds", SIGNS, 3, 2)
    many = audited(tmp_path / "many", "signds", SIGNS, 90, 2)
    bit = bound("the bit of the magnitude told true")
    assert few.figure(bit).unseen > many.figure(bit).unseen > 1
    assert math.isinf(few.figure(ALONE).unseen)
    assert f"{ALONE} (misses every epsilon where 4 is claimed)" in few.unseen
    with sabotage.bit_in_clear():
        unnoticed = audited(tmp_path / "clear", "signds", {}, 20, 2)
    assert not unnoticed.refutes
    assert unnoticed.figure(bit).unseen == math.inf
