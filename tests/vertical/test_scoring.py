"""New rows: what they are scored with, what it costs, and what a lying party can do."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import scoring_parts
from fedveil.base import message
from fedveil.base.message import Value
from fedveil.errors import (
    BundleInvalid,
    DataInvalid,
    ExchangeError,
    FewCommon,
    InvalidValue,
    LimitReached,
    MessageInvalid,
    MessageTooLong,
    PartFailed,
    RunFolderError,
    Unfit,
)
from fedveil.link.channel import Receive, Send, drive_together
from fedveil.record.run_folder import TRACEBACK, RunFolder
from fedveil.record.sealed_message import unsealed
from fedveil.vertical import bundle as bundle_module
from fedveil.vertical import evaluate, train
from fedveil.vertical.bundle import DIGEST_BYTES, Bundle, sent_file
from fedveil.vertical.calibrator import CALIBRATOR, Calibrator
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.one_process import look
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.rows import Order
from fedveil.vertical.scoring import predicted, row_alignment, scored_examples, sources
from fedveil.vertical.scoring import scorer as scorer_module
from fedveil.vertical.scoring.predicted import Answers, Decision, ScoreFile
from fedveil.vertical.scoring.scored_examples import SCORED, ScoredExamples
from fedveil.vertical.scoring.scorer import Scorer, Scores
from fedveil.vertical.scoring.sources import Apart, Together, bundles_in, files_of
from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel
from fedveil.vertical.step import Occasion
from scoring_parts import (
    BANKS,
    LEADERS,
    NEW,
    follow_once,
    job_of,
    lead_once,
    played,
    scorers,
    together,
    trained,
    write_table,
)
from synced_disk import SyncedDisk

COMMON = NEW - BANKS - LEADERS


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(("count", "aside", "batch"), [(37, 9, 5), (12, 11, 4), (20, 0, 7)])
def test_no_step_trains_on_what_is_set_aside(count: int, aside: int, batch: int) -> None:
    order = Order(seed=6, count=count, batch_size=batch, aside=aside)
    trained_on = [order.of_step(step) for step in range(1, 2 * order.steps + 1)]
    for epoch in (trained_on[: order.steps], trained_on[order.steps :]):
        assert sorted(np.concatenate(epoch)) == order.trained.tolist()
    assert len(order.set_aside) == aside
    assert sorted([*order.trained, *order.set_aside]) == list(range(count))


def test_a_calibrator_undoes_what_made_a_model_too_sure() -> None:
    draw = np.random.default_rng(2)
    true = draw.normal(size=(4000, 1)) * [0.0, 1.7] + [0.0, -0.6]
    labels = (draw.random(4000) < 1 / (1 + np.exp(true[:, 0] - true[:, 1]))).astype(np.int64)
    fitted = Calibrator.fitted(3 * true + [0.4, 0], labels, "f1")
    assert fitted.factor == pytest.approx(1 / 3, rel=0.1)
    likely = fitted.probabilities(3 * true + [0.4, 0])[:, 1]
    assert abs(likely[likely > 0.7].mean() - labels[likely > 0.7].mean()) < 0.03
    assert Calibrator.read(fitted.written(), "file") == fitted


@pytest.mark.parametrize("criterion", ["balanced_accuracy", "f1"])
def test_no_other_threshold_is_better(criterion: str) -> None:
    draw = np.random.default_rng(4)
    outputs = np.stack([np.zeros(83), draw.normal(size=83).round(1)], axis=1)
    labels = (draw.random(83) < 0.3).astype(np.int64)
    fitted = Calibrator.fitted(outputs, labels, criterion)  # type: ignore[arg-type]
    likely = fitted.probabilities(outputs)[:, 1]

    def score(threshold: float) -> float:
        said = likely >= threshold
        right, wrong, lost = (said & (labels == 1)).sum(), (said & (labels == 0)).sum(), 0
        lost = (~said & (labels == 1)).sum()
        if criterion == "f1":
            return 2 * right / (2 * right + wrong + lost)
        return (right / (right + lost) + 1 - wrong / (labels == 0).sum()) / 2

    assert fitted.threshold is not None
    assert score(fitted.threshold) == max(map(score, [0, *likely, 1.1]))
    assert (
        fitted.decided(fitted.probabilities(outputs)).tolist()
        == (likely >= fitted.threshold).astype(int).tolist()
    )


def test_the_calibrator_is_of_the_rows_set_aside_alone(tmp_path: Path) -> None:
    run = trained(tmp_path) / "run"

    def side(party: PartyRun):  # type: ignore[no-untyped-def]
        rows, order = party.setting.rows["train"], party._parts.order
        outputs = yield from party.party.look(1, rows.batch(order.set_aside))
        sent = party._parts.releases.train
        assert sorted(set(sent.tolist())) == [1, 2], "a resumed run counts the calibration too"
        assert (sent[order.set_aside] == 1).all()
        return outputs, rows.batch(order.set_aside).labels

    outputs, labels = look(run, side)
    fitted = Calibrator.fitted(outputs.numpy(), labels.numpy(), "balanced_accuracy")
    assert (run / "lead" / CALIBRATOR).read_bytes() == fitted.written()
    assert fitted.examples == len(labels) > 20
    sent = list(csv.DictReader((run / "bank" / "sent.csv").open()))
    counts = [int(row["times"]) for row in sent if row["subset"] == "train"]
    assert sorted(set(counts)) == [1, 2]  # set aside: once, trained on: in both epochs
    assert counts.count(1) == fitted.examples


def test_new_rows_get_the_scores_of_the_whole_model(tmp_path: Path, stack: ExitStack) -> None:
    folder = trained(tmp_path)
    source = together(folder, stack)
    assert len(source.common) == COMMON
    found = source.scores(source.common[3:30])
    sides = {party: source._all[party] for party in ("lead", "bank")}
    values: dict[str, torch.Tensor] = {}
    ids = sides["lead"].ids[source.common[3:30]]
    with torch.no_grad():
        for part in source.leader.split.parts:
            side = sides[part.owner]
            place = {one: at for at, one in enumerate(side.ids.tolist())}
            at = torch.tensor([place[one] for one in ids.tolist()])
            columns = side.new.columns.columns
            given = [
                columns[name.removeprefix("data.")][at]
                if name.startswith("data.")
                else values[name]
                for name in part.inputs
            ]
            values[part.name] = side.party.modules[part.name].eval()(*given)
    assert torch.equal(torch.from_numpy(found.outputs), values["top"])
    ScoreFile(tmp_path / "out.csv").write(source, lambda sentence: None)
    lines = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [line["id"] for line in lines] == sides["lead"].ids[source.common].tolist()
    calibrator = Decision(source.leader).calibrator
    assert calibrator is not None
    assert calibrator.threshold is not None
    shares = calibrator.probabilities(found.outputs)
    for line, share in zip(lines[3:30], shares, strict=True):
        assert line["probability of yes"] == f"{share[1]:.6f}"
        assert line["prediction"] == ("yes" if share[1] >= calibrator.threshold else "no")


def test_a_batch_and_single_rows_agree_and_repeats_cost_nothing(
    tmp_path: Path, stack: ExitStack
) -> None:
    source = together(trained(tmp_path, eps=0.7), stack)
    answers, bank = Answers(source), source._all["bank"]
    some = source.common[[4, 9, 4, 30]]
    first, refused = answers.of_rows(some)
    assert not refused.any()
    assert np.array_equal(first[0], first[2])
    before = (bank.state.path / "scored").read_bytes()
    assert len(before) == 3 * 16
    assert np.array_equal(answers.of_rows(some)[0], first)
    assert (bank.state.path / "scored").read_bytes() == before


def test_scores_are_charged_on_disk_with_the_times_in_training(tmp_path: Path) -> None:
    folder = trained(tmp_path, eps=0.5, limit=13.0)
    new = folder / "again.csv"
    old = list(csv.DictReader((folder / "run" / "bank" / "sent.csv").open()))
    twice = next(row["id"] for row in old if row["times"] == "2")
    sent = unsealed((folder / "run" / "bank" / "bundle" / "sent").read_bytes())
    assert sorted(sent["times"].tolist()) == sorted(int(row["times"]) for row in old)
    assert sent["labelled"].sum() == sum(row["subset"] == "train" for row in old) < len(old)
    lead = {"id": [twice, "c5000"], "x0": [0.1, 0.2], "x1": [0, 1.5]}
    write_table(new, lead)
    bank = {"key": ["c5000", twice], "z0": [1, 0], "z1": [0, 2], "kind": ["red", "blue"]}
    write_table(folder / "again-bank.csv", bank)
    allowed = []
    for _ in range(9):
        with ExitStack() as stack:
            source = together(folder, stack, lead=str(new), bank=str(folder / "again-bank.csv"))
            allowed.append(source.scores(source.common).allowed.tolist())
            lines = source._all["bank"].keep_account()
            scored = source._all["bank"].state.path / SCORED
        with scored.open("ab") as file:
            file.write(b"torn")
    times = np.array(allowed).sum(axis=0)
    assert times[1] == times[0] + 2  # the first was sent twice before
    (line,) = lines
    one = line.epsilon / times[1]
    assert times[1] == math.floor(13 / one + 1e-9) < 9
    totals = zip(times.tolist(), (2, 0), strict=True)  # the first was sent twice in training
    assert line.what in {
        f"an example, scored {scored} times and sent {sent} times in training and evaluations"
        for scored, sent in totals
    }
    assert source._all["lead"].keep_account() == []


@pytest.mark.parametrize("killed", [False, True])
def test_a_bundle_that_has_lost_its_counts_neither_scores_nor_lets_a_run_evaluate(
    killed: bool, tmp_path: Path
) -> None:
    """Its log shows that it has scored: each row would be allowed as often once more.

    A process that is killed writes no account.
    """
    folder = trained(tmp_path, eps=0.5, limit=13.0)
    with ExitStack() as stack:
        source = together(folder, stack)
        source.scores(source.common[:3])
        assert killed or len(source._all["bank"].keep_account()) == 1
    path = folder / "run" / "bank" / "bundle" / "state" / SCORED
    raw = path.read_bytes()
    path.unlink()
    with ExitStack() as stack, pytest.raises(RunFolderError, match="scored is missing"):
        together(folder, stack)
    with pytest.raises(RunFolderError, match="scored is missing"):
        evaluate(folder / "run")
    assert not path.exists()
    path.write_bytes(raw)
    with ExitStack() as stack:
        together(folder, stack)


def test_that_a_part_failed_on_a_row_has_no_finite_epsilon(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that asks for one row learns of this row whether the part fails."""
    folder = trained(tmp_path, eps=0.5)
    both = scorers(folder, stack)
    bank, source = both["bank"], Together(list(both.values()))
    source.scores(source.common[:2])
    assert [math.isinf(line.epsilon) for line in bank.keep_account()] == [False]

    def failing(*inputs: torch.Tensor) -> torch.Tensor:
        raise KeyError("unseen")

    monkeypatch.setattr(next(iter(bank.party.modules.values())), "forward", failing)
    with pytest.raises(PartFailed, match=r"^the part bank_.* of bank failed"):
        source.scores(source.common[4:5])
    assert [(math.isinf(line.epsilon), line.what) for line in bank.keep_account()][1:] == [
        (True, "the failure of a part, which the other parties were told")
    ]
    assert "KeyError: 'unseen'" in (bank.state.path / TRACEBACK).read_text()


