"""The server's view of every client, under every protection."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import pytest

from fedveil.attacks import class_shares, exact_inversion
from fedveil.attacks import target as target_module
from fedveil.attacks.effort import Watch
from fedveil.attacks.gradient import inversion
from fedveil.attacks.membership import membership
from fedveil.attacks.membership.client_evidence import views
from fedveil.attacks.membership.shadow_runs import play_round
from fedveil.attacks.server_view import seen
from fedveil.attacks.stealing import stealing
from fedveil.attacks.target import Target
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible, RunFolderError
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.protections.base import ClientContext, JobContext, RoundContext
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.not_encrypt import NotEncrypt
from fedveil.record.run_folder import IMPORTS, JOB, MODEL
from fedveil.rounds.outcomes import Failed

CLIENTS = 3

FEW = {"reconstruct_secrets_threshold": 2}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.of(
        Job(
            model="logistic",
            clients={"number": CLIENTS, "fraction": 1.0},
            training={"epochs": 1},
            protection={"pw_encrypt": FEW, "distributed_dp": FEW},
        )
    )


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_is_read(target: Target, position: str) -> None:
    under = target.under(position)
    updates = under.updates(range(CLIENTS))
    seen = under.server_view(updates)
    for reading in seen.readings:
        assert reading.estimate.shape == reading.weight.shape == under.weights.shape
        assert np.isfinite(reading.estimate).all()
        assert (reading.weight >= 0).all()
    assert seen.aggregate.shape == under.weights.shape


def test_clients_that_share_no_secrets_are_not_in_the_sum() -> None:
    """Three of six clients share secrets, and the sum is theirs alone."""
    secure = {"share_secrets_ratio": 0.5, "clip": 1.0, "reconstruct_secrets_threshold": 2}
    some = Target.of(Job(
        model="logistic", clients={"number": 6, "fraction": 1.0}, training={"epochs": 1},
        protection={"name": "pw_encrypt", "pw_encrypt": secure},
    ))  # fmt: skip
    updates = some.updates(range(6))
    view = some.server_view(updates)
    assert (len(view.readings), view.masked, len(view.asked)) == (6, True, 3)
    mean = np.mean([updates[client] for client in view.asked], axis=0)
    assert view.aggregate == pytest.approx(mean, abs=1e-5)
    totals = {
        0 in each.asked: (each.total, sum(updates[client] for client in each.asked))
        for each in (some.server_view(updates, repeat=i) for i in range(9))
    }
    there, total = totals[True]
    assert there.estimate == pytest.approx(total, abs=1e-4)
    assert there.weight.min() == there.weight.max() == 1
    assert totals[False][0].empty
    (summed,) = views(view, range(10, 16))
    assert (summed.clients, summed.share) == ([10 + client for client in view.asked], 1 / 3)
    played = play_round(some, np.arange(2000), np.arange(2000, 5000), 6, Seeded(1))
    assert played.summed
    assert len(played.held[0]) == len(played.strangers[0]) < len(some.partition.indices) * 0.6


def test_a_plain_report_is_the_update(target: Target) -> None:
    updates = target.updates(range(CLIENTS))
    for update, reading in zip(updates, target.server_view(updates).readings, strict=True):
        assert np.array_equal(reading.estimate.astype(np.float32), update)
        assert reading.log_likelihood is not None
        assert reading.log_likelihood(update) == 0
        assert reading.log_likelihood(update + 1) == -np.inf


def test_an_update_is_the_simulators(target: Target) -> None:
    """Two clients differ; the model is left as it was; the next call gives the same."""
    first, second = target.updates([0, 1])
    assert not np.array_equal(first, second)
    assert np.array_equal(target.updates([1])[0], second)


def test_a_client_trains_at_the_learning_rate_of_its_round(target: Target) -> None:
    falling = {"lr_schedule": "step", "lr_rounds": 1, "lr_factor": 0.1, "epochs": 1}
    scheduled = replace(target, job=Job(**{**target.job.model_dump(), "training": falling}))
    first, third = (np.linalg.norm(scheduled.updates([0], round)[0]) for round in (1, 3))
    assert third < 0.05 * first


@pytest.mark.parametrize("masks", [True, False])
def test_a_sum_that_is_added_without_masks_is_promised_what_it_is_with_them(
    target: Target, masks: bool
) -> None:
    """A simulation without masks has one phase, and still nobody reads a report."""
    noised = {"name": "pw_encrypt", "pw_encrypt": {**FEW, "central_eps": 2.0}}
    job = Job(clients=target.job.clients, protection=noised, simulation={"masks": masks})
    assert replace(target, job=job).promised().epsilon == 2.0


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no finished run: it has no model"):
        Target.of_run(tmp_path)


def test_examples_of_several_inputs_are_refused_by_their_names() -> None:
    job = Job(
        data={"name": "task_parts:inputs"},
        model="task_parts:words",
        clients={"number": 2, "fraction": 1.0},
    )
    with pytest.raises(AttackImpossible, match=r"the inputs turn, words$"):
        Target.of(job).needs_classes("membership")


def test_a_finding_has_the_delta_of_its_epsilon(target: Target) -> None:
    """Nothing is promised at any delta where the server that adds the noise reads the reports."""
    finding = target.under("central_gaussian").finding("some", "quick", [], rounds=2)
    assert (finding.epsilon, finding.delta) == (np.inf, 0.0)
    noised = target.under("dp_encrypt")
    finding = noised.finding("some", "quick", [], rounds=2)
    assert (finding.epsilon, finding.delta) == noised.promised(2)
    assert finding.delta == noised.job.privacy.delta > 0


def test_a_run_of_an_own_model_is_attacked_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module lies beside the run, where nothing but the run's folder tells to look."""
    run, own = tmp_path / "run", tmp_path / "own"
    run.mkdir()
    own.mkdir()
    (own / "attacked_own_model.py").write_text(
        "from torch import nn\n\n\n"
        "def net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    (run / JOB).write_text("model: attacked_own_model:net\nclients: {number: 30}\n")
    (run / IMPORTS).write_text(f"{own}\n")
    (run / MODEL).touch()
    read: list[Path] = []
    monkeypatch.setattr(target_module, "read_model", lambda path, model: read.append(path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    try:
        found = Target.of_run(run, ["clients.number=15"])
    finally:
        sys.modules.pop("attacked_own_model", None)
    assert (found.trained, found.partition.clients, len(found.weights)) == (True, 15, 7850)
    assert read == [run / MODEL]


def test_what_clients_hold_out_is_held_out_once() -> None:
    """An attack that plays the job again distributes all examples that are left."""
    settings = {"model": "logistic", "clients": {"number": 30, "fraction": 1.0}}
    whole, found = (
        Target.of(Job(**settings, evaluation={"clients": share})) for share in (0.0, 0.25)
    )
    left = len(found.dataset.train)
    assert 0.7 * len(whole.dataset.train) < left < 0.8 * len(whole.dataset.train)
    assert sorted(found.partition.indices) == [*range(left)]
    again = Target.of(found.job)
    assert len(again.dataset.train) == len(again.partition.indices) == len(whole.dataset.train)


def test_texts_are_attacked_only_by_attacks_that_read_them() -> None:
    texts: Any = SimpleNamespace(
        job=SimpleNamespace(task="sequence_classification"),
        dataset=SimpleNamespace(example_shape=(12,)),
    )
    Target.needs_classes(texts, "membership", of_texts=True)
    with pytest.raises(AttackImpossible, match=r"task is sequence_classification$"):
        Target.needs_classes(texts, "gradient")
    texts.job.task = "regression"
    with pytest.raises(
        AttackImpossible, match=r"the membership attack is on .* task is regression$"
    ):
        Target.needs_classes(texts, "membership", of_texts=True)


class Refusing:
    """A target of another task. Nothing else may be asked of it."""

    def needs_classes(self, attack: str, *, of_texts: bool = False) -> None:
        raise AttackImpossible(f"{attack}, of texts: {of_texts}")


@pytest.mark.parametrize(
    ("attack", "name"),
    [(class_shares.attack, "classes, of texts: False"),
     (exact_inversion.attack, "exact, of texts: False"),
     (inversion.attack, "gradient, of texts: False"), (stealing.attack, "steal, of texts: False"),
     (membership.attack, "membership, of texts: True")],
)  # fmt: skip
def test_an_attack_on_classes_refuses_other_tasks_before_it_begins(attack: Any, name: str) -> None:
    with pytest.raises(AttackImpossible, match=f"^{name}$"):
        attack(Refusing(), "quick", Watch())


def test_other_reports_are_drawn_for_a_repetition(target: Target) -> None:
    under = target.under("dp_encrypt")
    updates = under.updates(range(CLIENTS))
    once, again = (under.server_view(updates, repeat=i).readings[0].estimate for i in (0, 1))
    assert not np.array_equal(once, again)
    same = under.server_view(updates).readings[0].estimate
    assert np.array_equal(once, same)


class Listening(NotEncrypt):
    """Records the seeds and contexts that its two halves receive."""

    seeds: ClassVar[list[int]] = []
    servers: ClassVar[list[RoundContext]] = []
    clients: ClassVar[list[ClientContext]] = []

    def reseeded(self, seed: int) -> Self:
        self.seeds.append(seed)
        return super().reseeded(seed)

    def server_round(self, context: RoundContext) -> Any:
        self.servers.append(context)
        return super().server_round(context)

    def client_round(self, context: ClientContext) -> Any:
        self.clients.append(context)
        return super().client_round(context)


def test_each_round_and_client_has_its_own_context_and_randomness() -> None:
    made = Listening(NotEncrypt.settings_type(), JobContext("equal", 3, 2, rounds=4))
    updates = [np.full(3, value, np.float32) for value in (1, 2)]
    for round in (2, 3):
        seen(made, updates[0], updates, Seeded(1), round=round, state={"clip": 0.5})
    assert len({*made.seeds}) == 2
    assert {context.round for context in made.servers} == {2, 3}
    assert all(context.state == {"clip": 0.5} for context in made.servers)
    assert [(each.client, each.round) for each in made.clients] == [(0, 2), (1, 2), (0, 3), (1, 3)]
    assert len({bytes(each.entropy.words(4)) for each in made.clients}) == 4


def test_all_examples_are_as_the_model_takes_them(target: Target) -> None:
    double = {
        name: replace(part, x=part.x.astype(np.float64))
        for name in ("train", "test")
        if (part := getattr(target.dataset, name))
    }
    found = target_module._as_taken(replace(target.dataset, **double), target.model)
    assert found.train.x.dtype == found.test.x.dtype == np.float32


def test_a_view_has_the_state_after_the_round(target: Target) -> None:
    under = target.under("signds")
    state = under.protection.initial_state()
    assert under.server_view(under.updates(range(CLIENTS))).state != state


def test_updates_are_those_of_the_round_and_its_weights(target: Target) -> None:
    before = Layout(target.model).vector()
    (first,), (later,) = target.updates([1]), target.updates([1], round=2)
    (elsewhere,) = target.updates([1], weights=3 * target.weights)
    assert not np.array_equal(first, later)
    assert np.abs(elsewhere - first).max() > 1e-3
    assert np.array_equal(Layout(target.model).vector(), before)


def test_an_update_that_is_not_finite_is_not_attacked(target: Target) -> None:
    job = target.job.model_copy(
        update={"training": target.job.training.model_copy(update={"lr": 1e38})}
    )
    with pytest.raises(AttackImpossible, match="client 2 trains to no finite update"):
        replace(target, job=job).updates([2])


def test_only_a_constant_rate_trains_natively(target: Target) -> None:
    data = target.job.model_dump()
    data["training"]["lr_schedule"] = "cosine"
    assert target.trains_natively
    assert not replace(target, job=Job(**data)).trains_natively


def test_a_client_whose_training_fails_is_not_attacked(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = [Failed(2, "RuntimeError: no")]
    monkeypatch.setattr(target_module.LocalTraining, "updates", lambda self, clients: iter(failed))
    with pytest.raises(AttackImpossible, match="client 2 trains to no finite update"):
        target.updates([2])
