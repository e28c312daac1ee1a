"""The lines beside a ledger: of several releases in a report, and of runs that may end early."""

from __future__ import annotations

from typing import Any

import pytest

from fedveil.engine.job_protection import make_protection
from fedveil.engine.other_accounts import other_accounts
from fedveil.federated.job import Job
from fedveil.federated.stopping_settings import StoppingSettings
from fedveil.privacy.added_or_removed import added_or_removed
from fedveil.privacy.compose import compose
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.protections.base import Spending

CENTRAL = {"name": "central_gaussian", "central_gaussian": {"noise_multiplier": 3.0}}


def test_all_gaussian_releases_of_a_report_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(protection=CENTRAL, privacy={"delta": 1e-4})
    made = make_protection(job, 5)
    first, second = (PrivacyLoss.of_release(Gaussian(ratio)) for ratio in (6.0, 4.0))
    monkeypatch.setattr(made, "spending", lambda state: [Spending(first, 3), Spending(second)])
    (line,) = other_accounts(job, made, 9)
    ratio = (3 / 36 + 1 / 16) ** -0.5
    assert line.epsilon == pytest.approx(added_or_removed(ratio, 1.0, 9, 1e-4))
    assert line.delta == 1e-4
    assert line.what.startswith("a client added or removed instead of replaced")
    assert line.what.endswith("takes part in all 9 rounds")
    monkeypatch.setattr(
        made, "spending", lambda state: [Spending(first), Spending(PrivacyLoss(1.0))]
    )
    assert list(other_accounts(job, made, 9)) == []


@pytest.mark.parametrize(
    ("stopping", "rounds", "lines"),
    [
        ({}, 3, 1), ({"patience": 2}, 3, 2), ({"target": 0.0}, 3, 2), ({"patience": 2}, 7, 1),
        ({"keep": "best"}, 3, 1),
    ],
)  # fmt: skip
def test_a_run_that_ended_by_its_own_results_states_all_planned_rounds(
    stopping: dict[str, Any], rounds: int, lines: int
) -> None:
    job = Job(rounds=7, protection=CENTRAL, privacy={"delta": 1e-4}, stopping=stopping)
    assert StoppingSettings(**stopping).may_end == bool({"patience", "target"} & set(stopping))
    found = list(other_accounts(job, make_protection(job, 5), rounds))
    assert len(found) == lines
    stated = 7 if lines == 2 else rounds  # the end depends on the results of all planned rounds
    assert found[-1].epsilon == pytest.approx(added_or_removed(3.0, 1.0, stated, 1e-4))
    assert found[-1].what.endswith(f"takes part in all {stated} rounds")
    if lines == 2:
        planned = [(PrivacyLoss.of_release(Gaussian(3.0)), 7)]
        assert found[0].epsilon == pytest.approx(compose(planned, 1e-4))
        assert found[0].what == "all 7 rounds: holds whenever stopping ends the run"


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"protection": {"name": "rr", "unary": {"eps": 0.01, "adaptive": True}}}, 3),
        ({"protection": "not_encrypt"}, 3),
        ({"protection": CENTRAL}, 0),
    ],
)
def test_nothing_is_stated_that_nobody_knows(settings: dict[str, Any], rounds: int) -> None:
    """Costs of an adaptive run, infinite costs, and those of no round are unknown."""
    ends = {"target": 0.0} if rounds else {}
    job = Job(rounds=7, privacy={"delta": 1e-4}, stopping=ends, **settings)
    assert list(other_accounts(job, make_protection(job, 5), rounds)) == []


def test_the_unit_that_is_added_or_removed_is_the_jobs() -> None:
    apart = {"training": {"sampling_rate": 1.0}, "privacy": {"delta": 1e-4, "unit": "example"}}
    job = Job(
        protection={"name": "distributed_dp", "distributed_dp": {"noise_multiplier": 3.0}}, **apart
    )
    found = list(other_accounts(job, make_protection(job, 5), 3))
    assert [line.what.partition(" instead")[0] for line in found] == ["an example added or removed"]


def test_an_early_end_lowers_no_amplified_epsilon() -> None:
    """Only the planned number of rounds is independent of the models that the attacker sees."""
    clients = {"number": 50, "fraction": 0.2, "sampling": "poisson"}
    job = Job(
        rounds=40, clients=clients, protection=CENTRAL, privacy={"delta": 1e-4},
        stopping={"patience": 2},
    )  # fmt: skip
    made = make_protection(job, 5)
    _, *early = other_accounts(job, made, 6)
    assert len(early) == 3
    assert early == list(other_accounts(job, made, 40))