def test_scores_are_on_disk_before_the_rows_are_sent(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count that only the memory of the machine has is lost in a power failure."""
    scored = scorers(trained(tmp_path, eps=0.5, limit=13.0), stack)["bank"]
    path = scored.state.path / SCORED
    disk = SyncedDisk(path, monkeypatch)
    for number, rows in enumerate(([3, 1], [4, 1, 5]), 1):
        scored.scored.charge(np.array(rows))
        assert disk.content == path.read_bytes()
        assert len(disk.content) == (2, 5)[number - 1] * DIGEST_BYTES


def test_evaluations_and_scores_share_one_limit(tmp_path: Path) -> None:
    """A follower answers either command of a leader that asks for the same rows again and again."""
    folder = trained(tmp_path)
    privacy = {"embedding_dp": {"eps": 0.5}, "max_epsilon": 13.0, "delta": 0.0}
    job = job_of(folder, privacy={**privacy, "randomness": "secure"})
    run = train(job, folder / "secure")
    held_out = [row["id"] for row in csv.DictReader((folder / "secure/bank/sent.csv").open())
                if row["subset"] == "test"][:3]  # fmt: skip
    write_table(folder / "lead-again.csv", {"id": held_out, "x0": [1, 2, 3], "x1": [0, 1, 0]})
    bank = {"key": held_out, "z0": [1, 2, 3], "z1": [0, 1, 0], "kind": ["red"] * 3}
    write_table(folder / "bank-again.csv", bank)
    assert run.figures["bank"][-1].what == "an example's own reports in the run, sent 2 times"
    one = run.figures["bank"][-1].epsilon / 2
    most = math.floor(13 / one + 1e-9)
    with ExitStack() as stack:
        files = {"lead": str(folder / "lead-again.csv"), "bank": str(folder / "bank-again.csv")}
        scorer = {
            party: Scorer(folder / "secure" / party / "bundle", file, stack)
            for party, file in files.items()
        }
        source = Together(list(scorer.values()))
        assert source.scores(source.common).allowed.all()
        for _ in range(3, most):  # two are of the training
            evaluate(folder / "secure")
        with pytest.raises(LimitReached, match=f"evaluation {most} of the held-out examples would"):
            evaluate(folder / "secure")
        assert not source.scores(source.common).allowed.any()
        (line,) = scorer["bank"].keep_account()
    assert line.epsilon == pytest.approx(most * one)
    assert line.epsilon <= 13
    assert line.what == (
        f"an example, scored 1 time and sent {most - 1} times in training and evaluations"
    )


def test_a_row_that_is_evaluated_after_it_was_allowed_is_not_scored_too(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader runs an evaluation in a second process between `allowed` and `go`."""
    both = scorers(trained(tmp_path, eps=0.5, limit=13.0), stack)
    scored, looks = both["bank"].scored, 0

    def sent(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return looks * (keys == keys[0]), np.zeros(len(keys), int)

    monkeypatch.setattr(scored, "_sent", sent)
    row = np.array([3, 1])
    while scored.allowed(row).all():  # so the last number of evaluations leaves one more release
        looks += 1
    assert looks > 3
    with pytest.raises(LimitReached, match="another evaluation of bank began"):
        scored.charge(row)
    assert (both["bank"].state.path / "scored").stat().st_size == 2 * DIGEST_BYTES  # counted


def test_a_row_that_is_scored_after_the_check_is_not_evaluated_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scoring in a second process charges the held-out rows while an evaluation begins."""
    folder = trained(tmp_path)
    privacy = {"embedding_dp": {"eps": 0.5}, "max_epsilon": 13.0, "delta": 0.0}
    job = job_of(folder, privacy={**privacy, "randomness": "secure"})
    train(job, folder / "secure")
    evaluate(folder / "secure")
    asked: list[Path] = []

    def most_scored(path: Path, ids: object) -> int:
        asked.append(path)
        return 100 * (asked.count(path) - 1)

    monkeypatch.setattr(bundle_module, "most_scored", most_scored)
    with pytest.raises(LimitReached, match="evaluation 4 of the held-out examples would"):
        evaluate(folder / "secure")


def scored_after(run: Path, train: dict[str, int], held_out: dict[str, int]) -> ScoredExamples:
    """Return the counter of a bank whose run has sent each id's values that many times."""
    bundle = RunFolder(run / "bundle", None)  # type: ignore[arg-type]
    (bundle.path / "state").mkdir(parents=True)
    ids = [np.array([*sent]) for sent in (train, held_out)]
    times = [np.array([*sent.values()]) for sent in (train, held_out)]
    (bundle.path / "sent").write_bytes(sent_file(ids, times, [True, False]))
    split = SplitModel(
        [Part("low", "bank", ("data.x",), (3,)), Part("top", "lead", ("low",), (2,))], leader="lead"
    )
    state = bundle.within("state")
    return ScoredExamples(bundle, state, split, "bank", SimpleNamespace())  # type: ignore[arg-type]


def test_evaluations_are_charged_to_held_out_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scored_examples, "looks_begun", {tmp_path: 6}.__getitem__)
    scored = scored_after(tmp_path, {"u3": 5, "u1": 2}, {"t1": 4, "t2": 0, "t4": 9})
    scored.load(np.array(["t2", "u1", "new", "t1", "u3", "t4"]))
    times, has_label = scored._sent(scored._own)
    assert times.tolist() == [6, 2, 0, 6, 5, 9]
    assert has_label.tolist() == [0, 1, 0, 0, 1, 0]
    scored.close()


def test_a_training_example_that_is_held_out_too_is_charged_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scored_examples, "looks_begun", {tmp_path: 6}.__getitem__)
    scored = scored_after(tmp_path, {"u3": 5, "both": 2}, {"both": 4, "t2": 9})
    scored.load(np.array(["t2", "both", "new", "u3"]))
    times, has_label = scored._sent(scored._own)
    assert times.tolist() == [9, 2 + 6, 0, 5]
    assert has_label.tolist() == [0, 1, 0, 1]
    scored.close()


