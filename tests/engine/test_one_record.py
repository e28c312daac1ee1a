"""Under `privacy.unit: example` one record, whatever it is, moves an update by two clips at most.

The way is that of a deployed client, from its own function to its report, and the simulator's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset as TorchDataset

import fedveil
import record_parts
from fedveil.engine.assembly import (
    ModelShape,
    load_data,
    make_model,
    make_protection,
    report_entropy,
)
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.simulation import Simulator
from fedveil.errors import DataInvalid
from fedveil.federated.job import Job
from fedveil.flower.job import client_training
from fedveil.flower.job.client_training import Training, client_data, example_count
from fedveil.flower.job.example_shape import form_fields, shape_field
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.weight_layout import Layout
from fedveil.protections.always_answers import answer_trained
from fedveil.protections.base import ClientContext, Update
from fedveil.record.run_folder import RunFolder
from fedveil.rounds.outcomes import ClientId
from record_parts import CLASSES, EXAMPLES, KINDS, TOKENS, Kind
from round_parts import server_half

CLIP = 0.25
WHERE = 7
ALL = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


class Damaged(TorchDataset[Any]):
    """Items of which one cannot be read."""

    def __init__(self, x: list[Any], y: list[Any], where: int | None = None) -> None:
        self.x, self.y, self.where = x, y, where

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        if index == self.where:
            raise OSError("record 7 is damaged")
        return self.x[index], self.y[index]


def joined(records: list[Any]) -> Any:
    """Return the records as one array. A single odd record changes the type of all others."""
    try:
        return np.array(records)
    except (ValueError, OverflowError):
        array = np.empty(len(records), object)
        for i, record in enumerate(records):
            array[i] = record
        return array


def given_as(form: str, kind: Kind, x: list[Any], y: list[Any]) -> None:
    """Let the client's function give these training records."""
    train = {"arrays": lambda: (joined(x), joined(y)), "lists": lambda: (x, y)}
    if form == "dataset":
        lines = kind.y == "none"
        test: Any = np.array(kind.records(9, 2)[0]) if lines else Damaged(*kind.records(9, 2))
        record_parts.HELD["data"] = {
            "clients": {0: x if lines else Damaged(x, y)}, "test": test, "classes": classes_of(kind)
        }  # fmt: skip
        return
    (own_x, own_y), (test_x, test_y) = train[form](), kind.records(9, 2)
    parts = {"x_train": own_x, "x_test": np.array(test_x), "classes": classes_of(kind)}
    if kind.y != "none":
        parts |= {"y_train": own_y, "y_test": np.array(test_y)}
    if kind.task in ("regression", "multilabel"):
        del parts["classes"]
    record_parts.HELD["data"] = parts


def classes_of(kind: Kind) -> int | None:
    if kind.task in ("regression", "multilabel"):
        return None
    return TOKENS if kind.task == "next_token" else CLASSES


def job(kind: Kind, protection: str = "dp_encrypt") -> Job:
    blocks = {
        "dp_encrypt": {"dp_eps": 1.0, "dp_delta": 1e-6, "dp_norm_clip": CLIP},
        "distributed_dp": {
            "noise_multiplier": 1.0,
            "clip": CLIP,
            "reconstruct_secrets_threshold": 3,
        },
    }
    clients = 1 if protection == "dp_encrypt" else 5
    return Job(
        name="records",
        rounds=2,
        task=kind.task,
        clients={"number": clients, "fraction": 1.0},
        data={"name": "record_parts:data"},
        model=kind.model,
        training={"sampling_rate": 0.9, "batch_size": 4, "lr": 9.0, **dict(kind.training)},
        protection={"name": protection, protection: blocks[protection]},
        privacy={"unit": "example"},
        simulation={"workers": 0},
    )


def nothing_kept(client: ClientId) -> ClientStates:
    raise AssertionError("FedAvg keeps nothing of a client")


def no_job_data() -> Any:
    raise AssertionError("the client has examples of its own")


