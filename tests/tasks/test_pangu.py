"""The language model as a task: who holds what, and training it apart as if it were whole."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedveil.entry.vertical import train
from fedveil.errors import InvalidValue, JobError
from fedveil.language import text
from fedveil.language.transformer import PRESETS
from fedveil.link.channel import drive_together
from fedveil.tasks.pangu import TOKENIZER, Pangu
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.party import Party
from fedveil.vertical.split import Joined, SplitModel
from fedveil.vertical.step import Batch
from fedveil.vertical.task import aligned_by, averages
from fedveil.vertical.task_settings import PanguSettings
from small_pangu import SIZES, small_job

TEXT = b"".join(b"%d sheep jumped over %d fences\n" % (i, i * i) for i in range(150))


def small(folder: Path, **settings: Any) -> PanguSettings:
    """Settings of a model that trains in a second, on a text in `folder`."""
    (folder / "sheep.txt").write_bytes(TEXT)
    return PanguSettings(**{**SIZES, "vocabulary": 300, "text": str(folder), **settings})


def test_only_the_leader_reads_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Pangu(small(tmp_path))

    def never(source: object) -> None:
        raise AssertionError(f"read {source}")

    with monkeypatch.context() as patch:
        patch.setattr(text, "read", never)
        assert len(task.owned("cloud", "train")) == 0
        assert not task.owned("cloud", "test").columns
        assert task.files("cloud") == {}
    assert len(task.owned("leader", "train")) > 50


def test_examples_are_windows_of_the_text(tmp_path: Path) -> None:
    task = Pangu(small(tmp_path, test_fraction=0.25))
    train, test = task.owned("leader", "train"), task.owned("leader", "test")
    pieces = task.tokenizer.pieces()
    for columns in (train, test):
        assert columns.labels is not None
        inputs = columns.columns["tokens"]
        assert inputs.shape == columns.labels.shape == (len(columns), 16)
        assert torch.equal(inputs.reshape(-1)[1:], columns.labels.reshape(-1)[:-1])
        assert columns.ids.tolist() == list(range(len(columns)))
    first, second = (
        text.join(c.columns["tokens"].reshape(-1).tolist(), pieces) for c in (train, test)
    )
    assert TEXT.startswith(first)
    assert second in TEXT
    assert len(first) / len(TEXT) == pytest.approx(0.75, abs=0.05)


def test_held_out_text_may_come_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "other.txt").write_bytes(b"and now for something different\n" * 9)
    settings = small(tmp_path, test_text=str(tmp_path / "apart"), text=str(tmp_path / "sheep.txt"))
    task = Pangu(settings)
    tokens = task.owned("leader", "test").columns["tokens"].reshape(-1).tolist()
    assert text.join(tokens, task.tokenizer.pieces()).startswith(b"and now for something")
    tokens = task.owned("leader", "train").columns["tokens"].reshape(-1).tolist()
    trained = text.join(tokens, task.tokenizer.pieces())
    assert TEXT.startswith(trained), "no part of it is held out"
    assert len(trained) > 0.98 * len(TEXT)


def test_the_tokenizer_knows_nothing_of_held_out_text(tmp_path: Path) -> None:
    settings = small(tmp_path)
    train, _ = text.hold_out(text.read(settings.text), settings.test_fraction)
    learnt = text.PairTokenizer.train(train, 300)
    assert Pangu(settings).tokenizer.pieces() == learnt.pieces()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "held.txt").write_bytes(b"and now for something different\n" * 99)
    elsewhere = small(tmp_path, test_text=str(tmp_path / "other"), text=str(tmp_path / "sheep.txt"))
    words = Pangu(elsewhere).tokenizer.pieces()
    assert not any(piece and b"something" in piece for piece in words)


def test_a_run_that_goes_on_has_the_tokenizer_it_began_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    before = Pangu(small(tmp_path))
    for name, data in before.files("leader").items():
        assert name == TOKENIZER
        (folder / name).write_bytes(data)
    (tmp_path / "sheep.txt").write_bytes(b"entirely other words in another text\n" * 50)
    settings = PanguSettings(**{**SIZES, "vocabulary": 300, "text": str(tmp_path)})
    again = Pangu(settings, folder=folder)
    assert again.tokenizer.pieces() == before.tokenizer.pieces()
    assert Pangu(settings).tokenizer.pieces() != before.tokenizer.pieces()


def test_plain_bytes_need_no_file(tmp_path: Path) -> None:
    task = Pangu(small(tmp_path, tokenizer="bytes", vocabulary=None))
    assert task.files("leader") == {}
    tokens = task.owned("leader", "train").columns["tokens"].reshape(-1)
    assert bytes(tokens.tolist()) == TEXT[: len(tokens)]
    assert task.split_model().last.output == (16, 257)


def test_steps_follow_from_the_sizes_and_texts_are_numbered() -> None:
    task = Pangu(PanguSettings(layers=3, width=40, heads=5, context=9, vocabulary=300))
    chosen = Optimizer("adamw", lr=0.0064, weight_decay=0.01, warmup_steps=15)
    assert {part.optimizer for part in task.split_model().parts} == {chosen}
    assert aligned_by(None, task) == "digests"
    assert aligned_by("intersection", task) == "intersection"
    assert Pangu(PanguSettings(tokenizer="bytes", vocabulary=257)).shape.vocabulary == 257


def test_sizes_are_the_preset_s_where_nothing_else_is_said() -> None:
    assert Pangu().shape == PRESETS["tiny"]
    shape = Pangu(PanguSettings(preset="small", layers=3)).shape
    assert (shape.layers, shape.width) == (3, PRESETS["small"].width)
    with pytest.raises(InvalidValue, match="vocabulary = 300 is for tokenizer: pairs"):
        Pangu(PanguSettings(tokenizer="bytes", vocabulary=300))
    with pytest.raises(InvalidValue, match="width = 30 is not a multiple of heads = 4"):
        Pangu(PanguSettings(width=30))


def test_the_word_table_is_one_and_starts_as_the_seed_says(tmp_path: Path) -> None:
    first, again, other = (Pangu(small(tmp_path), seed).split_model() for seed in (1, 1, 2))
    for split in (first, again, other):
        embedding, _, head = (part.module for part in split.parts)
        assert head.word.weight is embedding.word.weight
    states = [s.joined().state_dict() for s in (first, again, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    for name in ("parts.backbone.query.weight", "parts.embedding.word.weight"):
        assert not torch.equal(states[0][name], states[2][name])


def trained_by(task: Pangu, rule: Optimizer) -> SplitModel:
    """The task's parts, all with one rule."""
    split = task.split_model()
    for part in split.parts:
        split = split.replace(part.name, optimizer=rule)
    return split