def test_nothing_unprotected_is_sent_under_a_limit(tmp_path: Path) -> None:
    with pytest.raises(LimitReached):
        trained(tmp_path, limit=3.0)


def test_a_file_of_another_schema_is_refused_by_name(tmp_path: Path, stack: ExitStack) -> None:
    folder = trained(tmp_path)
    lacks, wrong = folder / "lacks.csv", folder / "wrong.csv"
    write_table(lacks, {"key": ["a"], "z0": [1], "kind": ["red"], "z2": [3]})
    with pytest.raises(DataInvalid, match=r"lacks\.csv lacks the column z1, with which"):
        scorers(folder, stack, bank=str(lacks))
    write_table(wrong, {"key": ["a"], "z0": ["high"], "z1": [0], "kind": ["red"]})
    with ExitStack() as other, pytest.raises(DataInvalid, match=r"line 2: z0 = .high."):
        scorers(trained(tmp_path / "b"), other, bank=str(wrong))


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "table-lead.json", CALIBRATOR, "job.yaml", "sent", "contents.json"],
)
def test_an_edited_file_is_refused(tmp_path: Path, stack: ExitStack, name: str) -> None:
    folder = trained(tmp_path)
    path = folder / "run" / "lead" / "bundle" / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1 if name != "contents.json" else 0
    if name == "job.yaml":
        data += b"\n# edited\n"
    if name == "contents.json":
        data = bytearray(path.read_bytes().replace(b'"step": ', b'"step": 1'))
    path.write_bytes(data)
    with pytest.raises(BundleInvalid, match=rf"{name} is not the file that the parties agreed on"):
        scorers(folder, stack)


