"""Runs whose epsilon is for one example of a client."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedveil
import parts
from fedveil.attacks import distinguishing, repetition
from fedveil.attacks.effort import Watch
from fedveil.attacks.target import Target
from fedveil.base import plain_text
from fedveil.engine.assembly import (
    ModelShape,
    make_client_side,
    make_model,
    make_trainer,
    training_plan,
)
from fedveil.engine.budget import project_job, thin_promise
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.job_protection import make_protection, training_entropy
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import AttackImpossible, ModelInvalid
from fedveil.federated.job import Job
from fedveil.flower.job.client_training import Training
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.trainer import ClientData
from fedveil.learning.weight_layout import Layout
from fedveil.pages.read_run import read_run
from fedveil.privacy.audit import Audit, run
from fedveil.privacy.compose import compose
from fedveil.privacy.loss import PrivacyLoss
from fedveil.privacy.sampled_gaussian import SampledGaussian
from fedveil.protections.base import ClientContext, RoundContext
from fedveil.rounds.outcomes import ClientId
from fedveil.run_display import RunDisplay

SHAPE = ModelShape((parts.FEATURES,), parts.CLASSES)


def job(**blocks: Any) -> Job:
    base = {
        "name": "examples",
        "rounds": 3,
        "clients": {"number": 4, "fraction": 1.0},
        "data": {"name": "parts:data"},
        "model": "parts:linear",
        "training": {"sampling_rate": 0.3, "batch_size": 18, "lr": 2.0},
        "protection": {"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 4.0, "dp_delta": 1e-6}},
        "privacy": {"unit": "example"},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    for key, value in blocks.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return Job(**base)


def whole(data: dict[str, Any]) -> ClientsData:
    """All of the training examples, as one client's."""
    x, y = data["x_train"], data["y_train"]
    return ClientsData(x, y, np.arange(len(x)), np.array([0, len(x)]))


def test_the_default_of_epochs_is_one_step() -> None:
    assert job().training.epochs == 1
    assert Job(**job().model_dump()) == job()
    assert Job().training.epochs == 10


def test_a_run_states_what_an_example_loses(tmp_path: Path) -> None:
    made = fedveil.simulate(job(), tmp_path / "run")
    protection = make_protection(made.job, Layout(made.model).dimension)
    (spent,) = protection.spending({})
    assert spent.loss.per == "example"
    release = spent.loss.release
    assert isinstance(release, SampledGaussian)
    assert release.rate == 0.3
    last = made.metrics[-1]
    assert last["unit"] == "example"
    assert last["epsilon_run_every_round"] == compose([(spent.loss, 3)], 1e-5)
    assert last["epsilon_run_every_round"] < 4.0 < compose([(spent.loss.bare(), 30)], 1e-5)
    assert last["reports"] == 4
    assert last["unusable"] == {}


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("model", ["parts:linear", "parts:plain"])
def test_workers_change_nothing(tmp_path: Path, model: str) -> None:
    settings = job(model=model)
    apart = settings.model_copy(
        update={"simulation": settings.simulation.model_copy(update={"workers": 2})}
    )
    one = fedveil.simulate(settings, tmp_path / "one")
    two = fedveil.simulate(apart, tmp_path / "two")
    for ours, theirs in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_it_learns_without_noise(tmp_path: Path) -> None:
    run = fedveil.simulate(job(protection={"name": "not_encrypt"}, rounds=20), tmp_path / "run")
    assert run.metrics[-1]["accuracy"] > 0.8


def test_batches_come_from_the_door_of_the_reports() -> None:
    """With the system's randomness a batch cannot be told from the job, which everybody has."""
    secret = job(privacy={"unit": "example", "randomness": "secure"})
    assert isinstance(training_entropy(secret), Secure)
    plain = job(privacy={"unit": "client"}, training={"sampling_rate": None})
    assert training_entropy(plain).path == ("training",)  # type: ignore[attr-defined]

    def update(settings: Job) -> bytes:
        model = Layout(make_model(settings, SHAPE)).vector()
        side = make_client_side(settings, SHAPE, whole(parts.data()), model)
        side.open(1)
        (trained,) = side._training.updates([0])
        return trained.update.tobytes()  # type: ignore[attr-defined, no-any-return]

    assert update(job()) == update(job())
    assert update(secret) != update(secret)


def test_the_protection_s_clip_is_the_trainer_s() -> None:
    settings = job(protection={"name": "dp_encrypt", "dp_encrypt": {"dp_norm_clip": 0.25}})
    trainer = make_trainer(settings, make_model(settings, SHAPE))
    assert isinstance(trainer, ClippedExamplesTrainer)
    assert (trainer._clip, trainer._rate) == (0.25, 0.3)
    bare = job(protection={"name": "not_encrypt"})
    assert make_trainer(bare, make_model(bare, SHAPE))._clip == math.inf  # type: ignore[attr-defined]


# --- what is said -------------------------------------------------------------------------------


