"""A party's fingerprint, seeds and statistics, and the parties that it tells of errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from fedveil.entropy import Seeded
from fedveil.errors import (
    ExchangeError,
    JobError,
    LimitReached,
    LinkLost,
    PeerAborted,
    PeerAtLimit,
    PeerRefused,
)
from fedveil.link.channel import Exchange, Send, drive_together
from fedveil.record.run_folder import RunFolder
from fedveil.vertical import VerticalJob, party_run
from fedveil.vertical import party as party_module
from fedveil.vertical.epsilon_limit import REACHED
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.party import Party, _Statistics
from fedveil.vertical.party_parts import (
    PartyParts,
    Setting,
    _fingerprint,
    _labelled,
    _returned,
    assemble,
    changed_since,
    set_aside,
)
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.rows import Order, Rows
from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel
from fedveil.vertical.step import Batch, Occasion
from fedveil.vertical.task import initial
from vertical_parts import Bottoms, UShape


def parties() -> dict[str, Party]:
    task = Bottoms()
    split = task.split_model()
    return {
        name: Party(name, split, loss=task.loss if name == "lead" else None, seed=5)
        for name in split.parties
    }


def test_a_fingerprint_is_of_all_that_a_resumed_run_needs_unchanged() -> None:
    def rows(count: int) -> Rows:
        return Rows(count, {}, None, np.arange(count))

    def found(agreed: int = 1, **changes: Any) -> str:
        held = {"train": rows(7), "test": rows(4)} | changes.pop("rows", {})
        base = {"party": "bank", "order_seed": 3, "split": Bottoms().split_model(), "rows": held}
        settings = [("epochs", agreed), ("batch_size", 9)][:: changes.pop("order", 1)]
        job = SimpleNamespace(agreed=lambda: dict(settings))
        return _fingerprint(SimpleNamespace(job=job, **base | changes))  # type: ignore[arg-type]

    wider = Bottoms()
    wider.width = 9
    others = [
        found(agreed=2), found(order_seed=4), found(party="shop"), found(split=wider.split_model()),
        found(rows={"train": rows(8)}), found(rows={"test": rows(5)}),
    ]  # fmt: skip
    assert found() == found() == found(order=-1)
    assert len({found(), *others}) == 1 + len(others)
    told = [changed_since(found(), other) for other in others]
    job, model, data = "another job", "another model", "other data"
    assert told == [job, job, f"{job} and {model}", model, data, data]
    assert changed_since(found(), found()) == ""
    everything = found(agreed=2, split=wider.split_model(), rows={"test": rows(5)})
    assert changed_since(everything, found()) == "another job and another model and other data"
    for edited in ("0" * 64, f"{found()} 0", found().replace(" ", "  "), ""):
        told = changed_since(edited, found())
        assert told == "another job, model or data, or by an earlier version of fedveil"


def test_a_share_set_aside_leaves_some_on_both_sides() -> None:
    def aside(share: float | None) -> int:
        return set_aside(VerticalJob(scoring={"calibration": share}), 21)

    assert [aside(None), aside(0.26), aside(0.95)] == [0, 5, 20]
    for share, count in ((0.02, 0), (0.98, 21)):
        with pytest.raises(JobError, match=f"sets {count} of 21 training examples aside"):
            aside(share)


def test_no_two_parties_drop_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def step(*given: object, seed: int, **more: object) -> None:
        seeds.append(seed)
        raise ExchangeError("the seed is known")

    monkeypatch.setattr(party_module, "Step", step)
    for number in (1, 2):
        for party in parties().values():
            with pytest.raises(ExchangeError, match="the seed is known"):
                next(party.step(number, Batch(np.arange(4), {})))
    assert len(set(seeds)) == len(seeds) == 6


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_part_is_at_rest_in_a_step_too(frozen: bool) -> None:
    party = Party("bank", UShape().split_model().replace("backbone", frozen=frozen))
    for training in (True, False):
        party._switch(training=training)
        assert party.modules["backbone"].training == (training and not frozen)


def test_a_part_whose_reports_are_sent_again_is_at_rest_after_the_first_epoch() -> None:
    """Its dropout and the statistics of its batches would change the reports otherwise."""
    reused = EmbeddingPrivacy(0.5, reuse=True)
    party = Party("bank", Bottoms().split_model().replace("left", privacy=reused))
    for settled in (False, True):
        party._context = party._contexts[settled]
        party._switch(training=True)
        assert party.modules["left"].training != settled


def test_who_ended_a_step_is_not_told_of_its_end() -> None:
    def failing(error: ExchangeError) -> Exchange[None]:
        raise error
        yield

    for error, told in (
        (ExchangeError("wrong"), ["bank", "shop"]), (PeerAborted("bank", "no"), ["shop"]),
    ):  # fmt: skip
        telling = parties()["lead"].announcing_failure(failing(error))
        seen: list[str] = []
        with pytest.raises(ExchangeError):
            seen.extend(request.peer for request in telling)
        assert seen == told


def test_a_statistic_that_moves_in_some_steps_is_put_back_after_each() -> None:
    module = nn.Module()
    for name in ("rare", "usual"):
        module.register_buffer(name, torch.zeros(2))
    statistics = _Statistics(module)
    for moves in (["rare", "usual"], ["usual"], ["usual"]):
        statistics.keep()
        for name in moves:
            module.get_buffer(name).add_(1)
    statistics.keep()
    for name in ("rare", "usual"):
        module.get_buffer(name).add_(7)
    statistics.put_back()
    assert (module.get_buffer("rare")[0], module.get_buffer("usual")[0]) == (1, 3)


def test_a_steps_seed_is_the_same_wherever_a_run_begins() -> None:
    whole = [parties()["bank"]._torch_seed(number) for number in range(1, 200)]
    one = parties()["bank"]
    assert [one._torch_seed(number) for number in range(1, 200)] == whole
    assert len(set(whole)) == 199
    assert not set(whole) & {parties()["shop"]._torch_seed(number) for number in range(1, 200)}
    resumed = parties()["bank"]
    assert [resumed._torch_seed(number) for number in (70, 71, 3, 130)] == [
        whole[number - 1] for number in (70, 71, 3, 130)
    ]


def test_a_lost_peer_does_not_keep_the_others_from_hearing_of_an_end() -> None:
    telling = parties()["lead"].end("wrong", at_limit=True)
    sent = [next(telling), telling.throw(LinkLost("bank is away"))]
    assert [each.peer for each in sent] == ["bank", "shop"]
    for each in sent:
        assert isinstance(each, Send)
        assert each.message == {"kind": "abort", "reason": "wrong", "at_limit": True}
    with pytest.raises(StopIteration):
        telling.throw(PeerRefused("shop refuses"))


def assembled(folder: Path, said: list[str], own_seed: int | None = None) -> PartyParts:
    """Return the bank's side of a run with the seed 3, whose private file is `said`."""
    task = Bottoms()
    split = task.split_model().replace("left", privacy=EmbeddingPrivacy(0.5))
    rows: Any = {subset: Rows(9, {}, None, np.arange(9)) for subset in ("train", "test")}
    setting = Setting(
        job=VerticalJob(task="vertical_parts:bottoms", seed=3), task=task, split=split, rows=rows,
        party="bank", entropy=Seeded(1), order_seed=0, own_seed=own_seed,
        folder=RunFolder(folder, None),  # type: ignore[arg-type]
    )  # fmt: skip
    log: Any = SimpleNamespace(note=said.append)
    return assemble(setting, log)