def test_a_file_outside_the_manifest_is_refused(tmp_path: Path, stack: ExitStack) -> None:
    folder = trained(tmp_path)
    bundle = folder / "run" / "lead" / "bundle"
    (bundle / "checkpoint" / "state").mkdir(parents=True)
    for name in ("more.csv", "checkpoint/job.yaml", "checkpoint/state/more"):
        (bundle / name).write_text("x")
        with pytest.raises(BundleInvalid, match=rf"{name} is not a file of the bundle .* added"):
            Bundle.read(bundle)
        (bundle / name).unlink()
    Bundle.read(bundle)
    for name in ("manifest", "contents"):
        (bundle / f"{name}.json").write_text('{"format": 2}')
        with pytest.raises(BundleInvalid, match=f"{name}.json is damaged, or of another version"):
            Bundle.read(bundle)


def test_an_edit_after_the_first_mebibytes_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_module, "_AT_ONCE", 100)
    bundle = trained(tmp_path) / "run" / "lead" / "bundle"
    Bundle.read(bundle)
    data = bytearray((bundle / "model.safetensors").read_bytes())
    data[-3] ^= 1
    (bundle / "model.safetensors").write_bytes(data)
    with pytest.raises(BundleInvalid, match=r"model\.safetensors is not the file that the part"):
        Bundle.read(bundle)


def test_rows_without_a_common_id_are_told_the_near_misses(
    tmp_path: Path, stack: ExitStack
) -> None:
    folder = trained(tmp_path)
    capitals = tmp_path / "capitals.csv"
    head, *rows = (folder / "new-lead.csv").read_text().splitlines()
    capitals.write_text("\n".join([head, *(row.upper() for row in rows)]))
    few = "no example is common .*; looser rules .*: 101 with case: fold"
    with pytest.raises(FewCommon, match=few):
        together(folder, stack, lead=str(capitals))


def test_bundles_of_two_models_do_not_score_together(tmp_path: Path, stack: ExitStack) -> None:
    one, other = trained(tmp_path), trained(tmp_path / "b", eps=0.7)
    mixed = [scorers(one, stack)["lead"], scorers(other, stack)["bank"]]
    with pytest.raises(BundleInvalid, match="of different models"):
        Together(mixed)


@pytest.mark.parametrize(("party", "missing"), [("lead", "bank"), ("bank", "lead")])
def test_one_party_alone_is_told_what_is_missing(
    party: str, missing: str, tmp_path: Path, stack: ExitStack
) -> None:
    own = scorers(trained(tmp_path), stack)[party]
    with pytest.raises(BundleInvalid, match=f"^the bundle of {missing} is missing: name the run's"):
        Together([own])


def test_files_are_given_to_parties() -> None:
    assert files_of(["a=x.csv", "b=y=z.csv"], ["a", "b"]) == {"a": "x.csv", "b": "y=z.csv"}
    assert files_of(["year=9.csv"], ["a"]) == {"a": "year=9.csv"}
    assert files_of(["a"], ["a"]) == {"a": "a"}
    for data, why in (
        (["x.csv"], "names no party"),
        (["a=x", "a=y"], "twice"),
        (["a=x"], "b=FILE"),
    ):
        with pytest.raises(InvalidValue, match=why):
            files_of(data, ["a", "b"])


# --- parties that lie


def changed(**fields: Value):  # type: ignore[no-untyped-def]
    return lambda message: {**message, **fields}


def test_an_honest_session_scores(tmp_path: Path, stack: ExitStack) -> None:
    folder = trained(tmp_path)
    found = played(scorers(folder, stack), [[0, 5], [7]])
    with ExitStack() as other:
        source = together(trained(tmp_path / "b"), other)
        alone = source.scores(source.common[[0, 5]])
        lines = source._all["bank"].keep_account()
    assert np.array_equal(found[0].outputs, alone.outputs)
    assert len(found[1].outputs) == 1
    assert lines
    assert all(line.epsilon == math.inf for line in lines)


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("rows", {"request": 1}, "request 1, and request 2 was due"),
        ("rows", {"request": 3}, "request 3, and request 2 was due"),
        ("rows", {"positions": np.array([COMMON])}, "not among the"),
        ("rows", {"positions": np.array([-1])}, "not among the"),
        ("rows", {"positions": np.array([2, 2])}, "a row twice"),
        ("rows", {"positions": np.zeros(0, np.int64)}, "asks for 0 rows"),
        ("rows", {"positions": np.arange(4097)}, "4,097 rows"),
        ("rows", {"positions": np.array([0.5])}, "positions"),
        ("go", {"positions": np.array([9])}, "not allowed"),
        ("go", {"request": 1}, "request 1, and request 2 was due"),
        ("begin", {"bundle": bytes(32)}, "another model"),
        ("begin", {"purpose": "train"}, "asks for 'train'"),
        ("begin", {"align_by": "digests"}, "aligns by 'digests'"),
        ("begin", {"ids": 10_000}, "its limit is "),
        ("blinded", {"kind": "aligned"}, "ended the alignment before all ids were exchanged"),
        ("aligned", {"kind": "enough"}, "sent 'enough' where 'aligned' was due"),
        ("aligned", {"rows": np.array([0, 0])}, "not distinct"),
        ("aligned", {"rows": np.arange(NEW - LEADERS)}, "shown_score"),
        ("enough", {"request": 2}, "request 2, and request 3 was due"),
    ],
)
def test_a_lying_leader_is_refused_before_anything_is_sent(
    tmp_path: Path, stack: ExitStack, kind: str, fields: dict[str, Value], why: str
) -> None:
    both = scorers(trained(tmp_path), stack)
    calls = [0]

    def change(message):  # type: ignore[no-untyped-def]
        calls[0] += 1
        second = kind not in ("rows", "go") or calls[0] == 2
        return {**message, **fields} if second else message

    with pytest.raises(ExchangeError, match=why):
        played(both, [[3], [5]], lead={kind: change})
    sent = (both["bank"].state.path / "scored").read_bytes()
    asked = {"rows": 1, "go": 1, "enough": 2}.get(kind, 0)
    assert len(sent) == 16 * asked


