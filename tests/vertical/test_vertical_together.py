"""Whole vertical runs in one process: their folder, their account, and resuming after a kill."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import vertical_parts
import warm_process
from fedveil.entropy import Seeded
from fedveil.entry.simulation import simulate
from fedveil.errors import (
    DataInvalid,
    ExchangeError,
    FewCommon,
    InvalidValue,
    JobError,
    ModelInvalid,
    PartFailed,
    RunFolderError,
)
from fedveil.federated.job import Job
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.privacy import Figure
from fedveil.record.account_lines import FAILURE, influence, read_accounts
from fedveil.record.run_folder import TRACEBACK, RunFolder
from fedveil.record.saved_job import keep_job
from fedveil.vertical import (
    VerticalJob,
    VerticalRun,
    evaluate,
    noisy_labels,
    predict,
    resume,
    train,
)
from fedveil.vertical.account import Releases, figures, ledger_of
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.log_lines import line
from fedveil.vertical.one_process import Parties, look
from fedveil.vertical.part_optimizers import PartOptimizers
from fedveil.vertical.party import Party
from fedveil.vertical.party_log import PartyLog
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.remote.machine import Machine
from fedveil.vertical.rows import Order, Rows, align
from fedveil.vertical.split import Crossing, EmbeddingPrivacy, module_of
from fedveil.vertical.step import Occasion
from fedveil.vertical.step_checkpoint import from_last_step, saved_steps
from fedveil.vertical.task import Columns, lone_classes

DEADLINE_S = 120


def job(**changes: object) -> VerticalJob:
    settings: dict[str, object] = {
        "name": "small",
        "epochs": 3,
        "batch_size": 9,
        "in_flight": 2,
        "task": "vertical_parts:bottoms",
        "record": {"every_steps": 4},
        "checkpoint": {"every_steps": 5},
    }
    return VerticalJob(**(settings | changes))


def outcome(folder: Path) -> dict[str, bytes | list[dict[str, object]]]:
    """Return everything that a run writes, except times."""
    found: dict[str, bytes | list[dict[str, object]]] = {}
    for path in sorted(folder.glob("*/*")):
        if path.name == "metrics.jsonl":
            records = [json.loads(text) for text in path.read_text().splitlines()]
            found[f"{path.parent.name}/{path.name}"] = [
                {key: value for key, value in record.items() if not key.startswith("seconds")}
                for record in records
            ]
        elif path.name == "model.safetensors":
            found[f"{path.parent.name}/{path.name}"] = path.read_bytes()
    return found


# --- a run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> VerticalRun:
    return train(job(), tmp_path_factory.mktemp("whole") / "run")


def test_an_evaluation_is_not_counted_among_the_bytes_of_steps(
    whole: VerticalRun, tmp_path: Path
) -> None:
    """Epochs have six steps, so that records of four steps hold an evaluation in their middle."""
    seldom = train(job(evaluation={"every_epochs": 3}), tmp_path / "seldom")
    for party in ("lead", "bank", "shop"):
        bytes_of = [
            [r["bytes_sent_per_step"] for r in run.records[party] if "bytes_sent_per_step" in r]
            for run in (whole, seldom)
        ]
        assert bytes_of[0] == bytes_of[1]
        assert len(bytes_of[0]) > 3


def test_a_cell_shows_a_run_in_short_and_not_every_record(whole: VerticalRun) -> None:
    where = f"VerticalRun(folder={str(whole.folder)!r}, task='vertical_parts:bottoms', "
    assert repr(whole).startswith(f"{where}parties=('lead', 'bank', 'shop'), ")
    assert repr(replace(whole, records={"lead": []})) == f"{where}parties=('lead', 'bank', 'shop'))"
    html = whole._repr_html_()
    assert html is not None
    assert "Privacy guarantee" in html
    assert "The tensors sent between the parties are not protected." in html
    assert html.count("data:image/svg+xml") == 2
    assert replace(whole, html=None)._repr_html_() is None


@pytest.mark.parametrize("name", ["progress", "say"])
def test_a_function_that_is_none_is_refused_before_a_step(name: str, tmp_path: Path) -> None:
    wrong: dict[str, Any] = {name: True}
    for begin in (partial(train, job()), resume):
        with pytest.raises(InvalidValue, match=f"^{name} = True is not a function"):
            begin(tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_it_learns_and_every_party_has_its_folder(whole: VerticalRun) -> None:
    losses = [record["loss"] for record in whole.metrics if "loss" in record]
    assert losses[-1] < 0.7 * losses[0]
    for party in ("lead", "bank", "shop"):
        names = {path.name for path in (whole.folder / party).iterdir()}
        sent = {"sent.csv", "accounts.jsonl"} if party != "lead" else set()
        logs = {"events.log", "events.chain"} | ({"private.log"} if party == "lead" else set())
        assert names == {"checkpoint", "metrics.jsonl", "model.safetensors"} | logs | sent
        assert "finished after step 18" in (whole.folder / party / "events.log").read_text()
    assert VerticalJob.load(whole.folder / "job.yaml") == job()


def test_it_is_what_the_unsplit_model_would_have_learnt(whole: VerticalRun) -> None:
    task = vertical_parts.Bottoms(0)
    model = task.split_model().joined()
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.5)
    x, y = task.whole("train")
    order = Order(0, len(x), 9)
    for step in range(1, 19):
        rows = torch.from_numpy(order.of_step(step))
        optimizer.zero_grad()
        outputs = model({"bank.x": x[rows, :3], "shop.x": x[rows, 3:]})
        task.loss(outputs, y[rows]).backward()
        optimizer.step()
    for one, other in zip(whole.model.parameters(), model.parameters(), strict=True):
        assert (one - other).abs().max() < 1e-6


def test_lines_have_the_form_of_the_sources_log(whole: VerticalRun) -> None:
    lines = [line(record) for record in whole.metrics]
    assert lines[0].startswith("epoch 0 step 4/6 loss: 1.")
    assert " examples/s, " in lines[0]
    assert " a step, " in lines[0]
    assert lines[0].endswith(" s waiting")
    assert lines[1].startswith("epoch 0 held-out examples: ")
    assert [r["step"] for r in whole.metrics if "step" in r] == [4, 2, 6, 4, 6]


def test_followers_write_the_loss_they_heard(whole: VerticalRun) -> None:
    def losses(party: str) -> list[float]:
        return [record["loss"] for record in whole.records[party] if "loss" in record]

    assert losses("bank") == losses("lead") == losses("shop")
    kept = train(job(record={"every_steps": 4, "followers_see_loss": False}), _new())
    assert not any("loss" in record for record in kept.records["bank"])
    assert "loss" in kept.metrics[0]


_folders: list[Path] = []


@pytest.fixture(autouse=True)
def _room(tmp_path: Path) -> None:
    _folders[:] = [tmp_path]


def _new(name: str = "run") -> Path:
    path = _folders[0] / name
    return path if not path.exists() else _new(name + "x")


def test_encoded_it_is_the_same_run(whole: VerticalRun) -> None:
    other = train(job(), _new(), encoded=True)
    assert outcome(other.folder) == outcome(whole.folder)


def test_evaluation_and_prediction_go_through_the_same_crossings(whole: VerticalRun) -> None:
    quality, _ = evaluate(whole.folder)
    last = [record for record in whole.metrics if "look" in record][-1]
    assert quality == {name: last[f"test_{name}"] for name in quality}
    ids, outputs = predict(whole.folder)
    task = vertical_parts.Bottoms(0)
    x, y = task.whole("test")
    assert ids.tolist() == list(range(20))
    with torch.no_grad():
        expected = whole.model.eval()({"bank.x": x[:, :3], "shop.x": x[:, 3:]}).numpy()
    assert np.abs(outputs - expected).max() < 1e-6
    assert (outputs.argmax(1) == y.numpy()).mean() == quality["accuracy"]


def test_examples_that_not_all_hold_are_left_out_and_noted(tmp_path: Path) -> None:
    run = train(job(task="vertical_parts:ragged", epochs=1), tmp_path / "run")
    notes = (run.folder / "bank" / "events.log").read_text()
    assert "10 of 50 train examples of bank are left out: not all parties have them" in notes
    assert run.metrics[0]["steps"] == 5


@pytest.mark.parametrize("label_dp", [None, {"eps": 1.0}])
def test_a_class_that_only_training_or_held_out_examples_have_is_told(
    label_dp: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's own training rows have all classes. Those of class 0 are not common.

    Under label_dp, the labels that the run trains on may have all classes too.
    """
    own = vertical_parts.Ragged.whole

    def whole(self: vertical_parts.Ragged, subset: str) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = own(self, subset)
        y = 1 + y % 2 if subset == "train" else y % 2
        y[40:] = 0
        return x, y

    monkeypatch.setattr(vertical_parts.Ragged, "whole", whole)
    monkeypatch.setattr(vertical_parts.Ragged, "class_names", ["a", "b", "c"], raising=False)
    heard: list[str] = []
    folder = _new()
    train(
        job(task="vertical_parts:ragged", epochs=1, privacy={"label_dp": label_dp}),
        folder,
        say=heard.append,
    )
    log = (folder / "lead" / "events.log").read_text()
    assert "labels: only" not in log, "other parties may be given the log"
    assert "labels: only" in (folder / "lead" / "private.log").read_text()
    assert [sentence for sentence in heard if sentence.startswith("labels: only")] == [
        "labels: only training examples have the class 'c', so no metric measures how well the "
        "model predicts it",
        "labels: only held-out examples have the class 'a', so the model does not learn to predict "
        "it",
    ]