def unsplit(task: Pangu, rule: Optimizer, batches: list[Batch]) -> tuple[Joined, list[float]]:
    """Train the same model on one machine, with a plain loop."""
    model = task.split_model().joined()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), rule.lr)
    if rule.name == "adamw":
        optimizer = torch.optim.AdamW(
            model.parameters(), rule.lr, weight_decay=rule.weight_decay, fused=True
        )
    losses = []
    for number, batch in enumerate(batches, start=1):
        for group in optimizer.param_groups:
            group["lr"] = rule.lr * min(1, number / max(1, rule.warmup_steps))
        assert batch.labels is not None
        loss = task.loss(model(batch.columns), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@pytest.mark.parametrize(
    ("in_flight", "rule", "tolerance"),
    [
        (1, Optimizer("adamw", lr=0.008, weight_decay=0.01, warmup_steps=3), 0),
        (1, Optimizer("sgd", lr=0.5), 0),
        # Adam's first steps are a gradient's sign: they would blow its rounding up to lr.
        (3, Optimizer("sgd", lr=0.5), 1e-6),
    ],
)
@pytest.mark.parametrize("encoded", [False, True])
def test_training_apart_is_training_whole(
    tmp_path: Path, in_flight: int, rule: Optimizer, tolerance: float, encoded: bool
) -> None:
    """The tied table gets both gradients: every weight is the unsplit model's."""
    task = Pangu(small(tmp_path), seed=3)
    owned = task.owned("leader", "train")
    assert owned.labels is not None
    rows = [np.arange(7 * i, 7 * i + 7) for i in range(5)]
    batches = [Batch(r, {"tokens": owned.columns["tokens"][r]}, owned.labels[r]) for r in rows]
    split = trained_by(task, rule)
    leader = Party("leader", split, loss=task.loss, in_flight=in_flight)
    cloud = Party("cloud", split, in_flight=in_flight)
    losses = []
    for number, batch in enumerate(batches, start=1):
        steps = {
            "leader": leader.step(number, batch),
            "cloud": cloud.step(number, Batch(batch.positions)),
        }
        losses.append(drive_together(steps, encoded=encoded)["leader"])
    model, expected = unsplit(task, rule, batches)
    assert losses == pytest.approx(expected, abs=tolerance)
    for name, weight in split.joined().state_dict().items():
        torch.testing.assert_close(
            weight, model.state_dict()[name], rtol=0, atol=tolerance, msg=name
        )
    assert losses[-1] < losses[0]


def test_the_tied_table_has_one_optimiser_state(tmp_path: Path) -> None:
    task = Pangu(small(tmp_path))
    leader = Party("leader", task.split_model(), loss=task.loss)
    owned = task.owned("leader", "train")
    cloud = Party("cloud", leader.split)
    batch = Batch(np.arange(4), {"tokens": owned.columns["tokens"][:4]}, owned.labels[:4])  # type: ignore[index]
    drive_together(
        {"leader": leader.step(1, batch), "cloud": cloud.step(1, Batch(batch.positions))}
    )
    state = leader.state()
    moments = [name for name in state if name.endswith("exp_avg")]
    assert sorted(moments) == ["embedding//0/exp_avg", "embedding//1/exp_avg"]
    assert torch.equal(state["embedding/word.weight"], state["head/word.weight"])


def test_what_is_counted_is_a_mean_over_tokens(tmp_path: Path) -> None:
    task = Pangu(small(tmp_path))
    assert (task.unit, task.units_per_example, task.classes) == ("tokens", 16, None)
    scores = torch.zeros(3, 16, 300)
    labels = torch.zeros(3, 16, dtype=torch.int64)
    labels[0] = 1
    found = averages(task.metrics(scores, labels))
    assert found["loss"] == pytest.approx(math.log(300), rel=1e-6)
    assert found["accuracy"] == pytest.approx(2 / 3)


def job(folder: Path, *overrides: str) -> VerticalJob:
    common = ("epochs=2", "batch_size=8", "evaluation.every_epochs=2", *overrides)
    return small_job(folder / "text" / "sheep.txt", TEXT, "vocabulary: 300", *common)


@pytest.mark.parametrize("protection", [(), ("privacy={embedding_dp: {eps: 5}}",)])
def test_a_run_from_the_job_to_the_files(tmp_path: Path, protection: tuple[str, ...]) -> None:
    run = train(job(tmp_path, *protection), tmp_path / "run")
    steps = [record for record in run.metrics if "loss" in record]
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.3
    last = run.metrics[-1]
    assert last["test_loss"] < steps[0]["loss"]
    assert 0 < last["test_accuracy"] < 1
    assert (tmp_path / "run" / TOKENIZER).is_file()
    raw = 8 * 16 * 32 * 4
    sent, received = steps[0]["bytes_sent_per_step"], steps[0]["bytes_received_per_step"]
    # Out: vectors and the gradient of what came back; in: what the layers give, and a gradient.
    assert received == pytest.approx(2 * raw, rel=0.02)
    assert sent == pytest.approx((1 + 1 / 32 if protection else 2) * raw, rel=0.02)
    events = (tmp_path / "run" / "leader" / "private.log").read_text()
    found = r"reveal them: ([\d.]+)% of \d+ right, the most common token alone ([\d.]+)%, "
    read = re.search(
        f"labels: the gradients of backbone returned to cloud {found}measured in", events
    )
    assert read is not None, events
    assert float(read[1]) > 90 > 3 * float(read[2])
    told = [str(figure) for figure in run.figures["leader"]]
    if protection:
        assert "epsilon 2.5 at delta 0 (meaningful) for a bit of embedding" in told
        whole = "epsilon 1,280 at delta 0 (next to none) for an example's 512 bits of embedding"
        assert f"{whole}, sent once" in told
    else:
        assert told[0].endswith("an example's values of embedding, sent unprotected")
    assert run.figures["cloud"] == []


def test_labels_are_no_classes(tmp_path: Path) -> None:
    for setting in ("privacy.label_dp.eps=1", "scoring.calibration=0.1"):
        block = setting.partition("=")[0].removesuffix(".eps")
        with pytest.raises(JobError, match=rf"{block} needs labels that are classes"):
            train(job(tmp_path, setting), tmp_path / "run")


def test_where_the_text_is_need_not_agree(tmp_path: Path) -> None:
    here = job(tmp_path)
    for key in ("text", "test_text"):
        assert here.agreed() == job(tmp_path, f"task.pangu.{key}=/elsewhere").agreed()
        assert key in here.model_dump()["task"]["pangu"]
    other = job(tmp_path, "task.pangu.layers=1")
    assert here.agreed() != other.agreed()


def test_the_default_job_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`task: pangu` and nothing else, on the beginning of the text that every machine has."""
    topics = text.read(None)
    monkeypatch.setattr(text, "read", lambda source: topics[:5] if source is None else None)
    run = train(
        VerticalJob.load(None, ["task=pangu", "epochs=4", "evaluation.every_epochs=4"]),
        tmp_path / "run",
    )
    assert run.metrics[-1]["test_loss"] < math.log(1024) - 0.2


@pytest.mark.slow
def test_the_default_job_ends(tmp_path: Path) -> None:
    run = train(VerticalJob.load(None, ["task=pangu"]), tmp_path / "run")
    assert run.metrics[-1]["test_loss"] < 4.0
