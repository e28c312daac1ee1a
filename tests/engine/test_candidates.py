"""The protections that a job can have at one epsilon, their noise, and a run's advice."""

from __future__ import annotations

import math
from pathlib import Path
from shlex import split
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fedveil
from comparing_parts import small_job
from fedveil.engine.budget import prepared, project_job
from fedveil.engine.candidates import GAUSSIAN, candidates, of_examples
from fedveil.engine.known_accuracy import Measured
from fedveil.engine.next_protection import MOST_NOISE, _rank, next_protection
from fedveil.federated.job import Job
from fedveil.pages.read_run import read_run
from fedveil.pages.run_summary import ending
from fedveil.privacy.guarantee_strength import Figure
from round_parts import client_half, report_of, server_half

NOTHING = Figure(math.inf, 1e-5)
CROWD = {"clients": {"number": 60, "fraction": 1.0}}


def test_each_candidate_spends_the_epsilon_and_no_more() -> None:
    found = list(candidates(small_job(), 83, 3.0))
    assert [one.name for one in found] == [*GAUSSIAN]
    for one in found:
        assert 2.9 < one.figure.epsilon <= 3.0
        again = Job.read(small_job().model_dump(), one.settings)
        costs = [line.epsilon for line in project_job(again)]
        assert max(costs) <= 3.0


def test_a_candidate_takes_the_place_of_noise_that_the_job_has() -> None:
    noisy = {"name": "central_gaussian", "central_gaussian": {"noise_multiplier": 0.3}}
    job = small_job(protection=noisy)
    (found,) = candidates(job, 83, 3.0, ["central_gaussian"], ["rounds=5"])
    again = Job.read(job.model_dump(), found.settings)
    assert (again.rounds, again.protection.settings.noise_multiplier) == (5, None)
    assert again.protection.settings.target_epsilon == 3.0


def test_a_job_that_rules_a_protection_out_is_left_without_it() -> None:
    two = small_job(clients={"number": 8, "fraction": 0.25})
    assert "distributed_dp" not in [one.name for one in candidates(two, 83, 3.0)]


@pytest.mark.parametrize("name", ["central_gaussian", "dp_encrypt"])
def test_the_noise_over_the_update_is_that_of_a_round(name: str) -> None:
    """The aggregate of updates of zero is the noise itself."""
    dimension = 1_903
    job = small_job(clients={"number": 14, "fraction": 0.5})
    (found,) = candidates(job, dimension, 2.5, [name])
    protection, model = found.protection, np.zeros(dimension)
    server = server_half(protection, range(7), model)
    for client in range(7):
        half = client_half(protection, client, model)
        server.receive(client, report_of(half, server.opening(), model))
    server.advance()
    noise = np.linalg.norm(server.aggregate().update) / protection.norm_clip
    assert found.noise(240) == pytest.approx(noise, rel=0.1)


def test_under_secret_turns_the_clients_that_take_part_count() -> None:
    secret = {"number": 14, "fraction": 0.5, "sampling": "poisson"}
    (found,) = candidates(small_job(clients=secret), 83, 2.0, ["distributed_dp"])
    release = found.protection.spending(found.protection.initial_state())[0].loss.release
    assert found.noise(240) == pytest.approx(2 * release.ratio * math.sqrt(83) / 7)


def test_an_update_with_variates_is_twice_as_long() -> None:
    job = small_job(training={"algorithm": "scaffold", "batch_size": 5})
    layout = prepared(job)[0]
    advice = next_protection(job, layout, NOTHING, 240)
    (first, *_) = candidates(job, 2 * layout.dimension, 2.0)
    noise = first.noise(240)
    assert noise is not None
    assert f"is at least {noise:,.0f} times as long" in str(advice)


def test_noise_of_each_report_needs_the_square_of_the_clients() -> None:
    """Two clients cannot add up in secret, so every report has noise of its own."""
    job = small_job(clients={"number": 8, "fraction": 0.25}, privacy={"delta": 1e-9})
    (found,) = candidates(job, 83, 2.0, ["dp_encrypt"])
    noise = found.noise(9)
    assert noise is not None
    needed = math.ceil(2 * (noise / MOST_NOISE) ** 2)
    advice = next_protection(job, prepared(job)[0], NOTHING, 9)
    assert f"at least {needed:,} clients in a round" in str(advice)