def test_of_many_lone_classes_the_first_are_told() -> None:
    task: Any = SimpleNamespace(classes=9)
    train, test = torch.tensor([0, 1, 2, 3, 4, 5, 6, 0]), torch.tensor([0, 7, 8])
    assert list(lone_classes(task, train, test)) == [
        "labels: only training examples have the classes 1, 2, 3, 4, 5, ..., so no metric measures "
        "how well the model predicts them",
        "labels: only held-out examples have the classes 7, 8, so the model does not learn to "
        "predict them",
    ]
    assert not list(lone_classes(task, train, train.flip(0)))
    assert not list(lone_classes(task, None, None)), "a follower has no labels"
    assert not list(lone_classes(task, train[:, None], test[:, None])), "tokens of a text"
    task.classes = None  # labels are numbers
    assert not list(lone_classes(task, train.float(), test.float()))


def test_notes_on_how_data_was_read_are_shown_once_and_in_every_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def notes(self: vertical_parts.Bottoms, party: str) -> list[str]:
        return [f"{party}.csv: UTF-8"] if party != "shop" else []

    monkeypatch.setattr(vertical_parts.Bottoms, "notes", notes, raising=False)
    heard: list[str] = []
    run = train(job(epochs=1), _new(), say=heard.append)
    for party in ("lead", "bank"):
        assert heard.count(f"{party}.csv: UTF-8") == 1
        for other in run.split.parties:
            assert f"{party}.csv: UTF-8" in (run.folder / other / "events.log").read_text("utf-8")


def test_a_leader_that_has_all_parts_trains_by_itself() -> None:
    run = train(job(task="vertical_parts:unsplit"), _new())
    losses = [record["loss"] for record in run.metrics if "loss" in record]
    assert losses[-1] < losses[0]
    assert run.records.keys() == {"lead"}
    assert run.figures == {"lead": []}
    assert evaluate(run.folder)[0] == {
        name: run.metrics[-1][f"test_{name}"] for name in ("accuracy", "loss")
    }


# --- resuming


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(whole: VerticalRun) -> None:
    class Stop(Exception):
        pass

    folder = _new()

    def stop(record: dict[str, object]) -> None:
        if record.get("epoch") == 1:
            raise Stop

    with pytest.raises(Stop):
        train(job(), folder, progress=stop)
    assert not (folder / "lead" / "model.safetensors").exists()
    told: list[object] = []
    resume(folder, progress=told.append)
    assert outcome(folder) == outcome(whole.folder)
    assert len(told) == len(whole.metrics)


