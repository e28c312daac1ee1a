"""Clients that go on from what they have kept: own layers, SCAFFOLD, FedDyn; and FedNova."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedveil
import parts
from fedveil.attacks.target import Target
from fedveil.data.datasets import load
from fedveil.engine.assembly import (
    ModelShape,
    local_training,
    make_model,
    make_partition,
    make_shares,
    make_task,
    make_trainer,
    make_training,
)
from fedveil.engine.budget import prepared
from fedveil.engine.executors.client_side import ClientsData, Trained
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.executors.stateful_training import Dynamic, KeptTraining, OwnLayers, Scaffold
from fedveil.engine.own_layer_evaluation import _mean, client_model
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import AttackImpossible, FedveilError, ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import Task
from fedveil.learning.trainer import ClientData, LoopTrainer
from fedveil.learning.weight_layout import Layout
from fedveil.protections.catalog import POSITIONS
from job_checks import problems

LR, EPOCHS, BATCH, CLIENTS = 0.2, 2, 20, 4


def job(**changes: Any) -> Job:
    base: dict[str, Any] = {
        "rounds": 3,
        "clients": {"number": CLIENTS, "fraction": 0.5},
        "data": {"name": "parts:data", "split": "shards"},
        "model": "parts:linear",
        "training": {"epochs": EPOCHS, "batch_size": BATCH, "lr": LR},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return Job(**base)


WAYS: dict[str, dict[str, Any]] = {
    "scaffold": {"training": {"algorithm": "scaffold"}},
    "feddyn": {"training": {"algorithm": "feddyn", "dynamic": 0.3}},
    "own layers": {"clients": {"own_layers": ["bias"]}},
}
FEDCM: dict[str, Any] = {"training": {"algorithm": "fedcm", "own_direction": 0.3}}


# --- the algorithms, by hand -------------------------------------------------------------------


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    scores = x @ w[:18].reshape(3, 6).T + w[18:]
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return np.concatenate([(p.T @ x).ravel(), p.sum(0)]) / len(y)


def full(settings: Job) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """The weights at the beginning, and each client's examples."""
    data = parts.data()
    split = make_partition(settings, load("parts:data"))
    x, y = data["x_train"].astype(np.float64), data["y_train"]
    mine = [(x[split.of(c)], y[split.of(c)]) for c in range(CLIENTS)]
    start = Layout(make_model(settings, ModelShape((6,), 3))).vector().astype(np.float64)
    return start, mine


def whole_batches(**training: Any) -> Job:
    """Two steps of every client on all of its examples, in every round."""
    return job(
        clients={"fraction": 1.0},
        training={"batch_size": 1000, **training},
        server={"weighting": "equal"},
    )


def test_scaffold_is_the_papers(tmp_path: Path) -> None:
    settings = whole_batches(algorithm="scaffold")
    run = fedveil.simulate(settings, tmp_path / "run")
    x, clients = full(settings)
    mean, own = np.zeros_like(x), [np.zeros_like(x) for _ in clients]
    for _ in range(3):
        moved, changed = [], []
        for i, examples in enumerate(clients):
            y = x.copy()
            for _ in range(EPOCHS):
                y -= LR * (gradient(y, *examples) - own[i] + mean)
            new = own[i] - mean + (x - y) / (EPOCHS * LR)
            moved.append(y - x)
            changed.append(new - own[i])
            own[i] = new
        x, mean = x + np.mean(moved, 0), mean + np.mean(changed, 0)
    np.testing.assert_allclose(Layout(run.model).vector(), x, atol=2e-5)


def test_feddyn_is_the_papers(tmp_path: Path) -> None:
    alpha = 0.3
    settings = whole_batches(algorithm="feddyn", dynamic=alpha)
    run = fedveil.simulate(settings, tmp_path / "run")
    x, clients = full(settings)
    h, own = np.zeros_like(x), [np.zeros_like(x) for _ in clients]
    for _ in range(3):
        ends = []
        for i, examples in enumerate(clients):
            y = x.copy()
            for _ in range(EPOCHS):
                y -= LR * (gradient(y, *examples) - own[i] + alpha * (y - x))
            own[i] = own[i] - alpha * (y - x)
            ends.append(y)
        h = h - alpha * np.mean([y - x for y in ends], 0)
        x = np.mean(ends, 0) - h / alpha
    np.testing.assert_allclose(Layout(run.model).vector(), x, atol=2e-5)