def deployed(settings: Job, shape: ModelShape) -> Update:
    """A client's update, through its answer: which is not one of zero in place of it."""
    weights = Layout(TrainedPart.of(make_model(settings, shape)).module).vector()
    assert isinstance(shape.example_shape, tuple)
    common = {
        "example_shape": shape_field(shape.example_shape),
        "classes": shape.classes,
        "fingerprint": "",
        **form_fields(shape),
        "weights": weights,
        "dimension": len(weights),
        "round": 1,
    }
    client_training._seen_before.clear()
    protection = make_protection(settings, len(weights))
    training, found = Training(settings, common, nothing_kept, no_job_data), []

    def half(examples: int) -> Any:
        entropy = report_entropy(settings).stream("report", 1, 0)
        return protection.client_round(ClientContext(0, 1, weights, examples, entropy))

    def train() -> tuple[Update, int]:
        update, examples = training.update(0, settings.data.name)
        assert examples == EXAMPLES == example_count(settings, 0, settings.data.name, no_job_data)
        found.append(update.copy())
        return update, examples

    if protection.flow[0] != protection.trains:
        return train()[0]
    opening = server_half(protection, [0], weights, number=1).opening()
    assert answer_trained(protection, half, lambda: half(1), opening, train).unusable is None
    return found[0]


def simulated(settings: Job, folder: Path) -> Update:
    """The update of the simulator's only client."""
    dataset, engine = load_data(settings), Simulator()
    settings, shape = engine.settle(settings, dataset), ModelShape.of(dataset)
    weights = Layout(TrainedPart.of(make_model(settings, shape)).module).vector()
    engine.try_out(settings, shape, RunFolder.create(folder / "trial"))
    executor = engine._executor(settings, shape, len(weights), folder, print)
    executor._side.model[:] = weights  # type: ignore[attr-defined]
    executor._side.open(1)  # type: ignore[attr-defined]
    (trained,) = executor._side._training.updates([0])  # type: ignore[attr-defined]
    return trained.update.copy()  # type: ignore[no-any-return]


def shape_of_job(settings: Job) -> ModelShape:
    return ModelShape.of(load_data(settings))


class Pair:
    """A kind's job, and the update of its records as they are."""

    def __init__(self, kind: Kind, form: str = "lists", protection: str = "dp_encrypt") -> None:
        self.kind, self.form = kind, form
        self.x, self.y = kind.records(EXAMPLES, 1)
        self.settings = job(kind, protection)
        given_as(form, kind, self.x, self.y)
        self.shape = shape_of_job(self.settings)
        self.update = deployed(self.settings, self.shape)
        assert np.linalg.norm(self.update) > 2.5 * CLIP  # one of zeros is told from it

    def put(self, **odd: Any) -> None:
        """Let the client's function give the records with one replaced."""
        x, y = [*self.x], [*self.y]
        x[WHERE], y[WHERE] = odd.get("x", x[WHERE]), odd.get("y", y[WHERE])
        given_as(self.form, self.kind, x, y)

    def with_record(self, **odd: Any) -> Update:
        """The update with this in place of a record, or of its x or y alone."""
        self.put(**odd)
        found = deployed(self.settings, self.shape)
        moved = np.linalg.norm(found.astype(np.float64) - self.update)
        assert moved <= 2 * CLIP, (odd, moved)
        return found


pair_of = cache(lambda name, form, protection: Pair(KINDS[name], form, protection))