def write_slowly(lines: int) -> None:
    """Write `lines` + 1 lines at intervals, and then none for long."""
    record = PartyLog.record

    def slowly(self: PartyLog, **figures: float) -> None:
        record(self, **figures)
        time.sleep(0.1 if len(self.records) <= lines else 2 * DEADLINE_S)

    PartyLog.record = slowly  # type: ignore[method-assign]


@pytest.mark.parametrize(("task", "at"), [("bottoms", 0), ("u_shape", 1), ("bottoms", 7)])
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    task: str, at: int, tmp_path: Path
) -> None:
    """The run is in a process of its own, killed with SIGKILL once it has written `at` lines."""
    settings = job(task=f"vertical_parts:{task}", epochs=4)
    (tmp_path / "job.yaml").write_text(settings.to_yaml())
    folder = tmp_path / "run"
    words = ("vertical", "run", tmp_path / "job.yaml", "--out", folder)
    process = warm_process.start(words, tmp_path / "log", before=partial(write_slowly, at))
    metrics = folder / "lead" / "metrics.jsonl"
    end = time.monotonic() + DEADLINE_S
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < at:
        assert time.monotonic() < end
        assert process.exitcode is None, "it ended before it was killed"
        time.sleep(0.002)
    process.kill()
    process.join(DEADLINE_S)
    assert not (folder / "lead" / "model.safetensors").exists()
    resume(folder)
    expected = train(settings, tmp_path / "unbroken")
    assert outcome(folder) == outcome(expected.folder)


def test_a_resumed_task_reads_its_own_files_in_the_runs_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[Path | None] = []

    def stored(seed: int, folder: Path | None) -> vertical_parts.Bottoms:
        folders.append(folder)
        return vertical_parts.Bottoms(seed)

    monkeypatch.setattr(vertical_parts, "stored", stored, raising=False)
    run = train(job(task="vertical_parts:stored", epochs=1), _new())
    evaluate(run.folder)
    assert folders == [None, run.folder]


def test_parties_go_back_to_the_last_step_that_all_hold(whole: VerticalRun) -> None:
    """One party was killed before it had saved the step that the others saved."""
    folder = _new()
    run = train(job(), folder)
    assert [saved_steps(_Folder(folder / p)) for p in ("lead", "bank")] == [[15, 18]] * 2
    (folder / "bank" / "checkpoint" / "000000018").unlink()
    (folder / "bank" / "model.safetensors").unlink()
    resume(folder)
    assert outcome(folder) == outcome(whole.folder)
    for party in ("lead", "shop"):
        (folder / party / "checkpoint" / "000000015").unlink()
    (folder / "bank" / "checkpoint" / "000000018").unlink()
    with pytest.raises(RunFolderError, match="has no step that all parties have saved"):
        resume(folder)
    assert run.folder == folder