def test_a_party_on_its_own_machine_drops_values_by_its_own_seed(tmp_path: Path) -> None:
    """Whoever has the job would know which values are dropped if the job's seed chose them."""
    seeds = [assembled(tmp_path, [], own).party._torch_seed(1) for own in (None, 3, 4, 5)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3


def test_several_labels_of_an_example_are_not_charged_as_one() -> None:
    """LabelDP draws each label, and charges an example for one. Marvell compares two classes."""
    job = VerticalJob(task="vertical_parts:bottoms", privacy={"label_dp": {"eps": 1.0}})
    labels = torch.zeros((4, 2), dtype=torch.int64)
    rows = {"train": Rows(4, {}, labels, np.arange(4))}
    setting: Any = SimpleNamespace(job=job, rows=rows, task=Bottoms())
    why = r" needs one label for each example, .* has the shape \(2,\)$"
    with pytest.raises(JobError, match=f"^privacy.label_dp{why}"):
        _labelled(setting)
    setting.job = job.with_(privacy={"label_protection": {"name": "marvell"}})
    with pytest.raises(JobError, match=f"^privacy.label_protection.name = marvell{why}"):
        _returned(setting, is_leader=True)


def test_only_the_party_itself_reads_how_many_reports_are_zeros(tmp_path: Path) -> None:
    said: list[str] = []
    parts = assembled(tmp_path, said)
    (crossing,) = [each for each in parts.party.split.crossings if each.sender == "bank"]
    values = np.full((2, 8), np.nan, np.float32)
    parts.reports(crossing, values, Occasion("train", 0, 1, 0, np.arange(2)))
    assert said == ["2 of 2 examples are reported as zeros: the output of left for them is NaN"]


def test_parts_of_one_shape_begin_with_weights_of_their_own() -> None:
    before = torch.get_rng_state()
    drawn = [
        initial(seed, part, lambda: nn.Linear(4, 3)).weight
        for seed, part in ((5, "left"), (5, "right"), (6, "left"), (5, "left"))
    ]
    assert not any(torch.equal(drawn[0], other) for other in drawn[1:3])
    assert torch.equal(drawn[0], drawn[3])
    assert torch.equal(torch.get_rng_state(), before), "a user's own numbers are not drawn"


@pytest.mark.parametrize("own_seed", [None, 9])
def test_a_run_says_at_its_first_start_what_it_sends_and_how_far_it_gets(
    own_seed: int | None,
) -> None:
    """Only a party on a machine of its own sends ids."""
    told: list[str] = []
    noted: list[str] = []
    job = VerticalJob(task="vertical_parts:bottoms", epochs=7)
    log = SimpleNamespace(
        show_records=lambda: told.append("records"), say=told.append, event=noted.append,
        confide=lambda sentence: told.append(f"in private: {sentence}"),
    )  # fmt: skip
    counts = {"train": 50, "test": 23}
    rows = {name: SimpleNamespace(count=count, labels=None) for name, count in counts.items()}
    setting = SimpleNamespace(
        job=job, split=Bottoms().split_model(), rows=rows, own_seed=own_seed, task=Bottoms()
    )
    limit = SimpleNamespace(forecast=lambda epochs: f"not all of {epochs} epochs")
    run: Any = SimpleNamespace(
        setting=setting, name="bank", log=log, _has_told=False, _watch_labels=lambda: None, done=0,
        total=0, _parts=SimpleNamespace(order=Order(0, 50, 9), limit=limit),
    )  # fmt: skip
    for _ in range(2):  # the second time, a peer has restarted
        assert not list(PartyRun._train(run))
    bare = "The output of left leaves bank without protection."
    assert told == ["records", bare, "in private: not all of 7 epochs"]
    assert sum("23 held-out examples" in line for line in noted) == 2
    assert sum("ids, blinded" in line for line in noted) == (0 if own_seed is None else 2)


def test_a_calibration_is_charged_only_if_every_example_that_it_sends_allows_it() -> None:
    order = Order(4, 50, 9, aside=7)
    times, asked = np.zeros(50, np.int64), list[Any]()
    times[order.set_aside[3]], times[order.trained] = 4, 6

    def check(what: str, times: int, subset: str, positions: npt.NDArray[np.int64]) -> None:
        asked.append((what, times, subset, positions.tolist()))
        raise LimitReached("it is reached")

    charge: Any = lambda: pytest.fail("charged before the check")  # noqa: E731
    parts = SimpleNamespace(
        order=order,
        releases=SimpleNamespace(train=times, begin_calibration=charge),
    )  # fmt: skip
    setting = SimpleNamespace(rows={"train": None})
    run: Any = SimpleNamespace(_parts=parts, setting=setting, _check_limit=check)
    with pytest.raises(LimitReached):
        next(PartyRun._calibrate(run, 3))
    assert asked == [("calibration", 5, "train", order.set_aside.tolist())]


def test_a_calibration_sends_each_example_that_is_set_aside_once_as_no_other_report() -> None:
    order, looks, told = Order(4, 50, 3, aside=7), list[Any](), list[Any]()

    def look(number: int, batch: list[int], *, subset: str) -> Exchange[None]:
        looks.append((number, batch, subset))
        yield from ()

    run: Any = SimpleNamespace(
        _parts=SimpleNamespace(
            order=order,
            releases=SimpleNamespace(
                train=np.zeros(50, np.int64), begin_calibration=lambda: looks.append("charged")
            ),
        ),
        setting=SimpleNamespace(rows={"train": SimpleNamespace(batch=np.ndarray.tolist)}),
        party=SimpleNamespace(look=look), done=18, _check_limit=lambda *given: None,
        log=SimpleNamespace(record=lambda **named: told.append(named)),
        _window=SimpleNamespace(look_away=lambda: told.append("looked away")),
    )  # fmt: skip
    assert not list(PartyRun._calibrate(run, 5))
    aside = order.set_aside.tolist()
    assert looks == [
        "charged", (1, aside[:3], "calibration"), (2, aside[3:6], "calibration"),
        (3, aside[6:], "calibration"),
    ]  # fmt: skip
    assert told == [{"epoch": 5, "calibration": 18, "examples": 7}, "looked away"]


def test_a_calibrator_is_fitted_to_the_true_labels_of_the_examples_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under LabelDP, the party's own examples have other labels, which it trains on."""
    order, given = Order(4, 50, 3, aside=7), list[Any]()
    numbers = torch.arange(50)
    true, drawn = (
        Rows(50, {"x": numbers}, labels, np.arange(50)) for labels in (numbers, -numbers)
    )

    def look(number: int, batch: Batch, *, subset: str) -> Exchange[torch.Tensor]:
        yield from ()
        return batch.columns["x"].reshape(-1, 1) / 2

    def fitted(outputs: Any, labels: Any, criterion: str) -> Any:
        given.append((outputs.tolist(), labels.tolist(), criterion))
        return SimpleNamespace(written=lambda: b"fitted")

    monkeypatch.setattr(party_run.Calibrator, "fitted", fitted)
    folder = RunFolder.create(tmp_path / "run", "run", "fedveil vertical run")
    releases = SimpleNamespace(train=np.zeros(50, np.int64), begin_calibration=lambda: None)
    run: Any = SimpleNamespace(
        _parts=SimpleNamespace(order=order, releases=releases, rows={"train": drawn}),
        setting=SimpleNamespace(
            rows={"train": true}, folder=folder,
            job=SimpleNamespace(scoring=SimpleNamespace(threshold="f1")),
        ),
        party=SimpleNamespace(look=look), done=18, _check_limit=lambda *given: None,
        log=SimpleNamespace(record=lambda **named: None, note=lambda line: None),
        _window=SimpleNamespace(look_away=lambda: None),
    )  # fmt: skip
    assert not list(PartyRun._calibrate(run, 5))
    folder.close()
    aside = order.set_aside.tolist()
    assert given == [([[at / 2] for at in aside], aside, "f1")]


@pytest.mark.parametrize(
    ("party", "done", "left"), [("lead", 37, [24]), ("lead", 61, []), ("bank", 37, [])]
)
def test_a_resumed_leader_measures_the_steps_that_are_left(
    party: str, done: int, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    told: list[tuple[bool, bool]] = []

    def watch(*given: Any, tells_loss: bool, drawn: bool) -> None:
        steps.append(given[-1])
        told.append((tells_loss, drawn))

    monkeypatch.setattr(party_run, "LabelWatch", watch)
    split, job = SimpleNamespace(leader="lead"), VerticalJob(record={"followers_see_loss": False})
    setting = SimpleNamespace(split=split, job=job, task=SimpleNamespace(classes=3))
    gradients = SimpleNamespace(watch=None, returned=None)
    run: Any = SimpleNamespace(
        name=party, done=done, total=61, setting=setting, log=SimpleNamespace(confide=print),
        _parts=SimpleNamespace(gradients=gradients, label_loss=object()), _projection=lambda: (),
    )  # fmt: skip
    PartyRun._watch_labels(run)
    assert steps == left
    assert told == [(False, True)] * len(left)
    gradients.watch = object()
    PartyRun._watch_labels(run)  # a follower has restarted
    assert steps == left


@pytest.mark.parametrize("done", [0, 3])
@pytest.mark.parametrize("own", [True, False])
def test_a_limit_ends_a_run_that_has_done_a_step_and_is_an_error_before(
    own: bool, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[Any] = []
    private: list[str] = []
    limit = LimitReached("step 4 is too many") if own else PeerAtLimit("bank", "it is full")

    def steps() -> Exchange[None]:
        raise limit
        yield

    def end(reason: str, *, at_limit: bool) -> Exchange[None]:
        did.append(at_limit)
        yield from ()

    monkeypatch.setattr(party_run, "saved_steps", lambda folder: [2])
    watch = SimpleNamespace(run_ended=lambda: did.append("watch"))
    run: Any = SimpleNamespace(
        _train=steps, done=done, party=SimpleNamespace(end=end), setting=SimpleNamespace(folder=0),
        keep_account=lambda: did.append("account"), _checkpoint=lambda: did.append("checkpoint"),
        _finish=lambda: did.append("finish"),
        _parts=SimpleNamespace(gradients=SimpleNamespace(watch=watch)),
        log=SimpleNamespace(note=private.append),
    )  # fmt: skip
    run._train_or_stop = lambda: PartyRun._train_or_stop(run)
    told = [True] if own else []
    if done:
        assert not list(PartyRun.train(run))
        assert did == [*told, "watch", "checkpoint", "account", "finish"]
        assert run.stopped == (REACHED if own else str(limit))
        assert private == ["step 4 is too many"] * own
        return
    with pytest.raises(type(limit)):
        list(PartyRun.train(run))
    assert did == [*told, "account"]


def test_records_have_the_tasks_unit_and_the_metrics_that_can_be_plotted() -> None:
    told: list[Any] = []

    def evaluate() -> Exchange[dict[str, Any]]:
        yield from ()
        return {"accuracy": 0.5, "confusion": [[1, 2]]}

    run: Any = SimpleNamespace(
        setting=SimpleNamespace(task=SimpleNamespace(unit="tokens", units_per_example=16)),
        party=SimpleNamespace(sent_bytes=0, received_bytes=0, waited_s=0.0), evaluate=evaluate,
        _window=SimpleNamespace(figures=lambda *given: {"given": given}, look_away=print), done=12,
        _parts=SimpleNamespace(order=SimpleNamespace(steps=9)),
        log=SimpleNamespace(record=lambda **named: told.append(named)),
    )  # fmt: skip
    assert not list(PartyRun._evaluate(run, 4))
    assert told.pop() | {"seconds": 0} == {
        "epoch": 4, "look": 12, "test_accuracy": 0.5, "confusion": [[1, 2]], "seconds": 0
    }  # fmt: skip
    PartyRun._record_step(run, 3, 5)
    assert told == [{"epoch": 3, "step": 5, "steps": 9, "given": ("tokens", 16)}]
    assert run._window.kept["steps"] == 0


@pytest.mark.parametrize(("looks", "calibrations"), [(0, 0), (2, 0), (0, 1)])
def test_reports_of_all_that_was_sent_are_required(looks: int, calibrations: int) -> None:
    asked: list[tuple[str, str, int]] = []

    def require(crossing: Any, subset: str, count: int) -> None:
        asked.append((crossing.part, subset, count))

    reused = EmbeddingPrivacy(0.5, reuse=True)
    split = Bottoms().split_model().replace("left", privacy=reused).replace("right", privacy=reused)
    parts: Any = SimpleNamespace(
        releases=SimpleNamespace(examples=5), rows={"test": SimpleNamespace(count=4)},
        order=SimpleNamespace(aside=3), reports=SimpleNamespace(require=require),
        party=SimpleNamespace(split=split, name="bank"),
    )  # fmt: skip
    PartyParts.require_reports(parts, looks, calibrations)
    assert [each for each in asked if each[2]] == [
        ("left", "train", 5),
        *([("left", "test", 4)] if looks else []),
        *([("left", "calibration", 3)] if calibrations else []),
    ]


def test_an_example_that_trains_a_part_moves_the_bits_of_others() -> None:
    """A leader's gradient for one example alone: `what epsilon does not cover` on the page."""

    def second_bits(column: float, *, frozen: bool) -> npt.NDArray[np.bool_]:
        torch.manual_seed(0)
        x, everything = torch.randn(512, 4), np.arange(512)
        x[0] = torch.tensor([column, 0, 0, 0])
        own: Any = {"privacy": EmbeddingPrivacy(0.1), "optimizer": Optimizer("sgd", lr=1.0)}
        parts = [
            Part("bottom", "bank", ("data.x",), (8,), nn.Linear(4, 8), frozen=frozen, **own),
            Part("top", "shop", ("bottom",), (1,), nn.Linear(8, 1)),
        ]
        split, sent = SplitModel(parts, leader="shop"), list[Any]()

        def chosen(crossing: Any, gradient: torch.Tensor, *about: Any) -> torch.Tensor:
            return torch.zeros_like(gradient).index_fill(0, torch.tensor([0]), 100.0)

        def report(crossing: Any, values: npt.NDArray[np.float32], occasion: Any) -> Any:
            sent.append(values[1:] > 0)
            return np.packbits(values > 0)

        shop = Party("shop", split, loss=lambda out, labels: out.mean(), returned=chosen)
        bank = Party("bank", split, report=report)
        labelled, held = Batch(everything, labels=torch.zeros(512)), Batch(everything, {"x": x})
        for number in (1, 2):
            drive_together({"shop": shop.step(number, labelled), "bank": bank.step(number, held)})
        return sent[1]

    def moved(*, frozen: bool) -> float:
        either, other = (second_bits(column, frozen=frozen) for column in (-3.0, 3.0))
        return float((either != other).mean())

    assert moved(frozen=False) > 0.5
    assert moved(frozen=True) == 0