@pytest.mark.parametrize("protection", ["not_encrypt", "pw_encrypt"])
def test_fedcm_is_the_papers(tmp_path: Path, protection: str) -> None:
    """The paper's algorithm 1, with its direction per step and unit of the learning rate."""
    alpha = 0.3
    falling = {"lr_schedule": "step", "lr_rounds": 2, "lr_factor": 0.5}
    settings = job(
        rounds=4,
        clients={"fraction": 1.0},
        training={"batch_size": 1000, "algorithm": "fedcm", "own_direction": alpha, **falling},
        server={"weighting": "equal"},
        protection={"name": protection},
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    x, clients = full(settings)
    direction = np.zeros_like(x)
    for round in range(4):
        rate = LR if round < 2 else LR / 2
        ends = []
        for examples in clients:
            y = x.copy()
            for _ in range(EPOCHS):
                y -= rate * alpha * gradient(y, *examples) + (1 - alpha) / EPOCHS * direction
            ends.append(y)
        direction = x - np.mean(ends, 0)  # EPOCHS steps of the paper's direction
        x = np.mean(ends, 0)
    np.testing.assert_allclose(Layout(run.model).vector(), x, atol=2e-4)
    sent = run.metrics[-1]["bytes_down"]
    assert sent >= 2 * CLIENTS * 4 * len(x), "the direction is counted"


class OwnLoss(Task):
    """Cross-entropy as a user's own task. Its loop is the default one."""

    targets = "class"

    def loss(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets)


class OwnOptimizer(OwnLoss):
    def optimizer(self, parameters: Any, plan: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=2 * plan.lr)


@pytest.mark.parametrize("way", [WAYS["scaffold"], WAYS["feddyn"], FEDCM])
def test_an_own_task_is_corrected_like_a_bundled_one(way: dict[str, Any]) -> None:
    ends = []
    for task in ("classification", "test_stateful_training:OwnLoss"):
        run = fedveil.simulate(job(task=task, clients={"fraction": 0.75}, **way))
        ends.append(Layout(run.model).vector())
    np.testing.assert_allclose(*ends, atol=1e-6)


@pytest.mark.parametrize("way", [WAYS["scaffold"], pytest.param(FEDCM, marks=pytest.mark.slow)])
def test_an_own_optimizer_is_refused_where_steps_are_counted(way: dict[str, Any]) -> None:
    own = job(task="test_stateful_training:OwnOptimizer", **way)
    with pytest.raises(ModelInvalid, match=r" must control .* has its own optimizer\. Use"):
        fedveil.simulate(own)


class OwnTrain(OwnLoss):
    """A task with a loop of its own and the job's optimiser."""

    def train(self, model: Any, batches: Any, plan: Any) -> None:
        super().train(model, batches, plan)


FEDNOVA = {"training": {"algorithm": "fednova", "normal_steps": 6.0}}


@pytest.mark.parametrize("way", [WAYS["scaffold"], WAYS["feddyn"], FEDCM, FEDNOVA])
def test_an_own_loop_is_refused_where_steps_are_counted_or_changed(way: dict[str, Any]) -> None:
    own = job(task="test_stateful_training:OwnTrain", **way)
    with pytest.raises(ModelInvalid, match=r" must control .* has its own train\. Use fedavg"):
        fedveil.simulate(own)


def uneven() -> dict[str, Any]:
    """A client with three full batches and a short one, and a client with a short one alone."""
    return parts.data(72) | {"client_ids": np.repeat([0, 1], [65, 7])}


def only_the_first_round(round: int, lr: float) -> float:
    return lr if round == 1 else 1e-9


def test_under_fedcm_each_client_spreads_the_direction_over_its_own_steps(tmp_path: Path) -> None:
    """Without gradients of their own, clients of 8 and of 2 steps move equally far."""
    training = {"algorithm": "fedcm", "own_direction": 0.3}
    settings = job(
        data={"name": "test_stateful_training:uneven", "split": "by_client"},
        training={**training, "lr_schedule": "test_stateful_training:only_the_first_round"},
        clients={"number": 2, "fraction": 1.0},
        rounds=2,
    )
    begun = make_model(settings, ModelShape((6,), 3))
    models = [Layout(begun).vector()]
    for rounds in (1, 2):
        run = fedveil.simulate(settings.with_(rounds=rounds), tmp_path / str(rounds))
        models.append(Layout(run.model).vector())
    first, second = np.diff(np.array(models, np.float64), axis=0)
    assert abs(first).max() > 0.01
    np.testing.assert_allclose(second, 0.7 * first, atol=1e-5)


def test_fednova_counts_every_client_with_as_many_steps(tmp_path: Path) -> None:
    settings = job(
        data={"name": "test_stateful_training:uneven", "split": "by_client"},
        training={"algorithm": "fednova", "normal_steps": 5.0},
        clients={"number": 2},
        rounds=1,
    )
    data = ClientsData(*uneven_arrays(settings))
    trained = {}
    for name in ("fedavg", "fednova"):
        training = settings.training.model_copy(update={"algorithm": name})
        one = settings.model_copy(update={"training": training})
        model = make_model(one, ModelShape((6,), 3))
        training_of_all = local_training(one, make_trainer(one, model), data)
        training_of_all.open(1, Layout(model).vector())
        trained[name] = [
            answer.update.copy()
            for answer in training_of_all.updates([0, 1])
            if isinstance(answer, Trained)
        ]
    for steps, plain, scaled in zip((8, 2), trained["fedavg"], trained["fednova"], strict=True):
        np.testing.assert_allclose(scaled, plain * np.float32(5 / steps), rtol=1e-6)


def test_a_control_variate_is_of_the_rounds_own_steps_and_rate(tmp_path: Path) -> None:
    """Clients that take part in round 2 for the first time, under a mean variate that is not 0."""
    settings = job(
        data={"name": "test_stateful_training:uneven", "split": "by_client"},
        training={"algorithm": "scaffold", "lr_schedule": "step", "lr_rounds": 1, "lr_factor": 0.3},
        clients={"number": 2},
    )
    shape, data = ModelShape((6,), 3), ClientsData(*uneven_arrays(settings))
    model = make_model(settings, shape)
    start = Layout(model).vector()
    mean = np.linspace(-0.4, 0.7, len(start)).astype(np.float32)
    trainer = make_trainer(settings, model, round=2)
    training = make_training(settings, shape, trainer, data, lambda: ClientStates(tmp_path))
    training.open(2, np.concatenate([start, mean]))
    sent = [a.update for a in training.updates([0, 1]) if isinstance(a, Trained)]
    for steps, update in zip((8, 2), sent, strict=True):
        change, variate = np.split(update, 2)
        expected = -mean - change / (steps * 0.3 * LR)
        np.testing.assert_allclose(variate, LR * expected, rtol=1e-4, atol=1e-6)
    towards = [np.split(update, 2)[0] @ mean for update in sent]
    assert max(towards) < -0.5 * 2 * 0.3 * LR * float(mean @ mean)  # corrected from the first step


def uneven_arrays(settings: Job) -> tuple[np.ndarray, ...]:
    dataset = load(settings.data.name)
    split = make_partition(settings, dataset)
    return dataset.train.x, dataset.train.y, split.indices, split.offsets


# --- what holds for all ------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*WAYS.values(), FEDCM])
def test_a_run_that_was_cut_off_ends_with_the_same_bytes(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    settings = job(rounds=5, checkpoint={"every": 2}, **way)
    run = fedveil.simulate(settings, tmp_path / "run")

    def cut(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(settings, tmp_path / "cut", progress=cut)
    resumed = fedveil.resume(tmp_path / "cut")
    for name in ("model.safetensors", *(f"clients/{p.name}" for p in kept(run.folder))):
        assert (resumed.folder / name).read_bytes() == (run.folder / name).read_bytes()
    assert [p.name for p in kept(resumed.folder)] == [p.name for p in kept(run.folder)]
    figures = [[r["loss"] for r in one.metrics] for one in (run, resumed)]
    assert figures[0] == figures[1]


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "clients").glob("*"))


def test_a_round_that_is_played_again_reads_what_was_kept_before_it(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    for round in (2, 3):
        states.save(7, round, np.full(4, round, np.float32))
    kept = states.load(7, 3, 4)
    assert kept is not None
    assert kept.tolist() == [2.0] * 4
    assert states.load(7, 2, 4) is None


@pytest.mark.parametrize("way", [WAYS["scaffold"], pytest.param(FEDCM, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("warm_workers")
def test_workers_change_nothing(tmp_path: Path, way: dict[str, Any]) -> None:
    models = []
    for workers in (0, 1):
        settings = job(rounds=2, **way, simulation={"workers": workers})
        run = fedveil.simulate(settings, tmp_path / str(workers))
        models.append((run.folder / "model.safetensors").read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize("way", WAYS)
def test_what_knows_nothing_of_it_refuses_it(way: str) -> None:
    with pytest.raises(AttackImpossible, match="in which clients keep nothing"):
        Target.of(job(**WAYS[way]))


# --- layers of one's own -----------------------------------------------------------------------


def test_own_layers_leave_nobody_and_are_each_clients(tmp_path: Path) -> None:
    settings = job(
        clients={"own_layers": ["1.*", "4.*"], "fraction": 1.0},
        model="parts:net",
        protection="dp_encrypt",
        evaluation={"clients": 0.25},
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    assert run.metrics[0]["bytes_up_per_client"] < 4 * (6 * 8 + 8) + 64
    states = ClientStates(run.folder)
    models = [client_model(run.job, run.model, states, client) for client in range(CLIENTS)]
    heads = [dict(model.named_parameters())["4.weight"] for model in models]
    shared = [dict(model.named_parameters())["0.weight"] for model in models]
    assert all(torch.equal(shared[0], other) for other in shared[1:])
    assert not any(torch.equal(heads[0], other) for other in heads[1:])
    task, test = make_task(run.job), load("parts:data").test
    found = np.mean([score(model, task, test.x, test.y).figures()["accuracy"] for model in models])
    assert run.metrics[-1]["accuracy"] == pytest.approx(found)
    _, tested = make_shares(run.job, load("parts:data"))
    assert tested is not None
    held = [load("parts:data").train.of(tested.of(client)) for client in range(CLIENTS)]
    own = [
        score(model, task, mine.x, mine.y).figures()["accuracy"]
        for model, mine in zip(models, held, strict=True)
    ]
    assert run.metrics[-1]["clients_mean"] == pytest.approx(np.mean(own))
    said = (run.folder / "events.log").read_text()
    assert "tensors that stay with each client: 1.weight, 1.bias" in said


def test_a_client_that_has_not_trained_is_tested_on_its_own_examples_alone(tmp_path: Path) -> None:
    """Two of four clients have trained. The models of the others have the initial layers."""
    settings = job(
        clients={"own_layers": ["bias"]},
        training={"lr": 0.01},
        evaluation={"clients": 0.5},
        rounds=1,
    )
    run = fedveil.simulate(settings, tmp_path / "run")
    states, data, task = ClientStates(run.folder), load("parts:data"), make_task(run.job)
    _, tested = make_shares(run.job, data)
    assert tested is not None
    own, common = [], []
    for client in range(CLIENTS):
        model = client_model(run.job, run.model, states, client)
        held = data.train.of(tested.of(client))
        own.append(score(model, task, held.x, held.y).figures()["accuracy"])
        common.append(score(model, task, data.test.x, data.test.y).figures()["accuracy"])
    trained, last = states.clients(), run.metrics[-1]
    assert len(trained) == 2
    assert last["clients_mean"] == pytest.approx(np.mean(own)) != np.mean(np.take(own, trained))
    assert last["clients_worst_tenth"] == pytest.approx(min(own))
    assert last["clients_spread"] == pytest.approx(np.std(own))
    assert last["accuracy"] == pytest.approx(np.mean(np.take(common, trained))) != np.mean(common)


def test_a_clients_own_layers_go_on_from_where_they_were() -> None:
    own = np.array([False, True, True])
    way = OwnLayers(own, np.array([0.0, 1.0, 2.0], np.float32))
    sent, change = np.array([5.0], np.float32), np.array([0.5, 0.25, -1.0], np.float32)
    start, correction = way.begin(sent, None)
    assert (start.tolist(), correction) == ([5.0, 1.0, 2.0], None)
    update, kept = way.update(sent, None, change, 1, 0.1), way.next(None, change, change[:1])
    assert (update.tolist(), kept.tolist()) == ([0.5], [1.25, 1.0])
    assert way.begin(sent, kept)[0].tolist() == [5.0, 1.25, 1.0]
    assert way.next(kept, change, update).tolist() == [1.5, 0.0]


def test_a_control_variate_moves_by_what_the_report_carried() -> None:
    """A buffer has no gradient: its variate stays 0."""
    way, change = Scaffold(np.array([True, False]), 0.5), np.array([0.6, 0.7], np.float32)
    sent, kept = np.array([1, 2, 0.25, -0.5], np.float32), np.array([0.125, 0], np.float32)
    start, correction = way.begin(sent, kept)
    assert (start.tolist(), correction.tolist()) == ([1, 2], [0.125, -0.5])
    assert way.begin(sent, None)[1].tolist() == [0.25, -0.5]
    update = way.update(sent, kept, change, 3, 0.2)
    np.testing.assert_allclose(update, [0.6, 0.7, -0.5 * (0.25 + 1.0), 0], rtol=1e-6)
    clipped = np.array([0.3, 0.35, -0.3, 0], np.float32)
    np.testing.assert_allclose(way.next(kept, change, clipped), [0.125 - 0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(way.next(None, change, clipped), [-0.6, 0], rtol=1e-6)


def test_feddyns_client_adds_what_the_report_carried_and_no_buffers() -> None:
    way, change = Dynamic(np.array([True, False]), 0.5), np.array([8, 8], np.float32)
    kept, clipped = np.array([0.25, 0], np.float32), np.array([2, 4], np.float32)
    assert way.begin(change, None)[1] is None
    correction = way.begin(change, kept)[1]
    assert correction is not None
    assert correction.tolist() == [-0.25, 0]
    assert way.next(kept, change, clipped).tolist() == [0.25 - 1.0, 0]
    assert way.next(None, change, clipped).tolist() == [-1.0, 0]


def test_a_pattern_without_a_tensor_is_named() -> None:
    with pytest.raises(ModelInvalid) as told:
        fedveil.simulate(job(clients={"own_layers": ["head.*"]}))
    assert str(told.value) == (
        "clients.own_layers: no tensor of the model matches 'head.*'. Its tensors are weight, bias"
    )


def test_class_weights_are_the_classes() -> None:
    with pytest.raises(ModelInvalid) as told:
        fedveil.simulate(job(training={"class_weights": [1.0, 2.0]}))
    assert str(told.value) == (
        "training.class_weights has 2 numbers, but the data has 3 classes. Use one number per class"
    )


def test_corrections_are_the_loops_wherever_the_model_trains(tmp_path: Path) -> None:
    settings = job(training={"algorithm": "scaffold", "device": "cpu"})
    trainer = make_trainer(settings, make_model(settings, ModelShape((6,), 3)))
    assert type(trainer) is LoopTrainer


def test_a_client_whose_layers_are_not_finite_keeps_those_it_had(tmp_path: Path) -> None:
    settings = job(clients={"own_layers": ["bias"]}, training={"lr": 1e38}, rounds=1)
    with pytest.raises(FedveilError, match="no report was usable"):
        fedveil.simulate(settings, tmp_path / "run")
    assert kept(tmp_path / "run") == []


# --- refusals ----------------------------------------------------------------------------------


def test_variates_travel_where_entries_need_not_be_alike() -> None:
    able = {name for name, position in POSITIONS.items() if position.takes_variates}
    assert able == set(POSITIONS) - {"signds", "rr", "oue"}
    assert problems("{training: {algorithm: scaffold}, protection: signds}") == [
        "training.algorithm = scaffold is refused under protection.name = signds, which treats "
        "all entries of a report alike, but control variates differ from updates: use "
        "not_encrypt or dp_encrypt or pw_encrypt or distributed_dp or central_gaussian, or feddyn "
        "or training.proximal, which report only updates"
    ]


@pytest.mark.parametrize("position", sorted(set(POSITIONS) - {"signds", "rr", "oue"}))
def test_variates_are_clipped_with_the_update(position: str) -> None:
    algorithm = {"algorithm": "scaffold"}
    settings = job(training=algorithm, protection=position, clients={"number": 100})
    layout, protection = prepared(settings)
    assert protection.dimension == 2 * layout.dimension


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "training: {algorithm: scaffold, optimizer: adam}",
            "training.optimizer = 'adam' is not 'sgd': training.algorithm = scaffold needs it",
        ),
        (
            "training: {algorithm: fednova}",
            "training.normal_steps is missing: training.algorithm = fednova needs it",
        ),
        (
            "{training: {algorithm: feddyn}, server: {lr: 0.5}}",
            "server.lr = 0.5 is not 1: training.algorithm = feddyn needs it",
        ),
        (
            "{training: {engine: vmap}, clients: {own_layers: [bias]}}",
            "clients.own_layers is refused together with training.engine = vmap",
        ),
    ],
)
def test_what_does_not_fit_is_refused(text: str, sentence: str) -> None:
    assert problems(text) == [sentence]


def test_a_state_that_is_not_finite_is_not_saved() -> None:
    saved: list[Any] = []
    made: Any = KeptTraining.__new__(KeptTraining)
    made._round, made._trained_last = 6, (3, np.array([1.0, 2.0]), np.array([4.0, 5.0]))
    made._rule = SimpleNamespace(next=lambda kept, change, carried: 2 * kept + change - carried)
    made._states = SimpleNamespace(save=lambda *given: saved.append(given))
    made.reported(3, np.array([0.5, np.inf]))
    assert saved == []
    made.reported(3, np.array([0.5, 0.25]))
    ((client, round, new),) = saved
    assert (client, round, new.tolist()) == (3, 6, [5.5, 8.75])
    with pytest.raises(AssertionError, match="in the order in which they train"):
        made.reported(4, np.array([0.5, 0.25]))


def test_a_round_ends_with_the_states_of_its_sum_and_the_newest_before_it(tmp_path: Path) -> None:
    states = ClientStates(tmp_path)
    folder = tmp_path / "clients"

    def held() -> set[str]:
        return {path.name for path in folder.iterdir()}

    saved = {"3-1", "3-3", "3-4", "13-2", "13-4", "7-1", "7-14"}
    for name in saved:
        client, round = map(int, name.split("-"))
        states.save(client, round, np.array([client, round], np.float32))
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    others = {"3-4.part", "3-4.old5", "a-4", "note"}
    for name in others:
        (folder / name).touch()
    assert states.clients() == [3, 7, 13]
    newest = [states.load(client, 4, 2) for client in (3, 13, 7, 1)]
    assert [None if kept is None else kept.tolist() for kept in newest] == [
        [3, 3], [13, 2], [7, 1], None,
    ]  # fmt: skip
    states.settle(4, {3})
    assert held() == saved - {"13-4"} | others
    states.forget_before(4)
    assert held() == {"3-4", "13-2", "7-1", "7-14"} | others
    states.forget_after(4)
    assert held() == {"3-4", "13-2", "7-1"} | others
    states.forget_after(3)
    assert held() == {"13-2", "7-1"} | others


def test_old_states_are_found_by_reading_the_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading for each client would take seconds after every round of thousands of clients."""
    states, read = ClientStates(tmp_path), list[str]()
    for client in range(20):
        states.save(client, 1, np.zeros(1, np.float32))
        states.save(client, 2, np.zeros(1, np.float32))
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, name: read.append(name) or glob(self, name))
    states.forget_before(2)
    assert len(read) == 1
    assert len(list((tmp_path / "clients").iterdir())) == 20


def test_a_round_reads_the_folder_of_states_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients train in several processes. Each of them has its own `ClientStates`."""
    mine, other = ClientStates(tmp_path), ClientStates(tmp_path)
    read, glob = list[str](), Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, name: read.append(name) or glob(self, name))
    for round in (1, 2, 3):
        read.clear()
        for client in range(20):
            states = mine if (client + round) % 2 else other
            kept = states.load(client, round, 1)
            assert (None if kept is None else kept.tolist()) == ([round - 1] if round > 1 else None)
            states.save(client, round, np.full(1, round, np.float32))
        assert len(read) == 2
    newest = mine.load(0, 1 << 62, 1)
    assert newest is not None
    assert newest.tolist() == [3]
    mine.settle(3, set())
    newest = mine.load(0, 1 << 62, 1)
    assert newest is not None
    assert newest.tolist() == [2]


def test_figures_of_several_models_are_averaged_each_in_its_place() -> None:
    assert _mean([0.5, 0.75, 4.0]) == 1.75
    assert _mean([[1, 2.5], [3, 0.5]]) == [2, 1.5]
    assert _mean([{"r2": "higher"}] * 2) == {"r2": "higher"}


def test_each_training_of_a_client_that_keeps_a_state_has_its_own_randomness() -> None:
    drawn: list[bytes] = []

    def of(client: int, entropy: Entropy) -> ClientData:
        drawn.append(bytes(entropy.words(4)))
        return ClientData.of(np.ones((3, 2), np.float32), np.zeros(3), entropy)

    row = np.ones((1, 4), np.float32)
    trainer: Any = SimpleNamespace(
        start=lambda weights, round: None, train=lambda clients: iter([(row, [None])])
    )
    states: Any = SimpleNamespace(load=lambda client, round, size: None)
    way = Dynamic(np.ones(4, np.bool_), 0.5)
    data: Any = SimpleNamespace(of=of)
    training = KeptTraining(job(), way, trainer, data, Seeded(3), states)
    for round in (1, 2):
        training.open(round, np.zeros(4, np.float32))
        assert [type(answer) for answer in training.updates([5, 8])] == [Trained] * 2
    assert len({*drawn}) == 4