def test_a_step_that_only_one_party_holds_is_forgotten_when_all_go_back(tmp_path: Path) -> None:
    """With fresh randomness the resumed run differs: its step 18 is another one."""
    train(job(), tmp_path / "run")
    (tmp_path / "run" / "bank" / "checkpoint" / "000000018").unlink()

    def stop(record: dict[str, object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume(tmp_path / "run", progress=stop)
    assert saved_steps(_Folder(tmp_path / "run" / "lead")) == [15]


@pytest.mark.parametrize("use", [evaluate, predict])
def test_using_an_older_step_removes_nothing(use: Callable[[Path], object]) -> None:
    """The file that bank lacks may come back from a copy."""
    folder = _new()
    train(job(scoring={"calibration": 0.2}, checkpoint={"every_steps": 4}), folder)
    lost = folder / "bank" / "checkpoint" / "000000015"
    moved = lost.rename(folder / "copy")
    before = {path: path.read_bytes() for path in folder.rglob("*") if _is_kept(path)}
    assert {path.name for path in before} >= {"000000012", "000000015", "calibrator.json"}
    use(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if _is_kept(path)} == before
    moved.rename(lost)
    said: list[str] = []
    evaluate(folder, said.append)
    assert said == []


def _is_kept(path: Path) -> bool:
    return path.is_file() and not path.name.startswith("events.")


def test_a_diverged_step_does_not_replace_the_last_good_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Adam's state diverges in bank's last step. Such a state could not be loaded again."""
    folder, steps = _new(), PartOptimizers.step

    def diverging(self: PartOptimizers, number: int) -> None:
        steps(self, number)
        if number == 18 and "backbone" in self:
            self.state()["backbone//0/exp_avg"].view(-1)[-1] = torch.inf

    monkeypatch.setattr(PartOptimizers, "step", diverging)
    sentence = (
        f"backbone//0/exp_avg contains NaN or infinity after step 18: the training has diverged. "
        f"{folder / 'bank'} still has the state after step 15. Start a new run with a lower "
        f"learning rate"
    )
    with pytest.raises(ModelInvalid, match=rf"^{re.escape(sentence)}\nthe traceback is in "):
        train(job(task="vertical_parts:u_shape"), folder)
    assert saved_steps(_Folder(folder / "bank")) == [10, 15]
    assert not (folder / "bank" / "model.safetensors").exists()
    said: list[str] = []
    evaluate(folder, said.append)
    assert said == ["the run is unfinished: using the state after step 15 of 18"]


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_model_that_begins_with_a_weight_that_is_not_finite_is_refused(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = vertical_parts.Bottoms.split_model

    def spoilt(self: vertical_parts.Bottoms) -> Any:
        split = made(self)
        torch.nn.init.constant_(module_of(split.parts[1])[0].bias[1:2], value)  # type: ignore[index]
        return split

    monkeypatch.setattr(vertical_parts.Bottoms, "split_model", spoilt)
    folder = _new()
    with pytest.raises(ModelInvalid, match=r"right/0\.bias contains NaN or infinity .* before any"):
        train(job(), folder)
    assert not (folder / "shop" / TRACEBACK).exists(), "nothing was sent"


def _without(folder: Path, name: str, *parties: str) -> None:
    for party in parties:
        (folder / party / name).unlink()


def test_a_model_whose_training_has_not_ended_is_used_with_a_word() -> None:
    folder, said = _new(), list[str]()
    train(job(), folder)
    evaluate(folder, said.append)
    assert said == []
    _without(folder, "checkpoint/000000018", "bank")
    predict(folder, said.append)
    assert said == ["the run is unfinished: using the state after step 15 of 18"]
    _without(folder, "checkpoint/000000018", "lead", "shop")
    evaluate(folder, said.append)  # all parties end with this step, and a model: a limit's end
    assert len(said) == 1
    _without(folder, "model.safetensors", "shop")
    look(folder, PartyRun.evaluate, said.append)
    assert said[1:] == said[:1]


@pytest.mark.parametrize("use", [evaluate, predict])
def test_a_run_without_a_trained_model_is_refused(
    use: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch, whole: VerticalRun
) -> None:
    folder, least = _new(), _new("least")

    def killed(self: Parties, *given: object) -> None:
        raise KeyboardInterrupt

    for name, where in (("train", folder), ("enter", least)):
        with monkeypatch.context() as broken:
            broken.setattr(Parties, name, killed)
            with pytest.raises(KeyboardInterrupt):
                train(job(), where)
    begun = RunFolder.create(least)
    keep_job(begun, job(), ["vertical_parts:bottoms"])
    begun.close()
    why = {folder: "no trained model: all parties have saved no training step", least: "no step"}
    for where, said in why.items():
        before = {path: path.stat().st_mtime_ns for path in where.rglob("*") if path.is_file()}
        with pytest.raises(RunFolderError, match=f"^{where} has {said}"):
            use(where)
        after = {path: path.stat().st_mtime_ns for path in where.rglob("*") if path.is_file()}
        assert after == before
    assert outcome(resume(folder).folder) == outcome(whole.folder)


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path


@pytest.mark.parametrize("place", [60, -1])
def test_a_damaged_checkpoint_is_refused(place: int) -> None:
    folder = _new()
    train(job(epochs=1), folder)
    path = folder / "shop" / "checkpoint" / "000000006"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunFolderError, match="000000006 is damaged"):
        resume(folder)


def test_a_resumption_that_is_refused_changes_no_partys_folder() -> None:
    """The leader's later step is still there if the damaged file is restored from a copy."""
    folder = _new()
    train(job(), folder)
    (folder / "bank" / "checkpoint" / "000000018").unlink()
    path = folder / "shop" / "checkpoint" / "000000015"
    path.write_bytes(path.read_bytes()[:-1])
    records = (folder / "lead" / "metrics.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match="000000015 is damaged"):
        resume(folder)
    assert saved_steps(_Folder(folder / "lead")) == [15, 18]
    assert (folder / "lead" / "metrics.jsonl").read_bytes() == records


@pytest.mark.parametrize(("subset", "count"), [("train", 49), ("test", 19)])
def test_another_model_or_other_data_are_refused(
    subset: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _new()
    train(job(epochs=1), folder)
    monkeypatch.setattr(vertical_parts.Bottoms, subset, count)
    with pytest.raises(RunFolderError, match=r"was made with other data\n"):
        resume(folder)
    monkeypatch.setattr(vertical_parts.Bottoms, "width", 7)
    with pytest.raises(RunFolderError, match=r"was made with another model and other data\n"):
        resume(folder)


def test_a_folder_that_holds_anything_is_refused() -> None:
    folder = _new()
    folder.mkdir()
    (folder / "mine").write_text("")
    with pytest.raises(RunFolderError, match=r"is not empty: name another folder$"):
        train(job(), folder)
    (folder / "job.yaml").write_text("")
    (folder / "checkpoint").mkdir()  # seems to be of a run
    with pytest.raises(RunFolderError, match="`fedveil vertical run --resume"):
        train(job(), folder)


def test_an_error_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        vertical_parts.Bottoms, "loss", lambda self, outputs, labels: outputs.sum() * float("inf")
    )
    with pytest.raises(ExchangeError) as caught:
        train(job(), _new())
    assert caught.value.__notes__ == [
        f"resume it with `fedveil vertical run --resume {_folders[0] / 'run'}`, from the last step "
        f"that all parties have saved"
    ]
    assert "`run --resume 'a b'`" in from_last_step("run", Path("a b"))


def test_a_part_that_fails_is_told_with_its_line_and_is_not_gone_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("unseen")

    monkeypatch.setattr(torch.nn.Linear, "forward", failing)
    folder = _new()
    with pytest.raises(PartFailed) as caught:
        train(job(), folder)
    assert re.search(
        r"KeyError: 'unseen' \(.*test_vertical_together\.py, line \d+\)", str(caught.value)
    )
    (note,) = caught.value.__notes__
    party = str(caught.value).split()[4]
    assert note == f"the traceback is in {folder / party / TRACEBACK}"
    assert "raise KeyError" in (folder / party / TRACEBACK).read_text()


def test_a_failure_is_saved_before_another_party_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed after it has told the failure still has it in its account."""
    folder, end = _new(), Party.end
    saved: list[tuple[str, bool]] = []

    def told(self: Party, reason: str, **more: Any) -> Any:
        saved.append((self.name, (folder / self.name / TRACEBACK).exists()))
        return end(self, reason, **more)

    def failing(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("unseen")

    monkeypatch.setattr(Party, "end", told)
    monkeypatch.setattr(torch.nn.Linear, "forward", failing)
    with pytest.raises(PartFailed) as caught:
        train(job(), folder)
    assert saved[0] == (str(caught.value).split()[4], True)
    assert len(caught.value.__notes__) == 1


# --- privacy


def test_that_a_part_failed_has_no_finite_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other parties learnt it, and it stays in the account of a resumed run."""
    forward = torch.nn.Linear.forward
    calls = []

    def failing(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        if len(calls) == 61:
            raise KeyError("unseen")
        return forward(self, x)

    monkeypatch.setattr(torch.nn.Linear, "forward", failing)
    folder = _new()
    with pytest.raises(PartFailed) as caught:
        train(protected(embedding_dp={"eps": 0.5}), folder)
    party = str(caught.value).split()[4]
    assert party == "bank"
    run = resume(folder)
    told = (
        "epsilon inf at delta 0 (none) for the failure of a part, which the other parties were told"
    )
    for name, lines in run.figures.items():
        assert [str(each) for each in lines].count(told) == (name == party)


@pytest.mark.parametrize(("limit", "last"), [(None, 5), (2.5, 6)])
def test_a_training_that_diverges_has_no_finite_epsilon(
    limit: float | None, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single example may decide whether it does, and other parties see that the run ends.

    Every fifth step is saved, and the last one before the limit.
    """
    steps = PartOptimizers.step

    def diverging(self: PartOptimizers, number: int) -> None:
        steps(self, number)
        if number == last and "left" in self:
            next(iter(self.state().values())).view(-1)[-1] = torch.nan

    monkeypatch.setattr(PartOptimizers, "step", diverging)
    folder = _new()
    with pytest.raises(PartFailed, match=f"contains NaN or infinity after step {last}"):
        train(protected(embedding_dp={"eps": 0.5}, max_epsilon=limit), folder)
    for party in ("lead", "bank", "shop"):
        told = [line.epsilon for line in read_accounts(folder / party) if line.what == FAILURE]
        assert told == ([math.inf] if party == "bank" else [])


@pytest.mark.parametrize("look", [evaluate, predict])
def test_that_a_part_failed_after_training_has_no_finite_epsilon(
    look: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _new()
    train(job(epochs=1, privacy={"embedding_dp": {"eps": 0.5}}), folder)

    def failing(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("unseen")

    with monkeypatch.context() as broken:
        broken.setattr(torch.nn.Linear, "forward", failing)
        with pytest.raises(PartFailed, match=r"^the part left of bank failed") as caught:
            look(folder)
    assert caught.value.__notes__ == [f"the traceback is in {folder / 'bank' / TRACEBACK}"]
    told = [line.what for line in resume(folder).figures["bank"] if line.epsilon == math.inf]
    assert told == [influence("left"), "the failure of a part, which the other parties were told"]


def protected(**privacy: object) -> VerticalJob:
    return job(privacy=privacy, evaluation={"every_epochs": 2})


def test_every_epoch_is_paid_for() -> None:
    run = train(protected(embedding_dp={"eps": 0.5}), _new())
    bank = [str(figure) for figure in run.figures["bank"]]
    assert bank[0] == "epsilon 0.25 at delta 0 (strong) for a bit of left"
    assert bank[1] == "epsilon 0.5 at delta 0 (strong) for a one-hot row of left"
    assert bank[2] == "epsilon 2 at delta 0 (meaningful) for an example's 8 bits of left, sent once"
    assert bank[3] == f"epsilon inf at delta 0 (none) for {influence('left')}"
    assert bank[4].endswith("for an example's own reports in the run, sent 3 times")
    assert run.ledgers["bank"].epsilon("run") == pytest.approx(3 * 8 * 0.25)
    assert run.ledgers["bank"].epsilon("bit") == 0.25
    assert 0 < run.figures["bank"][4].epsilon <= 6.0
    assert run.figures["lead"] == []
    assert run.ledgers["lead"].epsilon("run") == 0
    assert "bank" in run.figures
    assert any("sent 3 times" in text for text in (run.folder / "bank/events.log").open())


def test_quantisation_without_noise_promises_nothing() -> None:
    run = train(protected(embedding_dp={}), _new())
    assert run.figures["bank"][-1].epsilon == float("inf")
    assert Figure(*run.ledgers["bank"].figures(1e-5)["run_most_drawn"]).epsilon == float("inf")


@pytest.mark.parametrize("randomness", ["seeded", "secure"])
def test_what_is_remembered_is_paid_once(randomness: str) -> None:
    settings = protected(
        embedding_dp={"eps": 0.5, "reuse": True, "gradient": "none"}, randomness=randomness
    )
    run = train(settings, _new())
    assert run.ledgers["bank"].epsilon("run") == pytest.approx(8 * 0.25)
    kept = (run.folder / "bank" / "reports-left-train").read_bytes()
    assert len(kept) == 50 * (8 + 1)
    held_out = run.folder / "bank" / "reports-left-test"
    before = held_out.read_bytes()
    assert len(before) == 20 * (8 + 1)
    first, _ = evaluate(run.folder)
    assert evaluate(run.folder)[0] == first
    assert held_out.read_bytes() == before


def test_a_part_that_learns_is_paid_once_too() -> None:
    """The part learns in the first epoch, from its reports; no gradient is returned after that."""
    kept, forgotten = {"eps": 8.0, "reuse": True}, {"eps": 8.0, "gradient": "none"}
    run = train(protected(embedding_dp=kept), _new())
    once, none = (
        train(job(privacy={"embedding_dp": settings}, epochs=1), _new(name))
        for name, settings in (("once", kept), ("none", forgotten))
    )
    bottoms = [each.model.parts["left"].state_dict() for each in (run, once, none)]
    assert all((bottoms[0][name] == bottoms[1][name]).all() for name in bottoms[0])
    assert not all((bottoms[0][name] == bottoms[2][name]).all() for name in bottoms[0])
    assert run.ledgers["bank"].epsilon("run") == pytest.approx(8 * 4.0)
    steps = [record for record in run.records["bank"] if "step" in record]
    assert steps[0]["bytes_received_per_step"] > 9 * 8 * 4
    assert steps[-1]["bytes_received_per_step"] < 9 * 8 * 4


@pytest.mark.parametrize("at", [3, 8])  # in the first epoch, and in the second
def test_stopped_when_reports_are_kept_a_run_ends_with_the_same_bytes(at: int) -> None:
    class Stop(Exception):
        pass

    def stop(record: dict[str, object]) -> None:
        done.append(record)
        if len(done) == at:
            raise Stop

    done: list[object] = []
    settings = job(
        privacy={"embedding_dp": {"eps": 8.0, "reuse": True}},
        epochs=2,
        checkpoint={"every_steps": 4},
        record={"every_steps": 1},
    )
    whole, folder = train(settings, _new()), _new("stopped")
    with pytest.raises(Stop):
        train(settings, folder, progress=stop)
    resume(folder)
    assert outcome(folder) == outcome(whole.folder)


def test_how_often_every_row_was_sent_is_written_down() -> None:
    run = train(job(epochs=2), _new())
    lines = (run.folder / "bank" / "sent.csv").read_text("utf-8").splitlines()
    assert lines[0] == "subset,id,times"
    assert sorted(lines[1:51]) == sorted(f"train,{number},2" for number in range(50))
    assert sorted(lines[51:]) == sorted(f"test,{number},2" for number in range(20))
    assert not (run.folder / "lead" / "sent.csv").exists(), "what it sends back is no row"


def test_a_run_opens_with_what_protects_it() -> None:
    heard: list[str] = []
    privacy: dict[str, object] = {"embedding_dp": {"eps": 5}}
    train(job(privacy=privacy, epochs=1), _new(), say=heard.append)
    assert heard[:2] == [
        "initial weights are drawn from the job's seed, which all parties know: for simulation "
        "only",
        "The embedding is protected by EmbeddingDP with eps 5.",
    ]
    assert len(set(heard)) == len(heard), "what two parties say alike is shown once"
    heard.clear()
    run = train(job(privacy={"embedding_dp": {}}, epochs=1), _new("bit"), say=heard.append)
    quantised = (
        "The embedding is protected by EmbeddingDP with one bit for each value and no noise."
    )
    assert quantised in heard
    assert quantised in (run.folder / "bank" / "events.log").read_text("utf-8")
    assert quantised not in (run.folder / "lead" / "events.log").read_text("utf-8")


def test_a_step_that_is_repeated_with_fresh_randomness_is_paid_twice() -> None:
    class Stop(Exception):
        pass

    def stop(record: dict[str, object]) -> None:
        if record.get("step") == 2:  # the eighth step of the run; the sixth was saved
            raise Stop

    for randomness, times in (("seeded", 3), ("secure", 4)):
        privacy = {"embedding_dp": {"eps": 0.5}, "randomness": randomness}
        settings = job(privacy=privacy, checkpoint={"every_steps": 6})
        folder = _new(randomness)
        with pytest.raises(Stop):
            train(settings, folder, progress=stop)
        run = resume(folder)
        assert run.ledgers["bank"].epsilon("run") == pytest.approx(times * 8 * 0.25)
        assert run.figures["bank"][-1].what.endswith(f"sent {times} times")


def test_a_run_that_ends_early_has_its_account(tmp_path: Path) -> None:
    """A leader may leave as soon as it has what it wants."""

    def leave(record: dict[str, Any]) -> None:
        if record["party"] == "lead" and record.get("epoch") == 1:
            raise ExchangeError("the leader has gone")

    settings = VerticalJob(
        task="vertical_parts:bottoms", epochs=2, batch_size=10, record={"every_steps": 1},
        privacy={"embedding_dp": {"eps": 0.5}, "randomness": "secure"},
    )  # fmt: skip
    with pytest.raises(ExchangeError, match="has gone"):
        train(settings, tmp_path / "run", progress=leave)
    folder = tmp_path / "run" / "bank"
    assert "sent 2 times" in (folder / "accounts.jsonl").read_text()
    times = [row.rsplit(",")[-1] for row in (folder / "sent.csv").read_text().split()[1:]]
    assert {"1", "2"} <= set(times)


def test_looks_are_paid_for_by_the_held_out_examples() -> None:
    split = vertical_parts.Bottoms().split_model().replace("left", privacy=EmbeddingPrivacy(0.5))
    releases = Releases(None, Order(0, 50, 9), fresh=False, epochs=3)
    releases.train[7], releases.looks = 2, 3
    ledger = ledger_of(split, "bank", releases, None)
    assert ledger.epsilon("run") == pytest.approx(3 * 8 * 0.25)
    assert figures(split, "bank", releases, 1e-5, None)[-1].what.endswith("sent 3 times")


def test_no_two_reports_of_a_run_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[object, ...]] = []
    report = Reports.__call__

    def noted(self: Reports, crossing: Crossing, values: Any, occasion: Occasion) -> Any:
        drawn.append((crossing.part, *occasion.path))
        return report(self, crossing, values, occasion)

    monkeypatch.setattr(Reports, "__call__", noted)
    train(job(privacy={"embedding_dp": {"eps": 0.5}}), _new())
    looks = {number for _, subset, number, *_ in drawn if subset == "test"}
    assert looks == {6, 12, 18}
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 3 * (6 + 3)


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the labels of every step."""
    seen: list[Any] = []
    loss = vertical_parts.Bottoms.loss

    def noted(self: Any, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.append(labels.numpy().copy())
        return loss(self, outputs, labels)

    monkeypatch.setattr(vertical_parts.Bottoms, "loss", noted)
    return seen


def test_the_jobs_seed_determines_the_order_of_the_examples(trained_on: list[Any]) -> None:
    train(job(seed=6, epochs=2, in_flight=1, evaluation={"every_epochs": None}), _new())
    truth, order = vertical_parts.Bottoms().whole("train")[1].numpy(), Order(6, 50, 9)
    assert len(trained_on) == 12
    for step, labels in enumerate(trained_on, start=1):
        assert labels.tolist() == truth[order.of_step(step)].tolist()


@pytest.mark.parametrize(("every", "ended"), [(2, [2, 4, 5]), (None, [])])
def test_a_run_is_evaluated_after_its_last_epoch_too(every: int | None, ended: list[int]) -> None:
    job = SimpleNamespace(evaluation=SimpleNamespace(every_epochs=every), epochs=5)
    run: Any = SimpleNamespace(setting=SimpleNamespace(job=job))
    assert [epoch + 1 for epoch in range(5) if PartyRun._looks_after(run, epoch)] == ended


def test_only_files_that_are_named_by_a_step_are_checkpoints(tmp_path: Path) -> None:
    folder: Any = SimpleNamespace(path=tmp_path)
    (tmp_path / "checkpoint").mkdir()
    for name in ("000000012", "000000003", "000000004.part", "5", "0000000006"):
        (tmp_path / "checkpoint" / name).touch()
    assert saved_steps(folder) == [3, 12]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_drawn_labels_have_the_type_and_shape_of_the_true_ones(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    true = torch.tensor([[0], [1], [1]], dtype=dtype)
    told = noisy_labels.drawn(Rows(3, {}, true, np.array([])), LabelDP(60.0), 2, Seeded(4))
    (tmp_path / "labels").write_bytes(noisy_labels.file_of(told))
    for rows in (told, noisy_labels.kept(tmp_path / "labels", told, 2)):
        assert rows.labels is not None
        assert rows.labels.dtype == dtype
        assert torch.equal(rows.labels, true)


@pytest.mark.parametrize(("label", "holds"), [(-1, False), (0, True), (2, True), (3, False)])
def test_no_saved_label_is_outside_the_classes(label: int, holds: bool, tmp_path: Path) -> None:
    rows = Rows(2, {}, torch.tensor([1, label]), np.array([]))
    (tmp_path / "labels").write_bytes(noisy_labels.file_of(rows))
    if holds:
        kept = noisy_labels.kept(tmp_path / "labels", rows, 3).labels
        assert kept is not None
        assert kept.tolist() == [1, label]
        return
    with pytest.raises(RunFolderError, match=r"labels is damaged: .* a class outside 0 to 2"):
        noisy_labels.kept(tmp_path / "labels", rows, 3)


def test_labels_are_drawn_once_and_kept(
    trained_on: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vertical_parts.Bottoms, "train", 2000)
    privacy = {"label_dp": {"eps": 1.0}, "randomness": "secure"}
    run = train(job(privacy=privacy, epochs=1, batch_size=500, in_flight=1), _new())
    truth = vertical_parts.Bottoms().whole("train")[1].numpy()
    order = np.concatenate([Order(0, 2000, 500).of_step(step) for step in range(1, 5)])
    low, high = stats.binom.interval(1 - 1e-9, 2000, math.e / (math.e + 2))
    assert low <= (np.concatenate(trained_on) == truth[order]).sum() <= high
    assert [str(f) for f in run.figures["lead"]] == [
        "epsilon 1 at delta 0 (strong) for an example's label, in all epochs"
    ]
    assert run.ledgers["lead"].epsilon("run") == 1.0
    labels = (run.folder / "lead" / "labels").read_bytes()
    resume(run.folder)
    assert (run.folder / "lead" / "labels").read_bytes() == labels
    (run.folder / "lead" / "labels").write_bytes(labels[:-1])
    with pytest.raises(RunFolderError, match="labels is damaged"):
        resume(run.folder)


def test_drawn_labels_are_what_is_trained_on(trained_on: list[Any]) -> None:
    """They are the same in every epoch, also in a resumed run."""

    class Stop(Exception):
        pass

    def stop(record: dict[str, object]) -> None:
        if record.get("epoch") == 1:
            raise Stop

    privacy = {"label_dp": {"eps": 0.0}, "randomness": "secure"}
    with pytest.raises(Stop):
        train(job(privacy=privacy, in_flight=1), _new("stopped"), progress=stop)
    before = len(trained_on)
    resume(_folders[0] / "stopped")
    after = len(trained_on) - before
    assert 6 < before < 18 < before + after
    told, order = np.empty(50, np.int64), Order(0, 50, 9)
    for step in range(1, 7):
        told[order.of_step(step)] = trained_on[step - 1]
    for step, labels in zip(
        [*range(1, before + 1), *range(19 - after, 19)], trained_on, strict=True
    ):
        assert labels.tolist() == told[order.of_step(step)].tolist()
    assert (told != vertical_parts.Bottoms().whole("train")[1].numpy()).any()


# --- runs that cannot start


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parts": {"left": {}, "top": {}}}, "the part top reads 'right', which is neither"),
        (
            {"parts": {"new": {}}},
            "parts.new.owner is missing, and the task has no part of that name",
        ),
        ({"parts": {"left": {"owner": "eve"}, "right": {}, "top": {}}}, "parts.left.owner = eve"),
        (
            {"parts": {"left": {"module": "nowhere:f"}, "right": {}, "top": {}}},
            "parts.left.module = 'nowhere:f': there is no module nowhere, neither",
        ),
        (
            {"parts": {"left": {"inputs": ["data.y"]}, "right": {}, "top": {}}},
            "a part reads the column y",
        ),
        (
            {"task": "vertical_parts:u_shape", "optimizer": {"momentum": 0.9}},
            "parts.embedding.optimizer.momentum = 0.9 belongs to sgd; under adam only 0 is",
        ),
        ({"device": "cuda:99"}, "device = cuda:99 cannot be used here"),
        (
            {"task": "vertical_parts:nothing"},
            "task.name = 'vertical_parts:nothing': the module vertical_parts has no",
        ),
        (
            {"task": "vertical_parts:unsplit", "privacy": {"embedding_dp": {"eps": 1}}},
            "privacy.embedding_dp protects nothing",
        ),
        (
            {"task": "vertical_parts:unclassed", "privacy": {"label_dp": {"eps": 1}}},
            "privacy.label_dp needs labels that are classes",
        ),
    ],
)
def test_what_cannot_start_leaves_nothing_behind(changes: dict[str, object], sentence: str) -> None:
    folder = _new()
    with pytest.raises((JobError, ValueError)) as caught:
        train(job(**changes), folder)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert not folder.exists()


def test_a_part_of_the_users_own_takes_the_place_of_the_tasks() -> None:
    parts = {
        "left": {"module": "vertical_parts:wider", "output": [5]},
        "right": {"frozen": True, "optimizer": {"lr": 3.0}},
        "top": {"module": "vertical_parts:narrow_top"},
    }
    run = train(job(parts=parts, epochs=1), _new())
    before = vertical_parts.Bottoms(0).split_model().by_name["right"].module
    after = run.split.by_name["right"].module
    assert before is not None
    assert after is not None
    assert torch.equal(before.get_parameter("0.weight"), after.get_parameter("0.weight"))
    assert run.split.by_name["left"].output == (5,)


def test_the_users_own_module_gets_the_jobs_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(
        vertical_parts, "wider", lambda seed: seeds.append(seed) or torch.nn.Linear(3, 5)
    )
    parts = {"left": {"module": "vertical_parts:wider", "output": [5]}, "right": {}, "top": {}}
    settings = job(parts=parts, seed=41)
    for own_seed in (None, 7):
        make_split(settings, make_task(settings), own_seed=own_seed)
    assert seeds == [41, 7]


# --- rows


def test_align_takes_the_leaders_order_and_what_all_hold() -> None:
    ids = {
        "bank": np.array(["d", "a", "c", "x"]),
        "lead": np.array(["c", "b", "a", "d"]),
        "mute": np.empty(0, np.int64),
    }
    found = align(ids, "lead")
    assert ids["lead"][found["lead"]].tolist() == ["c", "a", "d"]
    assert ids["bank"][found["bank"]].tolist() == ["c", "a", "d"]
    assert found["mute"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ({"lead": [], "bank": []}, "no party has any example"),
        ({"lead": [1], "bank": [2]}, "no example is common to all of lead, bank"),
        ({"lead": [1], "bank": ["1"]}, "some parties' ids are texts"),
    ],
)
def test_ids_that_do_not_meet(ids: dict[str, list[object]], sentence: str) -> None:
    with pytest.raises(DataInvalid, match=sentence):
        align({name: np.array(held) for name, held in ids.items()}, "lead")


def test_the_advice_on_few_common_ids_is_of_the_ids_of_both_subsets() -> None:
    seen: list[dict[str, Any]] = []

    def advice(ids: dict[str, Any]) -> str:
        seen.append({party: held.tolist() for party, held in ids.items()})
        return "fold the case"

    task, none = SimpleNamespace(id_hint=advice), Columns(np.empty(0, np.int64))
    train, test = (
        {"lead": Columns(np.array(lead)), "bank": Columns(np.array(bank)), "shop": none}
        for lead, bank in (([3, 1], [7]), ([9], [8, 4]))
    )
    together: Any = SimpleNamespace(task=task)
    assert Parties._id_hint(together, {"train": train, "test": test}) == "fold the case"
    ids = {"train": train["bank"].ids, "test": test["bank"].ids}
    apart: Any = SimpleNamespace(task=task, party="bank", _ids=ids)
    assert Machine._id_hint.func(apart) == "fold the case"
    apart._ids = {"train": none.ids, "test": none.ids}
    assert not Machine._id_hint.func(apart)
    assert seen == [{"lead": [3, 1, 9], "bank": [7, 8, 4]}, {"bank": [7, 8, 4]}]


@pytest.mark.parametrize(("smallest", "is_little"), [(10, False), (11, True)])
def test_few_common_ids_are_told_with_advice(smallest: int, is_little: bool) -> None:
    """One id is common. The shop has no data, so it lacks none."""
    lead, bank = np.arange(15), np.r_[0, 100 : 99 + smallest]
    own = {"lead": Columns(lead), "bank": Columns(bank), "shop": Columns(np.empty(0, np.int64))}
    parties: Any = SimpleNamespace(
        task=SimpleNamespace(leader="lead"), _read=[], _notes=[], _id_hint=lambda owned: "fold it"
    )
    found = Parties._align(parties, {"test": own}, "test")
    assert {name: at.tolist() for name, at in found.items()} == {name: [0] for name in own}
    few = "test: all parties have only 1 of the smallest table's 11 ids; fold it"
    assert parties._read == ([few] if is_little else [])
    assert parties._notes == [
        f"{lacks} of {count} test examples of {name} are left out: not all parties have them"
        for lacks, count, name in ((14, 15, "lead"), (smallest - 1, smallest, "bank"))
    ]
    with pytest.raises(FewCommon, match=r"no example is common .*; fold it$"):
        Parties._align(parties, {"test": own | {"bank": Columns(bank[1:])}}, "test")


@pytest.mark.parametrize(("count", "batch"), [(10, 3), (9, 3), (2, 5)])
def test_an_epoch_goes_through_all_examples_in_its_own_order(count: int, batch: int) -> None:
    order = Order(3, count, batch)
    epochs = [
        np.concatenate([order.of_step(e * order.steps + s + 1) for s in range(order.steps)])
        for e in range(3)
    ]
    assert all(sorted(epoch.tolist()) == list(range(count)) for epoch in epochs)
    assert count == 2 or len({tuple(epoch.tolist()) for epoch in epochs}) == 3
    assert np.concatenate(order.in_turn()).tolist() == list(range(count))


@pytest.mark.parametrize(("wrong", "kind"), [(None, "NoneType"), (VerticalJob(), "VerticalJob")])
def test_what_is_no_job_is_refused_before_anything_is_written(
    wrong: Any, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=f"the job has the type {kind}: use a Job, the path"):
        simulate(wrong, tmp_path / "run")
    with pytest.raises(JobError, match="the job has the type Job: use a VerticalJob, the"):
        train(Job(), tmp_path / "run")  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]
