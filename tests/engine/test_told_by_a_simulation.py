"""A simulation names unusable updates, and what it releases without a finite epsilon."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fedveil
from fedveil.engine.budget import project_job
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job


def job(**blocks: Any) -> Job:
    base = {
        "rounds": 3,
        "clients": {"number": 8, "fraction": 0.5},
        "data": {"name": "parts:data"},
        "model": "parts:net",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    return Job(**{**base, **blocks})


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_under_a_promise_an_update_that_is_not_finite_becomes_a_report_and_is_counted(
    tmp_path: Path, workers: int
) -> None:
    settings = job(
        model="parts:diverging",
        protection="dp_encrypt",
        clients={"number": 20, "fraction": 1.0},
        training={"epochs": 1, "batch_size": 1000},
        simulation={"workers": workers},
    )
    said: list[str] = []
    run = fedveil.simulate(settings, tmp_path / "run", starting=said.append)
    assert said[0] == "distributing the examples among the clients"
    for record in run.metrics:
        assert (record["reports"], record["withheld"], record["failed"]) == (20, {}, {})
        number = record["unusable"]["the update is not finite"]
        assert 0 < number < 20
        line = f"round {record['round']}: {number} clients report an update of zero: the update is"
        assert line in (run.folder / "events.log").read_text()


def test_under_a_promise_a_training_that_raises_is_still_seen(tmp_path: Path) -> None:
    settings = job(
        model="parts:picky",
        protection="signds",
        clients={"number": 20, "fraction": 1.0},
        training={"epochs": 1, "batch_size": 1000},
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    for record in run.metrics:
        assert record["reports"] == 20
        assert 0 < record["unusable"]["RuntimeError: these examples are not to my taste"] < 20
    with pytest.raises(ModelInvalid, match="cannot train: RuntimeError: these examples are not"):
        fedveil.simulate(job(model="parts:hopeless", protection="signds"), tmp_path / "none")


@pytest.mark.parametrize(("weighting", "lines"), [("by_size", 1), ("equal", 0)])
def test_weights_are_said_to_have_no_finite_epsilon(
    tmp_path: Path, weighting: str, lines: int
) -> None:
    run = fedveil.simulate(job(server={"weighting": weighting}), tmp_path / "run")
    said = ["the clients' numbers of examples, each or in total (weighting = by_size)"][:lines]
    assert [record["in_clear"] for record in run.metrics] == [said] * 3
    assert list(run.ledger.in_clear) == list(fedveil.resume(run.folder).ledger.in_clear) == said
    assert [line.what for line in project_job(run.job) if math.isinf(line.epsilon)][4:] == said


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (
            {"evaluation": {"clients": 0.2}},
            "metrics on the clients' own examples (evaluation.clients)",
        ),
        (
            {"clients": {"number": 8, "fraction": 0.5, "own_layers": ["bias"]}},
            "metrics with the clients' own layers (clients.own_layers)",
        ),
    ],
)
def test_figures_that_no_noise_covers_are_said_to_have_no_finite_epsilon(
    tmp_path: Path, blocks: dict[str, Any], said: str
) -> None:
    common = {"protection": "dp_encrypt", "model": "parts:linear"}
    plain, settings = job(**common), job(**common, **blocks)
    for each, told in ((plain, []), (settings, [said])):
        assert [line.what for line in project_job(each) if math.isinf(line.epsilon)] == told
    run = fedveil.simulate(settings.with_(rounds=1), tmp_path / "run")
    assert run.metrics[-1]["in_clear"] == [said]


def test_central_noise_is_a_promise_too(tmp_path: Path) -> None:
    """A client whose update cannot be used adds a vector of zero to the sum, under masks."""
    central = {"reconstruct_secrets_threshold": 11, "central_eps": 1.0, "clip": 1.0}
    settings = job(
        model="parts:picky",
        protection={"name": "pw_encrypt", "pw_encrypt": central},
        server={"weighting": "equal"},
        clients={"number": 20, "fraction": 1.0},
        training={"epochs": 1, "batch_size": 1000},
    )
    for record in fedveil.simulate(settings, tmp_path / "run").metrics:
        assert (record["reports"], record["failed"], record["withheld"]) == (20, {}, {})
        assert 0 < record["unusable"]["RuntimeError: these examples are not to my taste"] < 20
        assert record["epsilon_per_round"] == 1.0
