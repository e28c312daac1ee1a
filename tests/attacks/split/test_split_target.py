"""A target names exactly the tensors that the receiver gets in a real step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.attacks.split.split_target import SplitTarget
from fedveil.errors import AttackImpossible, RunFolderError
from fedveil.record.sealed_message import unsealed
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.blocks import PrivacySettings
from fedveil.vertical.crossing import fields_of, tensor_message
from fedveil.vertical.rows import Order
from fedveil.vertical.schedule import Transfer
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.step import Step
from vertical_parts import Joint

SIZE = 10
AT = np.arange(SIZE)


def job(**settings: Any) -> VerticalJob:
    settings = {"task": {"name": "vertical_parts:bottoms"}, "batch_size": SIZE, **settings}
    return VerticalJob(**{"epochs": 1, "seed": 4, "evaluation": {"every_epochs": None}, **settings})


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, torch.Tensor]]:
    """Every tensor that any party receives in a run, with the number of its step."""
    heard: list[tuple[int, str, torch.Tensor]] = []
    arrive = Step._arrive

    def listening(self: Step, transfer: Any, message: Any) -> None:
        arrive(self, transfer, message)
        part, micro = transfer.crossing.part, transfer.micro
        if transfer.gradient:
            tensor = self._returned[part, transfer.crossing.receiver, micro]
        else:
            tensor = self._leaves[part, micro]
        name = part + (".grad" if transfer.gradient else "")
        heard.append((self.number, name, tensor.detach().clone()))

    monkeypatch.setattr(Step, "_arrive", listening)
    return heard


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize(
    "privacy",
    [{}, {"embedding_dp": {"eps": None}}, {"embedding_dp": {"eps": 2.0}, "label_dp": {"eps": 0.5}}],
    ids=["plain", "bits", "private"],
)
def test_the_first_step_of_a_run_sends_what_the_target_says(
    privacy: dict[str, Any],
    in_flight: int,
    arrivals: list[tuple[int, str, torch.Tensor]],
    tmp_path: Path,
) -> None:
    run = job(privacy=privacy, in_flight=in_flight)
    target = SplitTarget.of(run)
    positions = Order(run.seed, target.examples, SIZE).of_step(1)
    crossed = target.crossed(positions)
    arrivals.clear()
    train(run, tmp_path / "run")
    for part in ("left", "right"):
        real = torch.cat([t for step, name, t in arrivals if step == 1 and name == part])
        assert torch.equal(crossed.outputs[part], real)
        back = torch.cat([t for step, name, t in arrivals if step == 1 and name == f"{part}.grad"])
        assert torch.equal(crossed.gradients[part], back)


def test_gradients_of_two_readers_add_up() -> None:
    embedding, head = nn.Linear(3, 2), Joint(4, 2)
    split = SplitModel([
        Part("embedding", "lead", ("data.x",), (2,), embedding),
        Part("left", "bank", ("embedding",), (2,), nn.Linear(2, 2)),
        Part("right", "shop", ("embedding",), (2,), nn.Linear(2, 2)),
        Part("head", "lead", ("left", "right"), (2,), head),
    ], leader="lead")  # fmt: skip
    heard: list[Any] = []
    parts = {"bank": torch.ones(3, 2), "shop": torch.arange(6.0).reshape(3, 2)}
    for crossing in split.crossings:
        if crossing.part == "embedding":
            for micro, rows in enumerate((slice(0, 2), slice(2, 3))):
                transfer = Transfer(crossing, micro, gradient=True)
                fields = fields_of(transfer, parts[crossing.receiver][rows])
                message = tensor_message(transfer, fields, training=True, step=1)
                heard.append((crossing.receiver, message))
    target: Any = SimpleNamespace(split=split)
    crossed = SplitTarget._arrived(target, heard, 1, (2, 1))
    assert torch.equal(crossed.gradients["embedding"], parts["bank"] + parts["shop"])
    assert not crossed.outputs


def test_nothing_is_learnt_and_other_steps_draw_other_reports() -> None:
    target = SplitTarget.of(job(privacy={"embedding_dp": {"eps": 1.0}}))
    before = target.split.joined().state_dict()
    before = {name: tensor.clone() for name, tensor in before.items()}
    reports = target.outputs("left", AT, reports=2)
    assert reports.shape == (2, SIZE, 8)
    assert not torch.equal(reports[0], reports[1])
    assert torch.equal(target.outputs("left", AT)[0], reports[0])
    assert torch.equal(target.crossed(AT).outputs["left"], reports[0]), "a run's first report"
    after = target.split.joined().state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_another_privacy_block_leaves_the_weights_as_they_are() -> None:
    target = SplitTarget.of(job())
    with torch.no_grad():
        for weight in target.split.joined().parameters():
            weight.add_(0.5)  # as a run has left them
    other = target.under(job(privacy={"embedding_dp": {"eps": 1.0}}).privacy)
    assert other.job.privacy.embedding_dp is not None
    kept, known = (one.split.joined().state_dict() for one in (other, target))
    assert kept.keys() == known.keys()
    assert all(torch.equal(kept[name], known[name]) for name in known)


def test_a_report_that_is_reused_is_repeated_and_paid_once() -> None:
    dp = {"eps": 1.0, "gradient": "none", "reuse": True}
    target = SplitTarget.of(job(privacy={"embedding_dp": dp}))
    reports = target.outputs("left", AT, reports=3)
    assert torch.equal(reports[0], reports[1])
    assert torch.equal(reports[0], reports[2])
    assert target.promised("left", 3) == target.promised("left", 1)
    assert target.promised("left", 1).epsilon <= 4.0


def test_what_a_target_promises() -> None:
    target = SplitTarget.of(job())
    assert target.promised("left").epsilon == np.inf
    under = target.under(PrivacySettings(embedding_dp={"eps": 1.0}, delta=0))
    assert under.promised("left").epsilon == pytest.approx(8 * 0.5)
    assert under.promised("left", 10).epsilon == pytest.approx(80 * 0.5)
    noised = target.under(PrivacySettings(label_dp={"eps": 0.5})).told.labels
    assert noised is not None
    assert target.told.labels is not None
    assert not torch.equal(noised, target.told.labels)


def test_a_run_is_attacked_with_its_own_weights_and_labels(tmp_path: Path) -> None:
    run = train(job(privacy={"label_dp": {"eps": 0.5}, "randomness": "secure"}), tmp_path / "run")
    target = SplitTarget.of_run(tmp_path / "run")
    assert target.trained
    trained = run.model.state_dict()
    assert all(torch.equal(t, trained[n]) for n, t in target.split.joined().state_dict().items())
    kept = unsealed((tmp_path / "run" / "lead" / "labels").read_bytes())["labels"]
    assert target.told.labels is not None
    assert np.array_equal(target.told.labels.numpy(), kept)
    truth = target.rows["train"]["lead"].labels
    assert truth is not None
    assert not torch.equal(truth, target.told.labels)
    initial = SplitTarget.of(run.job)
    assert not torch.equal(initial.outputs("left", AT), target.outputs("left", AT))
    under = target.under(PrivacySettings(embedding_dp={"eps": None}))
    bits = (target.outputs("left", AT) > 0).float()
    assert torch.equal(under.outputs("left", AT), bits), "other privacy, the run's weights"


def test_the_labels_are_those_that_a_run_draws(tmp_path: Path) -> None:
    private = job(privacy={"label_dp": {"eps": 0.5}})
    train(private, tmp_path / "run")
    kept = unsealed((tmp_path / "run" / "lead" / "labels").read_bytes())["labels"]
    told = SplitTarget.of(private).told.labels
    assert told is not None
    assert np.array_equal(told.numpy(), kept)


def test_rows_belong_together_in_the_leaders_order() -> None:
    target = SplitTarget.of(job(task={"name": "vertical_parts:ragged"}))
    whole, labels = target.task.whole("train")  # type: ignore[attr-defined]
    held = target.rows["train"]
    assert target.examples == 40
    assert torch.equal(held["bank"].columns["x"], whole[:40, :3])
    assert torch.equal(held["shop"].columns["x"], whole[:40, 3:])
    assert target.told.labels is not None
    assert torch.equal(target.told.labels, labels[:40])


def test_what_does_not_cross_and_what_is_no_run(tmp_path: Path) -> None:
    target = SplitTarget.of(job())
    with pytest.raises(AttackImpossible, match="what the part top gives does not cross between"):
        target.crossing("top")
    with pytest.raises(RunFolderError, match="is not a run's folder: it has no job"):
        SplitTarget.of_run(tmp_path)
    train(job(), tmp_path / "run")
    (tmp_path / "run" / "shop" / "model.safetensors").unlink()
    with pytest.raises(RunFolderError, match="holds no finished run of all parties: shop has no"):
        SplitTarget.of_run(tmp_path / "run")


def test_steps_are_settled_from_the_second_epoch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        SplitTarget,
        "_step",
        lambda self, parties, positions, step, settled: asked.append((step, settled)),
    )
    target = SplitTarget.of(job())
    assert target.examples == 5 * SIZE
    assert len(list(target.begun(7))) == 7
    assert asked == [(step, step > 5) for step in range(1, 8)]