def test_the_advice_names_what_is_known_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Measured((), epsilon, epsilon / 4, f"run {epsilon}") for epsilon in (0.5, 1.5, 3.0)]
    monkeypatch.setattr("fedveil.engine.next_protection.measured", lambda job: rows)
    own = {"name": "distributed_dp", "distributed_dp": {"noise_multiplier": 0.2}}
    job = small_job(**CROWD, protection=own)
    advice = next_protection(job, prepared(job)[0], Figure(90.0, 1e-5), 240)
    assert advice is not None
    assert advice.startswith("lower its epsilon to 2: `fedveil run job.yaml --set")
    assert advice.endswith(f"; {rows[1]}")  # the largest epsilon that is not above 2


def test_data_that_rules_out_the_protection_of_examples_is_not_advised_it() -> None:
    """Such a job is refused under `privacy.unit: example`, and so is a task with its own step."""
    job = small_job()
    layout = prepared(job)[0]
    uneven = next_protection(job, layout, NOTHING, 240, (-1, 6))
    inputs = next_protection(job, layout, NOTHING, 240, {"x": (6,)})
    stepping = next_protection(small_job(task="task_parts:OwnStep"), layout, NOTHING, 240)
    for advice in (uneven, inputs, stepping):
        assert str(advice).startswith("too few clients for a meaningful promise")
        assert "privacy.unit" not in str(advice)


def test_a_model_with_buffers_gets_no_advice() -> None:
    job = small_job(**CROWD, model="parts:net")
    assert next_protection(job, prepared(job)[0], NOTHING, 240) is None


def test_a_crowd_is_advised_to_protect_its_clients() -> None:
    job = small_job(**CROWD)
    advice = next_protection(job, prepared(job)[0], NOTHING, 240)
    assert advice is not None
    assert advice.startswith("protect it with distributed_dp: `fedveil run job.yaml --set prot")
    assert "against a server that follows the protocol" in advice
    again = Job.read(job.model_dump(), split(advice.split("`")[1])[4::2])
    assert again.protection.distributed_dp.target_epsilon == 2.0


def test_few_clients_are_told_the_noise_and_what_helps() -> None:
    job = small_job()
    layout = prepared(job)[0]
    (first, *_) = candidates(job, layout.dimension, 2.0)
    noise = first.noise(240)
    assert noise is not None
    assert noise > MOST_NOISE
    of_one = next_protection(job, layout, NOTHING, 240)
    assert of_one is not None
    assert of_one.startswith("protect each example instead of each client: with 4 clients")
    advice = next_protection(job, layout, NOTHING, 9)  # nine examples hide nobody either
    assert advice is not None
    assert "`privacy.unit: example`, which still has" in advice
    assert "`model: filters_linear` for images" in advice
    assert advice.startswith(
        "too few clients for a meaningful promise: with 4 clients in a round, the noise of "
        f"epsilon 2 is at least {noise:,.0f} times"
    )
    needed = math.ceil(4 * noise / MOST_NOISE)
    assert f"at least {needed} clients in a round" in advice
    more = small_job(clients={"number": needed, "fraction": 1.0})
    (then, *_) = candidates(more, layout.dimension, 2.0)
    assert then.noise(240) == pytest.approx(MOST_NOISE, rel=0.25)


@pytest.mark.parametrize(("epsilon", "promise"), [(2.0, "meaningful"), (0.25, "strong")])
def test_a_meaningful_promise_gets_no_advice(epsilon: float, promise: str) -> None:
    job = small_job(**CROWD)
    promised = Figure(epsilon, 1e-5)
    assert promised.promise == promise
    assert next_protection(job, prepared(job)[0], promised, 240) is None


def test_a_job_with_another_optimiser_is_told_that_plain_sgd_replaces_it() -> None:
    clipped = {"optimizer": "adamw", "epochs": 2, "batch_size": 5, "gradient_norm": 1.0}
    job = small_job(training=clipped)
    advice = next_protection(job, prepared(job)[0], NOTHING, 240)
    assert advice is not None
    assert "--set training.optimizer=sgd --set training.gradient_norm=null" in advice
    assert advice.endswith("plain SGD then, which needs a larger training.lr than adamw")
    again = Job.read(job.model_dump(), split(advice.split("`")[1])[4::2])
    assert (again.privacy.unit, again.training.optimizer) == ("example", "sgd")
    fast = {"momentum": 0.5, "nesterov": True, "batch_size": 5}
    assert "training.nesterov=false" in of_examples(small_job(training=fast))
    assert [key for key in of_examples(small_job()) if "optim" in key or "momentum" in key] == []


