"""Runs that resume with more rounds, and runs without a result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from test_simulation import TWO_PHASES, job, timeless

import fedveil
from fedveil.engine.budget import check_limit, prepared
from fedveil.engine.executors.in_process import InProcess
from fedveil.engine.run_records import without_report, without_result
from fedveil.engine.server_optimizer import ServerOptimizer
from fedveil.engine.simulation import Simulator
from fedveil.errors import JobError, LimitReached, OutputLost, RoundVoid, RunFailed, with_notes
from fedveil.federated.training_blocks import ServerSettings
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import Spending

Command = Callable[..., tuple[int, str, str]]
ROUNDS = ("--set", "rounds=5")
#: A report costs an epsilon of 2.
SIGNS = {"name": "signds", "signds": {"sign_eps": 1.0}}


def written(path: Path, **changes: Any) -> Path:
    path.write_text(job(**changes).to_yaml())
    return path


# --- more rounds


def test_a_run_with_more_rounds_ends_as_if_it_had_had_them(tmp_path: Path) -> None:
    whole = fedveil.simulate(job(rounds=5), tmp_path / "whole")
    fedveil.simulate(job(rounds=3), tmp_path / "run")
    more = fedveil.resume(tmp_path / "run", rounds=5)
    assert more.job.rounds == 5
    assert timeless(more.metrics) == timeless(whole.metrics)
    model = (more.folder / "model.safetensors").read_bytes()
    assert model == (whole.folder / "model.safetensors").read_bytes()
    assert yaml.safe_load((more.folder / "job.yaml").read_text())["rounds"] == 5
    events = (more.folder / "events.log").read_text()
    assert "rounds: 3 in all" in events
    assert "rounds: 5 in all" in events
    assert len(fedveil.resume(more.folder).metrics) == 5


@pytest.mark.parametrize("noisy", [True, False])
def test_rounds_that_are_added_after_results_are_a_choice_that_no_epsilon_covers(
    noisy: bool, tmp_path: Path
) -> None:
    """Each addition is told once, in the log too. Without an epsilon, nothing is claimed."""
    kind: dict[str, Any] = {
        "protection": SIGNS if noisy else {"name": "not_encrypt"},
        "model": "logistic",
    }
    told: list[str] = []

    def resume(rounds: int | None) -> list[str]:
        told.clear()
        fedveil.resume(tmp_path / "run", rounds=rounds, warn=told.append)
        return [text for text in told if "was raised" in text]

    fedveil.simulate(job(rounds=3, **kind), tmp_path / "run")
    assert resume(None) == resume(3) == []
    sentence = (
        "rounds was raised from 3 to 5 when the results of 3 rounds were known: no epsilon covers "
        "a choice that depends on results"
    )
    assert resume(5) == [sentence] * noisy
    assert resume(5) == []
    assert len(resume(6)) == noisy
    log = (tmp_path / "run" / "events.log").read_text()
    assert log.count(sentence) == noisy
    assert log.count("was raised from 5 to 6 when the results of 5 rounds were known") == noisy


def test_a_run_whose_output_is_lost_says_how_to_resume_and_ends_as_if_nothing_had_happened(
    tmp_path: Path,
) -> None:
    whole = fedveil.simulate(job(rounds=3), tmp_path / "whole")

    def lost(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise OutputLost("standard output cannot be written: No space left on device")

    with pytest.raises(OutputLost) as end:
        fedveil.simulate(job(rounds=3), tmp_path / "run", progress=lost)
    assert f"`fedveil run --resume {tmp_path / 'run'}` resumes" in with_notes("", end.value)
    events = (tmp_path / "run" / "events.log").read_text()
    assert "ended after round 2: standard output cannot be written: No space left" in events
    more = fedveil.resume(tmp_path / "run")
    assert timeless(more.metrics) == timeless(whole.metrics)
    model = (more.folder / "model.safetensors").read_bytes()
    assert model == (whole.folder / "model.safetensors").read_bytes()


def test_more_rounds_are_held_against_the_limit(tmp_path: Path) -> None:
    limited: dict[str, Any] = {
        "clients": {"fraction": 1.0}, "protection": TWO_PHASES, "privacy": {"max_epsilon": 2.2},
    }  # fmt: skip
    assert fedveil.simulate(job(rounds=3, **limited), tmp_path / "run").stopped is None
    more = fedveil.resume(tmp_path / "run", rounds=9)
    assert len(more.metrics) == 4
    assert "round 5 would bring the most-drawn client to epsilon 2.5 at" in str(more.stopped)


def test_a_cut_off_round_that_may_not_be_repeated_is_recorded_with_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last record states what all reports have cost, and a further start charges nothing."""
    monkeypatch.setattr(Simulator, "reports_leave", True)
    sent, calls = InProcess.fold, iter(range(9))

    def fold(*arguments: Any) -> Any:
        if next(calls) == 1:  # the second round's reports may have been sent
            raise KeyboardInterrupt
        return sent(*arguments)

    monkeypatch.setattr(InProcess, "fold", fold)
    limited: dict[str, Any] = {
        "clients": {"fraction": 1.0}, "model": "parts:plain", "protection": SIGNS,
        "privacy": {"max_epsilon": 5.5, "delta": 0.0, "randomness": "secure"},
        "record": {"page": False},
    }  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(job(**limited), tmp_path / "run")
    for refused in (2, 3):
        run = fedveil.resume(tmp_path / "run")
        assert f"round {refused} would bring" in str(run.stopped)
        assert run.ledger.epsilon("run") == run.metrics[-1]["epsilon_run_every_round"] == 4
        assert [record["reports"] for record in run.metrics] == [8, 0]
        assert [record["dropped"] for record in run.metrics] == [0, 8]
        assert "interrupted" in run.metrics[-1]["void"]