def test_lines_name_an_example() -> None:
    lines = list(project_job(job()))
    assert [line.what for line in lines] == [
        "one example of a client in a round",
        "one example of a client that takes part in all 3 rounds",
    ]
    weak = job(protection={"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 1000.0}})
    sentence = thin_promise(weak, make_protection(weak, 21))
    assert sentence is not None
    assert sentence.startswith(
        "one example of a client that takes part in all 3 rounds is promised"
    )


def test_a_run_on_the_screen_names_an_example(tmp_path: Path) -> None:
    out = io.StringIO()
    display = RunDisplay(plain_text.console(file=out, width=120), 3)
    display.summary(read_run(fedveil.simulate(job(rounds=1), tmp_path / "run").folder))
    text = " ".join(out.getvalue().split())
    assert "for one example of a client in a round" in text
    assert "the whole run of one example of the most-drawn client" in text
    assert "a parameter" not in text


def test_a_run_ends_before_an_example_loses_more_than_allowed(tmp_path: Path) -> None:
    made = fedveil.simulate(
        job(privacy={"unit": "example", "max_epsilon": 2.5}, rounds=50), tmp_path / "run"
    )
    assert "would bring one example of the most-drawn client to epsilon 2.5" in str(made.stopped)


@pytest.mark.parametrize("attack", [distinguishing.attack, repetition.attack])
def test_attacks_on_whole_updates_say_that_they_are(attack: Any) -> None:
    with pytest.raises(AttackImpossible, match=r"attack the job with privacy\.unit = client"):
        attack(Target.of(job()), "quick", Watch())


def test_batch_normalisation_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings = job(model="parts:net", protection={"name": "not_encrypt"})
    with pytest.raises(ModelInvalid, match=r"BatchNorm \(1\) mixes the examples of a batch"):
        fedveil.simulate(settings, tmp_path / "run")


# --- one example decides about itself alone -----------------------------------------------------


def nothing_kept(client: ClientId) -> ClientStates:
    raise AssertionError("FedAvg keeps nothing of a client")


def no_job_data() -> ClientsData:
    raise AssertionError("the client has a function of its own")


def test_a_label_beyond_the_server_s_classes_costs_that_example_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server says how many classes there are, and would else ask who has a certain label."""
    settings = job(training={"sampling_rate": 1.0}, protection={"name": "not_encrypt"})
    weights = Layout(make_model(settings, SHAPE)).vector()
    common = {
        "example_shape": np.array(SHAPE.example_shape),
        "classes": SHAPE.classes,
        "fingerprint": "",
        "weights": weights,
        "dimension": len(weights),
        "round": 1,
    }
    training = Training(settings, common, nothing_kept, no_job_data)
    beyond, _ = training.update(0, "parts:labels_beyond")
    as_it_is, _ = training.update(0, "parts:one_clients_data")
    first = parts.one_clients_data()["x_train"][0]
    step = 2.0 / 18 * math.sqrt(2 * (1 + float(first @ first)))
    assert 0 < np.linalg.norm(beyond - as_it_is) <= step


# --- the whole of a client's side, on trial -----------------------------------------------------


def pipeline(settings: Job, clip: float) -> Any:
    """(examples, entropy) -> the report, as its reader has it, of a client whose batch is drawn."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(model.weight)
    weights = Layout(model).vector()
    protection = make_protection(settings, len(weights))
    trainer = make_trainer(settings, model)
    assert isinstance(trainer, ClippedExamplesTrainer)
    trainer = ClippedExamplesTrainer(model, training_plan(settings), rate=trainer._rate, clip=clip)
    trainer.start(weights)
    numbers = itertools.count()

    def report(data: tuple[torch.Tensor, torch.Tensor], entropy: Entropy) -> np.ndarray:
        source = entropy.stream(next(numbers))
        ((row, (failure,)),) = trainer.train([ClientData(*data, source.stream("train"))])
        assert failure is None
        context = ClientContext(0, 1, weights, len(data[1]), source.stream("report"))
        message = protection.client_round(context).respond({"round": 1}, row[0])
        return protection.reading(RoundContext([0], 1, weights), message).estimate

    return report


def test_an_empirical_bound_stays_below_the_claim_and_above_it_where_the_clip_is_doubled() -> None:
    """Two data sets that differ in the label of one example of four; every gradient is clipped."""
    settings = job(
        training={"sampling_rate": 0.9, "batch_size": 1, "lr": 1e3},
        protection={
            "name": "dp_encrypt",
            "dp_encrypt": {"dp_eps": 5.0, "dp_delta": 0.01, "dp_norm_clip": 0.5},
        },
    )
    protection = make_protection(settings, 4)
    (spent,) = protection.spending({})
    # At this delta few trials show much: 2,400 as large a share of the claim as 8,000 at 0.02.
    claim = PrivacyLoss(compose([(spent.loss, 1)], 0.2), 0.2, per="example")
    x = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, -1.0], [1.0, 0.0]])
    ours, theirs = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 1, 1])
    a, b = (x, ours), (x, theirs)

    def audit(clip: float) -> Audit:
        report = pipeline(settings, clip)
        return run(report, a, b, claim=claim, trials=2400, entropy=Seeded(3), score=along)

    def along(report: np.ndarray) -> float:
        return float(report[0] - report[2])  # what the feature says of the one label and the other

    found = audit(protection.norm_clip)
    assert not found.refuted
    assert found.bound > 0.6 * claim.epsilon  # the game is one that can be lost
    assert audit(2 * protection.norm_clip).refuted