def test_a_single_example_is_protected_without_proximal_steps() -> None:
    pulled = small_job(training={"epochs": 2, "batch_size": 5, "proximal": 0.5})
    assert "training.proximal=0" in of_examples(pulled)
    (found,) = candidates(pulled, 83, 2.0, ["distributed_dp"], of_examples(pulled))
    assert (found.job.privacy.unit, found.job.training.epochs) == ("example", 1)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_noise_over_examples_counts_those_that_a_round_draws(fraction: float) -> None:
    job = small_job(clients={"number": 14, "fraction": fraction})
    (found,) = candidates(job, 83, 2.0, ["distributed_dp"], of_examples(job))
    rate = found.job.training.sampling_rate
    assert rate is not None
    assert rate < 1
    release = found.protection.spending(found.protection.initial_state())[0].loss.release
    drawn = rate * 240 * fraction
    assert found.noise(240) == pytest.approx(2 * release.ratio * math.sqrt(83) / drawn)


def test_a_finished_run_shows_the_advice_with_its_own_job(tmp_path: Path) -> None:
    job = small_job(**CROWD, record={"page": False})
    run = fedveil.simulate(job, tmp_path / "a run")
    after = ending(read_run(run.folder)).next
    assert after.value == "protect it with distributed_dp"
    command = split(after.text.split("`")[1])
    assert command[2] == str(run.folder / "job.yaml")
    Job.load(command[2], command[4::2])
    few = fedveil.simulate(small_job(record={"page": False}), tmp_path / "few")
    advice = next_protection(few.job, prepared(few.job)[0], NOTHING, 240)
    assert f"what next: {advice}\n" in (few.folder / "events.log").read_text()


def test_a_protection_that_leaves_a_model_comes_before_one_that_needs_no_trust() -> None:
    def candidate(noise: float | None, *, trusts: bool) -> Any:
        return SimpleNamespace(noise=lambda examples: noise, trusts_server=trusts)

    ranked = [
        candidate(9.9, trusts=False),
        candidate(0.5, trusts=True),
        candidate(9.9, trusts=True),
        candidate(10.5, trusts=False),
        candidate(None, trusts=False),
        candidate(10.5, trusts=True),
    ]
    mixed = [ranked[place] for place in (3, 0, 5, 2, 4, 1)]
    assert sorted(mixed, key=lambda one: _rank(one, 7)) == ranked


def test_a_candidate_costs_no_more_than_was_asked_for() -> None:
    target = 3.123456444  # six digits of it are more
    for found in candidates(small_job(), 83, target, ["distributed_dp", "central_gaussian"]):
        assert found.figure.epsilon <= target
    (found,) = candidates(small_job(), 83, target, ["distributed_dp"])
    assert found.settings[-1] == f"protection.distributed_dp.target_epsilon={target}"


def test_without_an_example_no_noise_is_compared_and_no_protection_of_examples_advised() -> None:
    job = small_job()
    (found,) = candidates(job, 83, 2.0, ["distributed_dp"], of_examples(job))
    assert found.noise(0) is None
    advice = str(next_protection(job, prepared(job)[0], NOTHING, 0))
    assert advice.startswith("too few clients for a meaningful promise")
    assert "privacy.unit" not in advice


def test_only_a_classification_is_advised_a_model_for_images() -> None:
    layout = prepared(small_job())[0]
    advice = next_protection(small_job(task="task_parts:OwnStep"), layout, NOTHING, 240)
    assert str(advice).endswith("and a model with fewer trained weights")


def test_noise_below_ten_times_the_update_has_a_decimal() -> None:
    job = small_job(**CROWD)
    layout = prepared(job)[0]
    advice = next_protection(job, layout, NOTHING, 240)
    (found,) = candidates(job, layout.dimension, 2.0, ["distributed_dp"])
    noise = found.noise(240)
    assert noise is not None
    assert abs(noise - round(noise)) > 0.05
    assert f"its noise is {noise:.1f} times as long" in str(advice)