def test_the_limit_is_about_the_client_that_was_drawn_most() -> None:
    """Not about a round, and not about a client that is in every round, which nobody is here."""
    settings = job(privacy={"max_epsilon": 1.2, "delta": 0.0}, protection="dp_encrypt")
    one, ledger = [Spending(PrivacyLoss(0.5))], Ledger()
    for number, cohort in enumerate(([0, 2], [1, 3], [0, 1], [2, 3]), 1):
        check_limit(settings, ledger, one, cohort, number)
        ledger.record_many(one, round=number, clients=cohort)
    with pytest.raises(LimitReached, match=r"the most-drawn client to epsilon 1\.5 .* = 1\.2$"):
        check_limit(settings, ledger, one, [1], 5)
    with pytest.raises(LimitReached, match=r"max_epsilon: null}` to run without a limit$"):
        check_limit(settings, Ledger(), [Spending(PrivacyLoss(0.5), 3)], [1], 1)


@pytest.mark.parametrize("name", ["rr", "oue"])
def test_an_adaptive_round_costs_what_was_sent_in_it(name: str, tmp_path: Path) -> None:
    """Its own epsilon, and not the larger one of the round after it."""
    unary = {"eps": 1.0, "cells": 3, "adaptive": True}
    settings = job(
        rounds=2,
        model="parts:plain",
        clients={"fraction": 1.0},
        protection={"name": name, "unary": unary},
        training={"lr": 3.0},
    )
    _, protection = prepared(settings)
    ledger = Ledger(adaptive=True)
    ledger.record_many(protection.spending(protection.initial_state()), round=1, clients=[0])
    first, second = fedveil.simulate(settings, tmp_path / "run").metrics
    figure = ledger.figures(settings.privacy.delta)["run_most_drawn"]
    assert first["epsilon_run_most_drawn"] == figure.epsilon
    assert second["epsilon_run_most_drawn"] > 2.1 * figure.epsilon


