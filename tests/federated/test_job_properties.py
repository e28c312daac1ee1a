"""Properties of a job that follow from several keys: lengths, states, weights, and own names."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from fedveil.errors import JobError
from fedveil.federated.job import Job
from fedveil.federated.language_blocks import AdapterSettings
from fedveil.federated.training_blocks import TrainingSettings
from fedveil.protections.advice import Cohort
from parts import TwoPhases


@pytest.mark.parametrize(
    ("algorithm", "sent", "reported", "mean", "corrects"),
    [
        ("fedavg", 1, 1, False, False), ("fednova", 1, 1, False, False),
        ("feddyn", 1, 1, True, True), ("fedcm", 2, 1, False, True),
        ("scaffold", 2, 2, True, True),
    ],
)  # fmt: skip
def test_an_algorithm_decides_what_is_sent_and_reported(
    algorithm: Any, sent: int, reported: int, mean: bool, corrects: bool
) -> None:
    made = TrainingSettings(algorithm=algorithm)
    assert (made.keeps_mean, made.corrects_steps) == (mean, corrects)
    assert made.report_length(21 * sent) == 21 * reported
    assert made.sent_length(21 * reported) == 21 * sent
    assert Job(training={"algorithm": algorithm, "normal_steps": 3.0}).keeps_state == mean


@pytest.mark.parametrize(
    ("settings", "weighting"),
    [
        ({}, "by_size"), ({"training": {"algorithm": "fedcm"}}, "by_size"),
        ({"training": {"algorithm": "scaffold"}}, "equal"),
        ({"training": {"algorithm": "feddyn"}}, "equal"),
        ({"server": {"aggregation": "trimmed_mean"}}, "equal"),
        ({"server": {"aggregation": "norm_bound"}}, "by_size"),
        ({"protection": {"name": "pw_encrypt", "pw_encrypt": {"central_eps": 2.0}}}, "equal"),
        ({"training": {"algorithm": "scaffold"}, "server": {"weighting": "by_size"}}, "by_size"),
    ],
)  # fmt: skip
def test_weights_follow_from_the_other_keys_unless_they_are_written(
    settings: dict[str, Any], weighting: str
) -> None:
    assert Job(**settings).server.weighting == weighting


def test_what_is_left_out_follows_from_the_other_keys() -> None:
    example = {"privacy": {"unit": "example"}, "protection": "dp_encrypt"}
    assert Job(**example, training={"sampling_rate": 0.5}).training.epochs == 1
    assert Job(training={"lr": 0.5}).training.epochs == 10
    owned = Job(data={"name": "mine:data", "split": "by_client"})
    assert (owned.clients.number, owned.cohort) == (None, Cohort(None, None))
    assert Job(data={"name": "mine:data"}).clients.number == 100
    told = Job(data={"name": "mine:data", "split": "by_client"}, clients={"number": 8})
    assert told.clients.number == 8
    sized = Job(server={"weighting": "by_size"}).under("rr")
    assert (sized.protection.name, sized.server.weighting) == ("rr", "equal")


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"server": {"optimizer": "adagrad", "lr": 1.5}}, "server.lr = 1.5 under server.optimizer"),
        ({"server": {"momentum": 0.5}}, "server.momentum = 0.5 has no effect under server.optim"),
        ({"data": {"alpha": 2.0}}, "data.alpha = 2.0 has no effect under data.split = iid"),
        ({"adapter": {"rank": 4}}, "adapter.rank = 4 has no effect under adapter.kind = none"),
        ({"adapter": {"targets": ["q"]}}, "adapter.targets = ['q'] has no effect under adapter.k"),
        ({"training": {"dynamic": 2.0}}, "training.dynamic = 2.0 has no effect under training.alg"),
        ({"protection": {"unary": {"eps": 2.0}}}, "protection.unary has no effect, because"),
    ],
)
def test_a_setting_without_an_effect_is_named(settings: dict[str, Any], warning: str) -> None:
    (found,) = Job(**settings).warnings
    assert found.startswith(warning)


def test_every_rule_and_advice_of_an_own_protection_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ruled(TwoPhases):
        rules = (
            lambda own, cohort: f"factor = {own.factor} is odd" if own.factor % 2 else None,
            lambda own, cohort: f"factor = {own.factor} exceeds {cohort.per_round}"
            if own.factor > cohort.per_round else None,
        )  # fmt: skip
        advice = (
            lambda own, cohort: "factor is large" if own.factor > 4 else None,
            lambda own, cohort: "factor is dear" if own.factor > 5 else None,
        )

    module = ModuleType("ruled")
    module.Ruled = Ruled  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ruled", module)

    def job(factor: float) -> Job:
        protection = {"name": "ruled:Ruled", "own": {"factor": factor}}
        return Job(clients={"number": 40, "fraction": 0.25}, protection=protection)

    with pytest.raises(JobError) as caught:
        job(11.0)
    odd, large = "protection.own.factor = 11.0 is odd", "protection.own.factor = 11.0 exceeds 10"
    assert list(caught.value.problems) == [f"{odd}; {large}"]
    assert job(4.0).warnings == []
    assert job(6.0).warnings == ["protection.own.factor is large; protection.own.factor is dear"]


def test_a_setting_has_an_effect_under_the_choice_that_reads_it() -> None:
    read = AdapterSettings(kind="lora", rank=4, alpha=3.0, targets=["q"])
    assert not [*read.without_effect()]


def test_canaries_are_clients_too() -> None:
    audited = Job(clients={"number": 40, "fraction": 0.25}, audit={"canaries": 3})
    assert audited.cohort == Cohort(43, 13)


@pytest.mark.parametrize(
    ("number", "fraction", "sampling", "protection", "drawn"),
    [
        (40, 0.25, "fixed", "distributed_dp", 10), (40, 0.25, "poisson", "distributed_dp", 40),
        (40, 0.25, "poisson", "dp_encrypt", 10), (7, 0.01, "fixed", "dp_encrypt", 1),
    ],
)  # fmt: skip
def test_a_round_asks_everybody_where_turns_are_secret(
    number: int, fraction: float, sampling: str, protection: str, drawn: int
) -> None:
    clients = {"number": number, "fraction": fraction, "sampling": sampling}
    job = Job(clients=clients, protection=protection)
    assert job.clients_per_round == drawn
    assert job.secret_turns == (drawn == number)


def test_every_key_that_names_code_is_among_a_jobs_own_names() -> None:
    job = Job(
        model="m:f", data={"name": "d:f"}, task="t:T", protection="parts:TwoPhases",
        training={"lr_schedule": "s:f"},
        record={"callbacks": ["c:C", "fedveil.engine.trackers:MLflow"]},
    )  # fmt: skip
    assert job.own_names == ["m:f", "d:f", "t:T", "parts:TwoPhases", "s:f", "c:C"]
    callbacks = ["fedveil.engine.trackers:WandB", "c:C"]
    folder = Job(model="hf:m", task="t:T", record={"callbacks": callbacks})
    assert folder.own_names == ["digits", "t:T", "not_encrypt", "constant", "c:C"]