def odd_x(kind: Kind) -> dict[str, Any]:
    """Inputs that a record may come with."""
    whole = np.asarray(kind.records(1, 1)[0][0])
    some = np.array(whole, np.float64)
    numbers = {
        "nan": math.nan, "inf": math.inf, "minus inf": -math.inf, "huge": 3e38, "huger": 1e300,
        "2^24+1": float(2**24 + 1), "2^63": 2.0**63, "half": 0.5, "minus one": -1.0,
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, number in numbers.items():
        found[name] = some.copy()
        found[name].flat[2] = number
        found[f"all {name}"] = np.full_like(some, number)
    beyond = np.full(whole.shape, 2**63 - 1, np.int64)
    texts, holes = some.astype(object), some.astype(object)
    texts.flat[1], holes.flat[1] = "abc", None
    odd = {
        "2^63-1": beyond, "text inside": texts, "hole": holes, "none": None, "text": "abc",
        "empty": [], "longer": [*some, *some], "shorter": some[:-1], "mapping": {"a": 1},
        "object": object(), "uneven": [[1.0], [1.0, 2.0]], "a number": 4.0, "complex": some + 1j,
        "duration": np.full(whole.shape, 3, "m8"),
    }  # fmt: skip
    return found | odd


ODD_Y: dict[str, Any] = {
    "minus one": -1, "ignored": -100, "beyond": 3, "far": 2**31, "2^24+1": 2**24 + 1,
    "2^63-1": 2**63 - 1, "2^70": 2**70, "nan": math.nan, "inf": math.inf, "huge": 3e38,
    "half": 0.5, "none": None, "text": "abc", "empty": [], "longer": [0] * 9, "object": object(),
}  # fmt: skip


FORMS = ("lists", "arrays", "dataset")
#: Each kind in each form. The suite takes each kind in one form, and the slow tests in the others.
GIVEN = [
    pytest.param(kind, form, id=f"{name}, {form}", marks=[pytest.mark.slow] * (i % 3 != j))
    for i, (name, kind) in enumerate(KINDS.items())
    for j, form in enumerate(FORMS)
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("kind", "form"), GIVEN)
def test_one_record_moves_an_update_by_two_clips_at_most(kind: Kind, form: str) -> None:
    pair = Pair(kind, form)
    for x in odd_x(kind).values():
        pair.with_record(x=x)
    for y in ODD_Y.values() if kind.y != "none" else ():
        pair.with_record(y=y)
        if kind.y in ("tokens", "rows", "bits"):
            pair.with_record(y=[y, *pair.y[WHERE][1:]])


@ALL
def test_whatever_is_wrong_with_a_record_it_counts_for_nothing(kind: Kind) -> None:
    """The bytes are the same: nothing tells what was wrong, or which type the whole array has.

    Each form meets a third of what may be wrong, and in the next kind the next third.
    """
    whole = odd_x(kind)
    wrong = ["nan", "inf", "all huger", "none", "text", "empty", "longer", "shorter", "hole"]
    wrong += ["half", "minus one"] if kind.x == "tokens" else []
    odd: list[dict[str, Any]] = [{"x": whole[name]} for name in wrong]
    if kind.y != "none":
        odd += [{"y": y} for y in (math.nan, None, "abc", [])]
    if kind.task == "classification":
        odd += [{"y": y} for y in (-1, -100, CLASSES, 2**63 - 1)]
    updates, turn = set(), [*KINDS.values()].index(kind)
    for number, form in enumerate(FORMS):
        pair = Pair(kind, form)
        updates |= {pair.with_record(**one).tobytes() for one in odd[(number + turn) % 3 :: 3]}
    assert len(updates) == 1
    assert pair.update.tobytes() not in updates


@pytest.mark.parametrize("protection", ["dp_encrypt", "distributed_dp"])
@given(data=st.data())
@settings(max_examples=60)
def test_any_record_in_any_place_of_any_kind(protection: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(KINDS)))
    form = data.draw(st.sampled_from(FORMS))
    number = st.one_of(st.floats(), st.integers(-(2**70), 2**70), st.none(), st.text(max_size=3))
    anything = st.one_of(number, st.lists(number, max_size=8), st.lists(st.floats(), min_size=5))
    pair = pair_of(name, form, protection)
    change = {"x": data.draw(anything)} | ({} if name == "lines" else {"y": data.draw(anything)})
    for only in ("x", "y"):
        if only in change and data.draw(st.booleans()):
            del change[only]
    pair.with_record(**change)


@ALL
def test_the_simulator_gives_what_a_deployed_client_gives(kind: Kind, tmp_path: Path) -> None:
    odd = odd_x(kind)
    for number, change in enumerate((None, "nan", "all huge", "2^63-1", "none", "longer", "text")):
        pair = Pair(kind, "arrays")
        if change is not None:
            pair.put(x=odd[change])
        folder = tmp_path / str(number)
        folder.mkdir()
        here = simulated(pair.settings, folder)
        assert here.tobytes() == deployed(pair.settings, pair.shape).tobytes()


def test_a_whole_simulation_says_how_many_count_for_nothing(tmp_path: Path) -> None:
    pair = Pair(KINDS["closed form"], "arrays")
    pair.put(x=odd_x(pair.kind)["nan"], y=-1)
    run = fedveil.simulate(pair.settings, tmp_path / "run")
    assert [(r["reports"], r["unusable"], r["failed"]) for r in run.metrics] == [(1, {}, {})] * 2
    said = f"1 of {EXAMPLES} training examples have no effect, starting with example {WHERE}"
    assert said in (run.folder / "events.log").read_text()


def test_a_client_is_told_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(KINDS["fixed layers"])
    with caplog.at_level(logging.WARNING, "flwr"):
        pair.with_record(x=odd_x(pair.kind)["all huge"])  # which the fixed layers raise for
    said = f"1 of {EXAMPLES} training examples have no effect, starting with example {WHERE}"
    assert said in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "flwr"):
        pair.with_record()
    assert not caplog.text