@pytest.mark.parametrize(
    ("protection", "sentence"),
    [
        ({"name": "central_gaussian", "central_gaussian": {"target_epsilon": 2.0}},
         "rounds = 4 would exceed target_epsilon = 2 of protection central_gaussian, whose "
         "noise was made for 3 rounds: start a new run"),
        ({"name": "distributed_dp", "distributed_dp": {"reconstruct_secrets_threshold": 5}},
         "rounds = 4 would exceed target_epsilon = 8 of"),
        ({"name": "distributed_dp",
          "distributed_dp": {"reconstruct_secrets_threshold": 5, "noise_multiplier": 1.0}}, None),
        ({"name": "central_gaussian"}, None),
    ],
)  # fmt: skip
def test_noise_that_was_made_for_so_many_rounds_is_not_spread_over_more(
    protection: dict[str, Any], sentence: str | None
) -> None:
    settings = job(rounds=3, clients={"fraction": 1.0}, protection=protection)
    assert settings.with_rounds(3).rounds == 3
    if sentence is None:
        assert settings.with_rounds(4).rounds == 4
        return
    with pytest.raises(JobError, match=sentence):
        settings.with_rounds(4)


def test_fewer_rounds_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    fedveil.simulate(job(rounds=3), tmp_path / "run")
    before = (tmp_path / "run" / "job.yaml").read_bytes()
    with pytest.raises(JobError, match="rounds = 2 is fewer than the 3 of the run"):
        fedveil.resume(tmp_path / "run", rounds=2)
    assert (tmp_path / "run" / "job.yaml").read_bytes() == before


def test_killed_between_its_two_copies_of_the_job_the_same_command_goes_on(tmp_path: Path) -> None:
    fedveil.simulate(job(rounds=3), tmp_path / "run")
    file = tmp_path / "run" / "job.yaml"
    file.write_text(file.read_text().replace("rounds: 3", "rounds: 5"))
    assert len(fedveil.resume(tmp_path / "run", rounds=5).metrics) == 5


def test_the_command_raises_rounds_and_takes_nothing_else(command: Command, tmp_path: Path) -> None:
    file = written(tmp_path / "job.yaml", rounds=3)
    assert command("run", file, "--out", "one")[0] == 0
    code, out, _ = command("run", "--resume", "one", *ROUNDS)
    assert code == 0
    assert "round 5/5" in out
    for others in (("--set", "seed=1"), (file,), ("--out", "two"), (*ROUNDS, "--set", "seed=1")):
        code, _, err = command("run", "--resume", "one", *others)
        assert code == 2
        assert "every --set except --set rounds=N" in err.replace("\n", " ")
    code, _, err = command("run", "--resume", "one", "--set", "rounds=4")
    assert code == 2
    assert "rounds = 4 is fewer than the 5 of the run" in err
    code, _, err = command("run", "--resume", "one", "--set", "rounds=many")
    assert code == 2
    assert len(err.splitlines()) == 1


def test_an_unprotected_run_does_not_go_on_as_a_protected_one(
    command: Command, tmp_path: Path
) -> None:
    command("run", written(tmp_path / "job.yaml", model="parts:plain"), "--out", "one")
    kept = tmp_path / "one" / "job.yaml"
    edited = written(kept, model="parts:plain", protection="dp_encrypt", rounds=4).read_bytes()
    code, out, err = command("run", "--resume", "one")
    assert code == 1
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "protection.name = 'dp_encrypt' where the run has 'not_encrypt'" in err
    assert "rounds = 4 where the run has 3" in err
    assert kept.read_bytes() == edited


# --- no result

#: Every update of every client is NaN.
NEVER = {"model": "parts:nowhere_finite"}


