"""A training and questions of the same data set share one account, in either order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedveil
from fedveil.engine.budget import admit
from fedveil.errors import LimitReached, RunFailed, RunStopped
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import Spending
from fedveil.record.data_account import DataAccount
from page_parts import small_job

DELTA = 1e-5


def trained(account: str, limit: float) -> Any:
    privacy = {"account": account, "max_epsilon": limit, "delta": DELTA}
    noise = {"name": "central_gaussian", "central_gaussian": {"noise_multiplier": 4.0}}
    job = small_job().with_(privacy=privacy, protection=noise, server={"weighting": "equal"})
    return fedveil.simulate(job, Path(account).parent / f"run-{limit:g}")


def asked(account: str, limit: float) -> Any:
    file = {
        "protection": "central_gaussian", "epsilon": 1.0, "delta": DELTA, "account": account,
        "max_epsilon": limit, "questions": {"n": {"ask": "count"}},
    }  # fmt: skip
    return fedveil.ask(file, {"x": [1.0, 2.0, 3.0, 4.0]})


def test_a_question_counts_against_a_training_and_a_training_against_a_question(
    tmp_path: Path,
) -> None:
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    alone = trained(first, 50.0)
    spent = DataAccount(Path(first), "client").figure(DELTA).epsilon
    assert spent == pytest.approx(alone.ledger.figures(DELTA)["run_every_round"].epsilon, rel=1e-6)
    assert asked(second, 50.0).lines[1].epsilon == pytest.approx(1.0, rel=1e-5)
    # Each fits on its own. After the other, neither does.
    with pytest.raises(LimitReached, match="of question would bring the account"):
        asked(first, max(spent, 1.0) + 1e-3)
    stopped = trained(second, max(spent, 1.0) + 1e-3)
    number = len(stopped.metrics) + 1
    assert stopped.stopped.startswith(f"round {number} of {stopped.job.name} would bring the acc")
    assert len(stopped.metrics) < len(alone.metrics)


def test_a_round_that_the_protection_refuses_is_not_charged(tmp_path: Path) -> None:
    account = tmp_path / "a"
    unary = {"eps": 0.01, "cells": 1, "total_eps": 1e-9}
    job = small_job().with_(
        privacy={"account": str(account)}, protection={"name": "rr", "unary": unary},
        server={"weighting": "equal"},
    )  # fmt: skip
    with pytest.raises(RunFailed, match=r"total_eps = 1e-09: round 1 would raise the loss"):
        fedveil.simulate(job, tmp_path / "run")
    assert not account.exists()


def test_a_training_that_protects_examples_charges_the_account_of_a_row(tmp_path: Path) -> None:
    job = small_job().with_(
        privacy={"account": str(tmp_path / "a"), "unit": "example", "delta": DELTA},
        protection={"name": "dp_encrypt"}, training={"epochs": 1, "sampling_rate": 0.5},
    )  # fmt: skip
    admit(job, Ledger(), [Spending(PrivacyLoss(0.25), 3)], [0, 4], 1, begun=False)
    assert DataAccount(tmp_path / "a", "row").figure(DELTA).epsilon == pytest.approx(0.75, rel=1e-3)


def test_a_run_resumed_in_another_folder_begins_no_second_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path in the job is relative to the folder in which the run was started."""
    job, spent = small_job().with_(privacy={"account": "a"}), [Spending(PrivacyLoss(0.25), 1)]
    monkeypatch.chdir(tmp_path)
    admit(job, Ledger(), spent, [0, 4], 1, begun=False)
    admit(job, Ledger(), spent, [0, 4], 2, begun=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(RunStopped, match=r"privacy\.account = a is missing, but earlier rounds"):
        admit(job, Ledger(), spent, [0, 4], 3, begun=True)
    assert not list(Path().iterdir())


def test_rounds_before_the_first_checkpoint_are_in_the_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed before its first checkpoint repeats its first round."""
    job = small_job().with_(
        rounds=4, privacy={"account": "a"}, checkpoint={"every": 4}, server={"weighting": "equal"},
        protection={"name": "dp_encrypt"},
    )  # fmt: skip

    def cut(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(job, tmp_path / "run", progress=cut)
    before = DataAccount(tmp_path / "a", "client").figure(DELTA).epsilon
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(RunStopped, match=r"privacy\.account = a is missing, but earlier rounds"):
        fedveil.resume(tmp_path / "run")
    assert not list(Path().iterdir())
    monkeypatch.chdir(tmp_path)
    fedveil.resume(tmp_path / "run")
    assert DataAccount(tmp_path / "a", "client").figure(DELTA).epsilon > before