def test_the_head_is_checked_on_nobodys_example() -> None:
    """The first record is no more than any other."""
    pair = Pair(KINDS["fixed layers"])
    shape = torch.Size([EXAMPLES, record_parts.FEATURES])
    x = np.zeros(shape, np.float32)
    x[0] = 1e9  # which the fixed layers raise for
    part = TrainedPart.of(make_model(pair.settings, pair.shape))
    _, usable = part.usable_inputs(x, np.ones(EXAMPLES, np.bool_))
    assert np.flatnonzero(~usable).tolist() == [0]


@pytest.mark.parametrize("odd", ["none", "text", "hole", "longer"])
def test_no_digit_of_a_long_id_depends_on_another_record(odd: str) -> None:
    """One odd record makes NumPy's array one of objects. No float64 holds these ids."""
    kind, updates = Kind("record_parts:hashed", x="long ids"), set()
    for form in FORMS:
        pair = Pair(kind, form)
        updates.add((pair.update.tobytes(), pair.with_record(x=odd_x(kind)[odd]).tobytes()))
    assert len(updates) == 1


def test_a_record_does_not_decide_whether_a_run_begins(tmp_path: Path) -> None:
    """All of a client's batch, of one example, is a token that the model does not have."""
    pair = Pair(KINDS["table"], "arrays")
    engine, folder = Simulator(), RunFolder.create(tmp_path / "run")
    x = np.full((EXAMPLES, 6), TOKENS)
    record_parts.HELD["data"]["x_train"] = x
    dataset = load_data(pair.settings)
    settings = engine.settle(pair.settings, dataset)
    engine.try_out(settings, ModelShape.of(dataset), folder)


def test_an_item_that_cannot_be_read_counts_for_nothing() -> None:
    pair = Pair(KINDS["dropout"], "dataset")
    without = pair.with_record(x=None)
    record_parts.HELD["data"]["clients"][0].where = WHERE
    assert deployed(pair.settings, pair.shape).tobytes() == without.tobytes()


class DamagedList(list[Any]):
    """A sequence of the user's, of which one record cannot be read."""

    def __getitem__(self, index: Any) -> Any:
        if index == WHERE:
            raise OSError("a damaged file")
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))


def test_a_record_of_a_sequence_that_cannot_be_read_counts_for_nothing() -> None:
    pair = Pair(KINDS["dropout"], "lists")
    without = pair.with_record(x=None)
    x = record_parts.HELD["data"]["x_train"]
    record_parts.HELD["data"]["x_train"] = DamagedList(x)
    assert deployed(pair.settings, pair.shape).tobytes() == without.tobytes()


def test_what_is_no_record_s_doing_is_refused_as_before() -> None:
    """The structure, and a function that raises, whatever the records are."""
    pair = Pair(KINDS["closed form"], "arrays")
    whole = record_parts.HELD["data"]
    refusals = {
        "has dtype float64 and shape": {"x_train": np.zeros((EXAMPLES, 2))},
        "the numbers must be equal": {"y_train": np.zeros(3, np.int64)},
        "has several inputs": {"x_train": {"a": np.zeros((EXAMPLES, 5))}},
        "y_train is None": {"y_train": None},
        "is not an array": {"x_train": 5.0},
    }
    for sentence, change in refusals.items():
        record_parts.HELD["data"] = whole | change
        with pytest.raises((DataInvalid, TypeError), match=sentence):
            deployed_alone(pair)
    del record_parts.HELD["data"]
    with pytest.raises(DataInvalid, match="the function raised KeyError"):
        deployed_alone(pair)


def deployed_alone(pair: Pair) -> Any:
    shape = pair.shape
    form = client_training.Form(shape.example_shape, "class", shape.classes)  # type: ignore[arg-type]
    return client_data(pair.settings, 0, pair.settings.data.name, no_job_data, form)


def test_the_test_examples_of_a_client_are_not_looked_at() -> None:
    pair = Pair(KINDS["closed form"], "arrays")
    record_parts.HELD["data"] |= {"x_test": math.nan, "y_test": None, "classes": 1}
    assert deployed(pair.settings, pair.shape).tobytes() == pair.update.tobytes()


def test_the_largest_private_label_makes_no_class() -> None:
    kind = KINDS["closed form"]
    pair = Pair(kind, "arrays")
    pair.put(y=CLASSES)
    del record_parts.HELD["data"]["classes"]
    dataset = load_data(pair.settings)
    assert dataset.classes == CLASSES
    assert np.flatnonzero(~dataset.train.usable).tolist() == [WHERE]  # type: ignore[operator]
    torch.testing.assert_close(dataset.train.y[WHERE], 0)