def test_a_run_without_a_usable_report_is_an_error(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    with pytest.raises(RunFailed) as failure:
        fedveil.simulate(job(**NEVER), tmp_path / "run", progress=seen.append)
    assert str(failure.value) == (
        f"no report was usable in any of 3 rounds: the update is not finite (12x); a lower "
        f"training.lr may help; the record is in {tmp_path / 'run'}"
    )
    assert not getattr(failure.value, "__notes__", [])  # to go on would not help
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert "ended after round 3 without a result: no report" in (
        (tmp_path / "run" / "events.log").read_text()
    )
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert [without_report(record) for record in seen] == ["the update is not finite (4x)"] * 3
    with pytest.raises(RunFailed, match="in any of 3 rounds"):
        fedveil.resume(tmp_path / "run")


def test_the_command_exits_1_and_its_last_line_says_why(command: Command, tmp_path: Path) -> None:
    code, out, err = command("run", written(tmp_path / "job.yaml", **NEVER), "--out", "one")
    assert code == 1
    assert err.splitlines()[-1].startswith("error: no report was usable in any of 3 rounds: the ")
    for number in (1, 2, 3):
        assert f"round {number} has no report: the update is not finite (4x)" in out
    assert "epsilon 0 " not in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("fraction", "said"), [(0.125, "1 client reports"), (0.375, "3 clients report")]
)
def test_reports_of_an_update_of_zero_are_counted_in_the_log(
    fraction: float, said: str, tmp_path: Path
) -> None:
    """And clients that only have no finite update have not failed, so no round is hopeless."""
    settings = job(**NEVER, protection="dp_encrypt", clients={"fraction": fraction})
    with pytest.raises(RunFailed, match="in any of 3 rounds"):
        fedveil.simulate(settings, tmp_path / "run")
    events = (tmp_path / "run" / "events.log").read_text()
    assert f"round 3: {said} an update of zero: the update is not finite" in events


def test_reports_that_say_nothing_of_an_update_are_not_usable() -> None:
    """Under a protection that perturbs, a client that has no update reports all the same."""
    record: dict[str, Any] = {"dropped": 0, "void": None, "reports": 4}
    record |= {"rejected": {}, "withheld": {}, "failed": {}, "unusable": {}}
    assert without_report(record) is None
    assert without_report({**record, "unusable": {"the update is not finite": 3}}) is None
    nothing = {**record, "unusable": {"the update is not finite": 4}}
    assert without_report(nothing) == "the update is not finite (4x)"
    assert without_result([nothing, record], None) is None
    assert without_result([nothing, nothing], None) == (
        "no report was usable in any of 2 rounds: the update is not finite (8x); a lower "
        "training.lr may help"
    )


def test_one_usable_report_is_enough(tmp_path: Path) -> None:
    settings = job(
        model="parts:diverging", clients={"number": 20, "fraction": 0.05}, rounds=12,
        training={"batch_size": 1000},
    )  # fmt: skip
    run = fedveil.simulate(settings, tmp_path / "run")
    reports = [record["reports"] for record in run.metrics]
    assert 0 < sum(reports) < 12
    assert [without_report(r) is None for r in run.metrics] == [n == 1 for n in reports]


def test_a_limit_below_the_first_round_leaves_no_result(tmp_path: Path) -> None:
    settings = job(clients={"fraction": 1.0}, protection=TWO_PHASES, privacy={"max_epsilon": 0.1})
    with pytest.raises(RunFailed, match="ended before its first round: round 1 would bring"):
        fedveil.simulate(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_rounds_that_are_void_because_clients_fall_silent_say_so(tmp_path: Path) -> None:
    protection = {"name": "pw_encrypt", "pw_encrypt": {"reconstruct_secrets_threshold": 3}}
    settings = job(protection=protection, simulation={"dropouts": {"masked": 0.5}})
    with pytest.raises(RunFailed) as failure:
        fedveil.simulate(settings, tmp_path / "run")
    assert str(failure.value).startswith(
        "no report was usable in any of 3 rounds: the client dropped out (6x), the round is void: "
        "2 clients answered in phase masked, but 3 are needed (3x); the record is in "
    )


# --- a model that stays finite


@pytest.mark.parametrize("name", ["none", "momentum", "adam", "yogi"])
def test_an_aggregate_that_no_model_survives_changes_nothing(name: Any) -> None:
    optimizer = ServerOptimizer(ServerSettings(optimizer=name), np.ones(2, np.bool_))
    weights = np.ones(2, np.float32)
    after = optimizer.step(weights, np.array([0.5, -0.5]))
    before = {key: values.copy() for key, values in optimizer.state().items()}
    with pytest.raises(RoundVoid, match="the resulting model is not finite"):
        optimizer.step(after, np.array([1e300, 0.5]))
    for key, values in optimizer.state().items():
        np.testing.assert_array_equal(values, before[key])
    assert np.isfinite(optimizer.step(after, np.array([0.5, 0.5]))).all()