def test_a_row_that_was_allowed_once_is_not_sent_twice(tmp_path: Path, stack: ExitStack) -> None:
    both = scorers(trained(tmp_path), stack)
    with pytest.raises(ExchangeError, match="it asks for a row twice"):
        played(both, [[3, 5]], lead={"go": changed(positions=np.array([5, 5]))})
    assert (both["bank"].state.path / "scored").read_bytes() == b""


@pytest.mark.parametrize(
    ("kind", "fields", "why"),
    [
        ("allowed", {"allowed": np.array([2, 1], np.uint8)}, "not a mask"),
        ("allowed", {"allowed": np.ones(3, np.uint8)}, "allowed"),
        ("allowed", {"request": 4}, "request 4"),
        ("apply", {"bundle": bytes(32)}, "another model"),
        ("apply", {"ids": 10_000}, "its limit is"),
        ("apply", {"ids": 0}, "no ids"),
    ],
)
def test_a_lying_follower_is_refused(
    tmp_path: Path, stack: ExitStack, kind: str, fields: dict[str, Value], why: str
) -> None:
    both = scorers(trained(tmp_path), stack)
    with pytest.raises((ExchangeError, Unfit), match=why):
        played(both, [[3, 8]], bank={kind: changed(**fields)})


def test_digests_are_those_of_distinct_ids_under_a_whole_key(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(message):  # type: ignore[no-untyped-def]
        return {**message, "digests": np.repeat(message["digests"][:1], message["ids"], axis=0)}

    monkeypatch.setattr(row_alignment, "_by", lambda scorer: "digests")
    both = scorers(trained(tmp_path), stack)
    both["lead"].most_ids = both["bank"].most_ids = 10_000
    assert len(played(both, [[3]])[0].outputs) == 1
    with pytest.raises(Unfit, match="bank has an id twice"):
        played(both, [[3]], bank={"apply": twice})
    with pytest.raises(ExchangeError, match="its key has 5 bytes"):
        played(both, [[3]], lead={"begin": changed(key=b"short")})


def test_the_leader_notes_the_rows_that_only_one_party_has(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, notes = scorers(trained(tmp_path), stack), list[str]()
    both["bank"].ids = both["bank"].ids[:9]
    monkeypatch.setattr(both["lead"], "note", notes.append)
    played(both, [[0]])
    common = len(np.intersect1d(both["bank"].ids, both["lead"].ids))
    leads = len(both["lead"].ids)
    assert notes[0] == (
        f"score: bank lacks {leads - common} of the {leads} examples of lead and has "
        f"{9 - common} others; only the {common} that all parties have are used"
    )


def test_a_row_goes_on_if_every_party_allows_it() -> None:
    seen: list[list[int]] = []
    found: list[Any] = []

    def look(going: Any) -> Any:
        seen.append(going.tolist())
        return np.zeros((len(going), 2))
        yield

    scorer: Any = SimpleNamespace(
        _check=lambda positions: None, _request=0, followers=("bank", "shop"),
        _used=np.arange(90, 99), scored=SimpleNamespace(allowed=lambda rows: rows != 97),
        _allowed=lambda follower, message, count: np.array(message["allowed"], bool), _look=look,
        split=SimpleNamespace(last=SimpleNamespace(output=(2,))),
    )  # fmt: skip

    def asked() -> Any:
        found.append((yield from Scorer.ask(scorer, np.array([4, 2, 7, 1, 8]))))

    allowed = {"bank": [0, 1, 1, 1, 1], "shop": [1, 1, 1, 0, 1]}
    asking, answer = asked(), None
    with suppress(StopIteration):
        while True:
            request = asking.send(answer)
            answer = None
            if isinstance(request, Receive):
                answer = {"kind": "allowed", "allowed": allowed[request.peer]}
    assert seen == [[2, 8]]
    assert found[0].allowed.tolist() == [False, True, False, False, True]


def test_a_session_needs_the_right_to_predict(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(own: object, who: str, right: str) -> None:
        if who != "bank":
            raise KeyError(who, right)

    monkeypatch.setattr(sources, "check_right", refused)
    split = SimpleNamespace(leader="lead")
    party: Any = SimpleNamespace(followers=("bank", "shop"), split=split)
    meeting: Any = SimpleNamespace(credentials=None, patience_s=0.1)
    for begin, peer in (
        (lambda: sources.Apart(party, meeting, ExitStack()), "shop"),
        (lambda: sources.follow(party, meeting), "lead"),
    ):
        with pytest.raises(KeyError) as asked:
            begin()
        assert asked.value.args == (peer, "predict")


def test_an_application_to_an_earlier_attempt_is_no_application(
    tmp_path: Path, stack: ExitStack
) -> None:
    lead = scorers(trained(tmp_path), stack)["lead"]
    leading = row_alignment.lead(lead, 2)
    assert isinstance(next(leading), Send)
    assert isinstance(leading.send(None), Receive)
    stale = {"kind": "apply", "attempt": 1, "bundle": lead.bundle.name, "ids": 5}
    for other in (stale, {"kind": np.arange(2)}, {**stale, "attempt": np.array([2, 2])}):
        assert isinstance(leading.send(other), Receive)
    with pytest.raises(Unfit, match="another model"):
        leading.send({**stale, "attempt": 2, "bundle": bytes(32)})


def test_an_example_of_several_files_is_counted_once(tmp_path: Path, stack: ExitStack) -> None:
    bank = scorers(trained(tmp_path), stack)["bank"]
    for times in range(1, 5):
        bank.scored.load(bank.ids[::-1] if times % 2 else bank.ids)
        place = len(bank.ids) - 5 if times % 2 else 4
        bank.scored.charge(np.array([place]))
        assert np.flatnonzero(bank.scored._scored).tolist() == [place]
        assert bank.scored._scored[place] == times


def test_each_row_is_charged_for_its_own_times_and_its_own_label(tmp_path: Path) -> None:
    """Training and held-out examples are mixed in the order of their digests."""
    asked: list[tuple[int, bool, int]] = []

    def allows(times: int, *, labelled: bool, scored: int) -> bool:
        asked.append((times, labelled, scored))
        return times != 6

    ids = [np.array(["u3", "u1", "u2", "u7"]), np.array(["t1", "t2", "t4"])]
    times = [np.array([5, 6, 7, 4]), np.array([9, 9, 9])]
    (tmp_path / "sent").write_bytes(sent_file(ids, times, [True, False]))
    split = SplitModel(
        [
            Part("low", "bank", ("data.x",), (3,)),
            Part("high", "bank", ("low", "data.z"), (5,)),
            Part("top", "lead", ("high", "low"), (2,)),
        ],
        leader="lead",
    )
    folder: Any = RunFolder(tmp_path, None)  # type: ignore[arg-type]
    scored = ScoredExamples(folder, folder, split, "bank", SimpleNamespace(allows=allows))  # type: ignore[arg-type]
    scored.load(np.array(["t2", "u1", "new", "u2", "u7", "u3", "t4"]))
    scored.charge(np.array([4, 0]))
    asked.clear()
    allowed = [scored.allowed(np.array([row])).tolist() for row in range(7)]
    assert asked == [
        (9, False, 2), (6, True, 1), (0, False, 1), (7, True, 1), (4, True, 2), (5, True, 1),
        (9, False, 1),
    ]  # fmt: skip
    assert allowed == [[True], [False], *[[True]] * 5]
    assert [line.what for line in scored.figures()] == [
        "a scored example's low, sent unprotected", "a scored example's high, sent unprotected"
    ]  # fmt: skip
    scored.close()


class Refusing:
    """A source whose outputs tell the row, and which refuses some rows."""

    is_connected = True

    def __init__(self, count: int, common: list[int], refused: set[int]) -> None:
        task = SimpleNamespace(classes=None, in_own_unit=lambda outputs: 10 * outputs + 3)
        self.common, self.refused, self.most = np.array(common), refused, 0
        self.leader: Any = SimpleNamespace(
            task=task,
            folder=SimpleNamespace(path=Path()),
            bundle=SimpleNamespace(contents=SimpleNamespace(files={})),
            split=SimpleNamespace(last=SimpleNamespace(output=(1,))),
            ids=np.array([f"id{row}" for row in range(count)]),
        )

    def scores(self, rows: Any) -> Scores:
        self.most = max(self.most, len(rows))
        allowed = ~np.isin(rows, list(self.refused))
        return Scores(allowed, rows[allowed].astype(np.float32)[:, np.newaxis] / 8)


def test_a_row_without_a_finite_output_has_no_line_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicted, "MOST_ROWS", 3)
    source, said = Refusing(11, [9, 4, 2, 7, 0, 10, 5], {9}), list[str]()
    scores = source.scores

    def endless(rows: Any) -> Scores:
        found = scores(rows)
        found.outputs[np.isin(rows[found.allowed], [4, 2, 5])] = np.inf
        return found

    monkeypatch.setattr(source, "scores", endless)
    counts = ScoreFile(tmp_path / "out.csv").write(source, said.append)
    assert counts == {"scored": 3, "refused": 1, "unusable": 3, "alone": 4}
    lines = (tmp_path / "out.csv").read_text("utf-8").splitlines()
    assert [line.partition(",")[0] for line in lines] == ["id", "id7", "id0", "id10"]
    assert said == [
        "no prediction for 3 rows, such as 'id4': the model's output is NaN or infinite. Look for "
        "very large numbers in the files"
    ]


def test_a_row_whose_output_overflows_at_a_follower_leaves_the_others_their_scores(
    tmp_path: Path, stack: ExitStack
) -> None:
    source = together(trained(tmp_path), stack)
    bank, some = source._all["bank"], source.common[:6]
    clean = source.scores(some)
    bank.new.columns.columns["numbers"][bank._used[2]] = 1e30
    found = source.scores(some)
    assert predicted.usable(found.outputs).tolist() == [True, True, False, True, True, True]
    others = predicted.usable(found.outputs)
    assert np.array_equal(found.outputs[others], clean.outputs[others])


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
def test_predictions_that_are_cut_off_are_kept_and_do_not_look_complete(
    end: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicted, "MOST_ROWS", 3)
    source, path = Refusing(11, [9, 4, 2, 7, 0, 10, 5], {9}), tmp_path / "out.csv"
    scores, pieces = source.scores, list[Any]()

    def cut(rows: Any) -> Scores:
        pieces.append(rows)
        if len(pieces) == 3:
            assert (tmp_path / "out.csv.part").read_text("utf-8").count("\n") == 6  # if killed now
            raise end(28, "No space left on device")
        return scores(rows)

    monkeypatch.setattr(source, "scores", cut)
    with pytest.raises((KeyboardInterrupt, RunFolderError)) as error:
        ScoreFile(path).write(source, lambda sentence: None)
    assert error.value.__notes__ == [f"the predictions so far are in {path}.part"]
    assert not path.exists()
    ids = [line.partition(",")[0] for line in Path(f"{path}.part").read_text("utf-8").splitlines()]
    assert ids == ["id", "id4", "id2", "id7", "id0", "id10"]
    with pytest.raises(RunFolderError, match=r"out\.csv\.part has the predictions of a command"):
        ScoreFile(path)
    Path(f"{path}.part").unlink()
    ScoreFile(path).write(source, lambda sentence: None)
    assert [found.name for found in tmp_path.iterdir()] == ["out.csv"]


def test_a_file_has_a_line_for_each_row_that_no_party_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicted, "MOST_ROWS", 3)
    source, said = Refusing(11, [9, 4, 2, 7, 0, 10, 5], {9, 4, 2, 0}), list[str]()
    counts = ScoreFile(tmp_path / "out.csv").write(source, said.append)
    assert counts == {"scored": 3, "refused": 4, "unusable": 0, "alone": 4}
    assert (tmp_path / "out.csv").read_text("utf-8").splitlines() == [
        "id,prediction", "id7,11.75", "id10,15.5", "id5,9.25"
    ]  # fmt: skip
    assert not said  # numbers have no probabilities that could be calibrated
    outputs, refused = Answers(source).of_rows(np.array([5, 7, 0, 10, 7, 9, 4]))
    assert refused.tolist() == [False, False, True, False, False, True, True]
    assert (8 * outputs[~refused, 0]).tolist() == [5, 7, 10, 7]
    assert source.most == 3


@pytest.mark.parametrize("rows", [[], [-1, 2], [2, 5], [3, 3]])
def test_a_leader_cannot_name_a_row_that_is_not_there(rows: list[int]) -> None:
    scorer: Any = SimpleNamespace(ids=np.arange(5))

    def told(rows: list[int]) -> Any:
        message: Any = {"kind": "aligned", "rows": np.array(rows, np.int64)}
        return row_alignment._rows(scorer, message, None)

    with pytest.raises(MessageInvalid, match="not distinct positions among the 5 here"):
        told(rows)
    assert told([4, 0]).tolist() == [4, 0]


def test_a_follower_that_restarts_is_asked_from_the_first_request(tmp_path: Path) -> None:
    folder, found = trained(tmp_path), []
    bundles = {name: folder / "run" / name / "bundle" for name in ("lead", "bank")}
    with ExitStack() as stack:
        lead = Scorer(bundles["lead"], str(folder / "new-lead.csv"), stack)
        for rows in ([[3, 1], [4]], [[1, 5]]):
            with ExitStack() as its:
                bank = Scorer(bundles["bank"], str(folder / "new-bank.csv"), its)
                sides = {"lead": lead_once(lead, rows), "bank": follow_once(bank)}
                found.append(drive_together(sides, encoded=True)["lead"])
    np.testing.assert_allclose(found[0][0].outputs[1], found[1][0].outputs[0], atol=1e-5)


def test_a_bundle_has_the_limits_of_its_job_and_says_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, said = trained(tmp_path), list[str]()
    kinds = ["red", "blue", "never seen"]
    bank = {"key": ["c1", "c2", "c3"], "z0": [1, 0, 2], "z1": [0, 2, 1], "kind": kinds}
    write_table(folder / "new.csv", bank)

    def opened(most: int | None) -> int:
        with ExitStack() as stack:
            path = folder / "run" / "bank" / "bundle"
            scorer = Scorer(path, str(folder / "new.csv"), stack, None, said.append, most)
            assert scorer.new.notes
            assert [f"bank: {note}" for note in scorer.new.notes] == said[-len(scorer.new.notes) :]
            return scorer.most_ids

    assert [opened(most) for most in (None, 5, 0)] == [12, 5, 0]
    load = scorer_module.job_of_run
    monkeypatch.setattr(
        scorer_module, "job_of_run", lambda file: load(file).with_(alignment={"most_ids": 17})
    )
    assert [opened(most) for most in (None, 5)] == [17, 5]


def test_each_alignment_has_a_number_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to an earlier one are on their way when a follower restarts."""
    began: list[Any] = []
    used: list[Any] = []
    apart: Any = object.__new__(Apart)
    split = SimpleNamespace(followers=("bank", "shop"))
    apart.leader = SimpleNamespace(use=used.append, ids=np.arange(5), split=split, most_ids=7)
    apart._meeting = SimpleNamespace(patience_s=1.0)
    apart._links = {
        name: SimpleNamespace(peer=name, send=print, begin=lambda name=name: began.append(name))
        for name in ("bank", "shop")
    }
    apart._attempt, apart._agreed = 0, False
    monkeypatch.setattr(row_alignment, "lead", lambda leader, attempt: began.append(attempt))
    found = iter([np.array([0, 3, 4]), np.array([1, 4])])
    monkeypatch.setattr(sources, "drive", lambda exchange, links: next(found))
    for place in ([0, -1, -1, 1, 2], [-1, 0, -1, -1, 1]):
        apart._align()
        assert apart._agreed
        assert apart._place.tolist() == place
        assert used[-1] is apart.common
    assert began == ["bank", "shop", 1, "bank", "shop", 2]


def test_a_leader_refuses_who_is_unfit_and_waits_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []
    links = {
        name: SimpleNamespace(
            is_connected=name == "bank",
            refuse=lambda why, name=name: done.append((name, why)),
            await_another=lambda name=name: done.append(name),
        )
        for name in ("bank", "shop")
    }
    apart = object.__new__(Apart)
    apart._links, apart._agreed = links, True  # type: ignore[assignment]
    apart._meeting = SimpleNamespace(report=done.append)  # type: ignore[assignment]
    tried = iter([Unfit("shop", "shop has no ids"), None])

    def work() -> str:
        if (error := next(tried)) is not None:
            raise error
        done.append(apart._agreed)
        return "scores"

    assert apart._retrying(work) == "scores"
    refused = ["refused: shop has no ids", ("shop", "shop has no ids"), "shop"]
    assert done == [*refused, False]  # the common rows must be found again
    assert not apart.is_connected
    monkeypatch.setattr(sources, "drive", lambda *given: pytest.fail("nothing was agreed on"))
    apart._finish()


def test_a_row_that_the_limit_refuses_is_not_sent_to_a_lying_leader(
    tmp_path: Path, stack: ExitStack
) -> None:
    both = scorers(trained(tmp_path, eps=0.5, limit=13.0), stack)
    for _ in range(6):
        both["bank"].scored.charge(np.arange(len(both["bank"].ids)))
    before = (both["bank"].state.path / "scored").read_bytes()

    def insist(message):  # type: ignore[no-untyped-def]
        return {**message, "positions": np.array([4])}

    with pytest.raises(ExchangeError, match="rows that were not allowed"):
        played(both, [[4]], lead={"go": insist})
    assert (both["bank"].state.path / "scored").read_bytes() == before


def test_guesses_at_ids_are_counted_over_restarts(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    for _ in range(3):
        with ExitStack() as stack:
            played(scorers(folder, stack), [[1]])
    with ExitStack() as stack, pytest.raises((ExchangeError, Unfit), match="would learn of each"):
        played(scorers(folder, stack), [[1]])
    with ExitStack() as stack:
        both = scorers(folder, stack)
        both["lead"].most_ids = both["bank"].most_ids = 1000
        assert len(played(both, [[1]])[0].outputs) == 1


@pytest.mark.parametrize("party", ["lead", "bank"])
@pytest.mark.parametrize("before", ["scored together", "asked by itself"])
def test_a_bundle_without_its_guesses_answers_no_other_party(
    before: str, party: str, tmp_path: Path
) -> None:
    """Also if no other party has asked yet, and if the file is deleted while the bundle is used."""
    folder = trained(tmp_path)
    with ExitStack() as stack:
        both = scorers(folder, stack)
        if before == "scored together":
            played(both, [[1]])
        path = both[party].state.path / "guesses"
        moved = path.rename(tmp_path / "copy")
        with pytest.raises(RunFolderError, match=r"guesses is missing: it counts the ids"):
            played(both, [[1]])
    with ExitStack() as stack, pytest.raises(RunFolderError, match="guesses is missing"):
        played(scorers(folder, stack), [[1]])
    assert not path.exists()
    moved.rename(path)
    with ExitStack() as stack:
        both = scorers(folder, stack)
        both["lead"].most_ids = both["bank"].most_ids = 1000
        assert len(played(both, [[1]])[0].outputs) == 1


def test_a_row_gets_a_fresh_report_each_time_it_is_scored(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions are those of a file, so a remembered report would be of another file's row."""
    made: list[Reports] = []

    def noted(*given: Any, **more: Any) -> Reports:
        made.append(Reports(*given, **more))
        return made[-1]

    monkeypatch.setattr(scorer_module, "Reports", noted)
    bank = scorers(trained(tmp_path, eps=0.7), stack)["bank"]
    crossing = next(each for each in bank.split.crossings if each.sender == "bank")
    reused = replace(crossing, output=(97,), privacy=EmbeddingPrivacy(0.7, "none", reuse=True))
    values, occasion = np.zeros((2, 97), np.float32), Occasion("score", 0, 1, 0, np.array([4, 1]))
    for reports in made:
        one, other = (reports(reused, values, occasion).tobytes() for _ in range(2))
        assert one != other
    assert len(made) == 2
    values[1] = np.nan
    made[1](reused, values, occasion)
    log = (bank.state.path / "events.log").read_text("utf-8")
    assert "1 of 2 examples are reported as zeros: the output of" in log


def test_rows_are_scored_where_the_tables_of_the_training_are_not(
    tmp_path: Path, stack: ExitStack
) -> None:
    folder, held = trained(tmp_path), scoring_parts._trained(None, None)
    names = [f"{party}.csv" for party in ("lead", "bank")]
    for name in names:
        (held / name).rename(held / f"{name}.away")
    try:
        source = together(folder, stack)
        assert len(source.scores(source.common[:3]).outputs) == 3
    finally:
        for name in names:
            (held / f"{name}.away").rename(held / name)


def test_a_party_that_scores_has_the_jobs_threads_and_refuses_tensors_that_are_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before, load = trained(tmp_path), torch.get_num_threads(), scorer_module.job_of_run
    monkeypatch.setattr(
        scorer_module, "job_of_run", lambda file: load(file).with_(threads=before + 2)
    )
    with ExitStack() as stack:
        scorers(folder, stack)
        assert torch.get_num_threads() == before + 2
    assert torch.get_num_threads() == before
    monkeypatch.setattr(message, "MOST_CARRIED", scorer_module.MOST_ROWS)
    with ExitStack() as stack, pytest.raises(MessageTooLong, match="for 4096 examples"):
        scorers(folder, stack)


def test_a_follower_that_scores_pays_for_no_label_and_at_the_jobs_delta(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, privacy = scorer_module.job_of_run, {"label_dp": {"eps": 3.0}, "delta": 2e-4}
    monkeypatch.setattr(scorer_module, "job_of_run", lambda file: load(file).with_(privacy=privacy))
    both = scorers(trained(tmp_path, eps=0.7), stack)
    cost = {name: one.scored._limit.figure for name, one in both.items()}
    assert cost["lead"](0, labelled=True) == (3.0, 0.0)
    assert cost["bank"](0, labelled=True).epsilon == 0
    often = cost["bank"](40, labelled=True)
    assert often == cost["bank"](40, labelled=False)
    assert often.delta == 2e-4


def test_a_run_folder_names_its_bundles(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    names = [path.parent.name for path in bundles_in(folder / "run")]
    assert names == ["bank", "lead"]
    assert bundles_in(folder / "run" / "bank" / "bundle") == [folder / "run" / "bank" / "bundle"]
    contents = json.loads((folder / "run" / "bank" / "bundle" / "contents.json").read_bytes())
    assert contents["columns"] == {"key": "ids", "z0": "numbers", "z1": "numbers", "kind": "words"}


def test_one_process_at_a_time_has_a_bundle(tmp_path: Path, stack: ExitStack) -> None:
    from fedveil.errors import FolderInUse

    folder = trained(tmp_path)
    scorers(folder, stack)
    with pytest.raises(FolderInUse):
        Scorer(folder / "run" / "bank" / "bundle", str(folder / "new-bank.csv"), ExitStack())
