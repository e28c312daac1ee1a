"""How good the model is for each client, on what it does not train on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import fedveil
import parts
import record_parts
from fedveil.attacks.target import Target
from fedveil.data.examples import Examples
from fedveil.data.partition import Partition, held_out, iid
from fedveil.engine.assembly import ModelShape, load_data, make_model, make_partition, make_shares
from fedveil.engine.client_evaluation import CLIENTS, ClientTest, HeldOut, summary
from fedveil.engine.simulation import Simulator
from fedveil.entropy import Seeded
from fedveil.errors import DeploymentError, InvalidValue, TaskInvalid
from fedveil.flower.job.deploy import deployable
from fedveil.learning.evaluate import score
from fedveil.learning.learning_task import find
from fedveil.learning.trained_part import TrainedPart, only_head
from fedveil.pages import curves
from fedveil.pages.read_run import read_run
from fedveil.pages.run_summary import ending


def job(**change: Any) -> fedveil.Job:
    settings: dict[str, Any] = {
        "rounds": 2, "clients": {"number": 8, "fraction": 0.5}, "model": "parts:plain",
        "data": {"name": "parts:data", "split": "by_client"}, "evaluation": {"clients": 0.2},
        "training": {"epochs": 1, "batch_size": 10}, "simulation": {"workers": 0},
    }  # fmt: skip
    return fedveil.Job(**{**settings, **change})


def test_a_share_of_each_client_is_held_out_and_no_example_is_in_both() -> None:
    whole = iid(103, 10, Seeded(1))
    trained, tested = held_out(whole, 0.25, Seeded(2))
    assert tested.sizes.tolist() == [round(0.25 * n) for n in whole.sizes]
    for client in range(10):
        both = [*trained.of(client), *tested.of(client)]
        assert sorted(both) == list(whole.of(client))
    assert held_out(whole, 0.25, Seeded(3))[1].of(0).tolist() != tested.of(0).tolist()


def test_every_client_trains_on_something() -> None:
    trained, tested = held_out(iid(5, 3, Seeded(1)), 0.9, Seeded(2))
    assert trained.sizes.tolist() == [1, 1, 1]
    assert sorted(tested.sizes) == [0, 1, 1]
    with pytest.raises(
        InvalidValue, match=r"evaluation\.clients needs a client with at least two examples"
    ):
        held_out(iid(3, 3, Seeded(1)), 0.5, Seeded(2))


def test_the_worst_tenth_is_that_of_the_figure() -> None:
    each = np.array([0.9] * 10 + [0.1, math.nan])
    assert summary(each, "higher")["clients_worst_tenth"] == pytest.approx(0.5)
    assert summary(each, "lower")["clients_worst_tenth"] == pytest.approx(0.9)
    assert summary(each, "higher")["clients_mean"] == pytest.approx(9.1 / 11)
    assert summary(each, "higher")["clients_spread"] == pytest.approx(np.std(each[:11]))
    assert math.isnan(summary(each[11:], "higher")["clients_mean"])


@pytest.mark.parametrize(
    ("known", "missing", "lowest", "highest"),
    [(9, 5, 1.0, 81.0), (11, 10, 2.5, 110.5), (20, 1, 2.5, 380.5), (21, 30, 14 / 3, 1202 / 3)],
)
def test_a_tenth_of_the_clients_with_a_figure_is_rounded_up(
    known: int, missing: int, lowest: float, highest: float
) -> None:
    """The figures are 1, 4, 9 and so on, in another order, among clients without one."""
    squares = np.arange(1.0, known + 1) ** 2
    each = Seeded(6).generator().permutation(np.append(squares, np.full(missing, math.nan)))
    assert summary(each, "higher")["clients_worst_tenth"] == pytest.approx(lowest)
    assert summary(each, "lower")["clients_worst_tenth"] == pytest.approx(highest)


def test_without_a_usable_held_out_example_the_figures_are_undefined() -> None:
    """One invalid record may make this true, and must not end the run."""
    data = load_data(job()).train
    none = Partition(np.zeros(0, np.int64), np.zeros(4, np.int64))
    held = HeldOut(replace(data, usable=np.zeros(len(data), np.bool_)), none)
    part = TrainedPart.of(nn.Linear(parts.FEATURES, parts.CLASSES))
    found = ClientTest(part, find("classification"), held, "cpu").quality()
    assert list(found) == [*CLIENTS]
    assert all(map(math.isnan, found.values()))


def test_a_client_without_held_out_examples_has_no_figure() -> None:
    task, model = find("classification"), nn.Linear(parts.FEATURES, parts.CLASSES)
    data = load_data(job()).train
    rows, offsets = np.array([5, 3, 8, 9, 2]), np.array([0, 2, 2, 5])
    held = HeldOut(data, Partition(rows, offsets))
    tested = ClientTest(TrainedPart.of(model), task, held, "cpu")
    figures = [tested.figure(client) for client in range(3)]
    for figure, own in ((figures[0], rows[:2]), (figures[2], rows[2:])):
        assert figure == score(model, task, data.x[own], data.y[own]).figures()["accuracy"]
    assert math.isnan(figures[1])
    assert tested.quality() == summary(np.array(figures), "higher")


@pytest.mark.parametrize("masked", [True, False])
def test_the_worst_tenth_follows_the_task_and_each_row_has_its_own_target(masked: bool) -> None:
    task, model = find("regression"), nn.Linear(parts.FEATURES, 1)
    data = load_data(job()).train
    rows, offsets = np.array([5, 3, 8, 9, 2, 30]), np.array([0, 2, 5, 6])
    y = (np.arange(len(data)) % 7).astype(np.float32)[:, None] ** 2
    usable = np.isin(np.arange(len(data)), rows) if masked else None
    held = HeldOut(replace(data, y=y, usable=usable), Partition(rows, offsets))
    tested = ClientTest(TrainedPart.of(model), task, held, "cpu")
    each = [
        float(score(model, task, data.x[own], y[own]).figures()["rmse"])
        for own in np.split(rows, offsets[1:-1])
    ]
    assert [tested.figure(client) for client in range(3)] == pytest.approx(each)
    found = tested.quality()
    assert found["clients_mean"] == pytest.approx(np.mean(each))
    assert found["clients_worst_tenth"] == pytest.approx(max(each))


def test_an_unusable_example_is_not_tested_and_is_part_of_the_fingerprint() -> None:
    dataset = load_data(job())
    usable = np.arange(len(dataset.train)) % 3 > 0
    engine = Simulator()
    engine.settle(job(), replace(dataset, train=replace(dataset.train, usable=usable)))
    held = engine.held_out()
    assert held is not None
    assert usable[held.shares.indices].all()
    assert 0 < len(held.shares.indices) < 48
    assert [*engine.identify()][-1] is usable


def apart(change: Any) -> ClientTest:
    """A test of the clients under the unit example, after a `change` of the training targets."""
    unit = {"sampling_rate": 0.9, "batch_size": 10}
    settings = job(privacy={"unit": "example"}, training=unit)
    dataset, engine = load_data(settings), Simulator()
    dataset = replace(dataset, train=replace(dataset.train, y=change(dataset.train.y)))
    engine.settle(settings, dataset)
    held = engine.held_out()
    assert held is not None
    model = make_model(settings, ModelShape.of(dataset))
    return ClientTest(TrainedPart.of(model), find("classification"), held, "cpu")


def test_an_example_that_the_model_raises_for_has_no_effect_on_a_client_s_figure() -> None:
    """The others are tested as if it were unusable, and the run does not end."""
    test = apart(np.copy)
    held, whole = test._held, test.quality()
    for row in held.shares.indices:  # one that makes a difference
        rest = HeldOut(held.examples, held.shares.only(np.arange(len(held.examples)) != row))
        expected = ClientTest(test._part, find("classification"), rest, "cpu").quality()
        if expected != whole:
            break

    def beyond(y: Any) -> Any:
        y = y.copy()
        y[row] = 99  # a class for which the model has no score
        return y

    assert apart(beyond).quality() == expected != whole
    none = apart(lambda y: y + 99).quality()
    assert all(math.isnan(value) for value in none.values())
    other = replace(held.examples, usable=None, y=beyond(held.examples.y))
    with pytest.raises(IndexError):  # without the guarantee the error is told
        ClientTest(test._part, find("classification"), HeldOut(other, held.shares), "cpu").quality()


def test_an_example_that_the_fixed_layers_raise_for_has_no_effect_on_a_client_s_figure() -> None:
    x = np.random.default_rng(0).normal(size=(12, record_parts.FEATURES)).astype(np.float32)
    x[4] = 1e9  # which the fixed layers raise for
    examples = Examples(x, np.arange(12) % 3, np.ones(12, np.bool_))
    part = TrainedPart.of(only_head(record_parts.frozen()))
    shares = Partition(np.arange(12), np.array([0, 6, 12]))
    task = find("classification")
    found = ClientTest(part, task, HeldOut(examples, shares), "cpu").quality()
    rest = shares.only(np.arange(12) != 4)
    assert found == ClientTest(part, task, HeldOut(examples, rest), "cpu").quality()


def test_a_run_records_and_shows_what_clients_have_of_its_model(tmp_path: Path) -> None:
    settings = job()
    run = fedveil.simulate(settings, tmp_path / "run")
    data = load_data(settings)
    _, tested = make_shares(settings, data)
    other = make_shares(settings.with_({"seed": 5}), data)[1]
    assert tested is not None
    assert other is not None
    assert sorted(tested.indices) != sorted(other.indices)
    task = find("classification")
    each = []
    for client in range(8):
        rows = tested.of(client)
        scores = score(run.model, task, data.train.x[rows], data.train.y[rows])
        each.append(scores.figures()["accuracy"])
    last = run.metrics[-1]
    assert last["clients_mean"] == pytest.approx(np.mean(each))
    assert last["clients_worst_tenth"] == pytest.approx(min(each))
    assert last["clients_spread"] == pytest.approx(np.std(each))
    read = read_run(tmp_path / "run")
    assert f"on the clients' own data: mean {last['clients_mean']:.1%}" in ending(read).quality.text
    names = [plot.name for plot in curves.at_clients({"run": read})]
    assert names == ["clients_mean", "clients_worst_tenth", "clients_spread"]
    assert fedveil.resume(tmp_path / "run", rounds=2).metrics[-1] == last


def test_nobody_trains_on_what_is_held_out_and_an_attack_knows(tmp_path: Path) -> None:
    settings = job()
    data = load_data(settings)
    split = make_partition(settings, data)
    assert len(split.indices) == 192
    target = Target.of(settings)
    assert len(target.dataset.train) == 192
    for client in range(8):
        mine = target.dataset.train.x[target.rows(client)]
        assert np.array_equal(mine, data.train.x[split.of(client)])


def test_without_it_nothing_is_held_out(tmp_path: Path) -> None:
    settings = job(evaluation={"clients": 0.0}, rounds=1)
    assert len(make_partition(settings, load_data(settings)).indices) == 240
    assert "clients_mean" not in fedveil.simulate(settings, tmp_path / "run").metrics[-1]


def test_what_would_leave_clients_without_a_line_of_the_ledger_is_refused() -> None:
    with pytest.raises(DeploymentError, match=r"evaluation.clients = 0.2: on other machines each"):
        deployable(job())


def test_a_task_without_figures_is_refused(tmp_path: Path) -> None:
    bare = job(
        task="task_parts:Bare", data={"name": "task_parts:slope"}, model="task_parts:linear"
    )  # fmt: skip
    with pytest.raises(TaskInvalid, match="needs a figure per client"):
        fedveil.simulate(bare, tmp_path / "run")
