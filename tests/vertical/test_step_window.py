"""The numbers of a training record, what a bundle says was sent, and what a resumed run needs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fedveil
import vertical_parts
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import RunFolderError
from fedveil.mechanisms import EmbeddingDP
from fedveil.record.run_folder import METRICS, RunFolder
from fedveil.record.sealed_message import unsealed
from fedveil.vertical import VerticalJob, log_lines, step_window
from fedveil.vertical import rows as rows_module
from fedveil.vertical.bundle import (
    Contents,
    Manifest,
    id_digests,
    most_scored,
    sent_file,
    write_contents,
    write_manifest,
)
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.epsilon_limit import Limit
from fedveil.vertical.rows import Rows
from fedveil.vertical.signatures import Signatures
from fedveil.vertical.split import EmbeddingPrivacy
from fedveil.vertical.step import Occasion
from fedveil.vertical.step_checkpoint import Checkpoint, check_begins
from fedveil.vertical.step_window import StepWindow
from fedveil.vertical.task import Measured
from synced_disk import SyncedDisk


def test_a_record_has_the_means_of_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes and seconds of an evaluation between two steps are no step's."""
    clock = iter([10.0, 12.0, 50.0, 53.0, 54.5, 90.0])
    monkeypatch.setattr(step_window, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    party = SimpleNamespace(sent_bytes=5, received_bytes=7, waited_s=1.0)

    def passed(sent: int, received: int, waited: float) -> None:
        party.sent_bytes += sent
        party.received_bytes += received
        party.waited_s += waited

    window = StepWindow(party)
    for evaluated, (sent, received, waited), loss, count in (
        (False, (100, 30, 0.25), 0.5, 4), (True, (200, 50, 0.5), None, 6),
        (False, (300, 10, 0.125), 2.0, 1),
    ):  # fmt: skip
        if evaluated:
            passed(9_000, 8_000, 7.0)
            window.look_away()
        passed(sent, received, waited)
        window.add(loss, count)
    assert window.figures("tokens", 16) == {
        "loss": 1.25, "bytes_sent_per_step": 200.0, "bytes_received_per_step": 30.0,
        "unit": "tokens", "seconds_per_unit": (2 + 3 + 1.5) / (11 * 16), "seconds_waiting": 0.875,
    }  # fmt: skip
    resumed = StepWindow(party, window.kept)
    resumed._rows = 1
    again = resumed.figures("tokens", 16)
    assert (again["loss"], again["bytes_sent_per_step"], again["seconds_waiting"]) == (1.25, 200, 0)


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path: Path) -> None:
    folder: Any = RunFolder(tmp_path, None)  # type: ignore[arg-type]
    window = {"loss": 0.5, "losses": 1, "steps": 1, "sent": 2, "received": 3}
    (tmp_path / "checkpoint").mkdir()
    Checkpoint(3, "f", 0, "", window, {"x": torch.ones(2)}).write(folder)
    assert Checkpoint.read(folder, 3).window == window
    (tmp_path / "checkpoint" / f"{3:09d}").rename(tmp_path / "checkpoint" / f"{4:09d}")
    with pytest.raises(RunFolderError, match="it is of step 3"):
        Checkpoint.read(folder, 4)


def test_a_folder_without_a_record_of_a_step_may_begin(tmp_path: Path) -> None:
    """A process that is killed before its first checkpoint has made the file of records."""
    folder: Any = RunFolder(tmp_path, None)  # type: ignore[arg-type]
    check_begins(folder)
    (tmp_path / METRICS).write_bytes(b"")
    check_begins(folder)
    (tmp_path / METRICS).write_bytes(b"{}\n")
    with pytest.raises(RunFolderError, match="holds no step"):
        check_begins(folder)


def test_metrics_over_all_examples_are_of_bfloat16_outputs_too() -> None:
    def figures(outputs: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        return {"largest": float(outputs.max()), "labels": labels.tolist()}

    def metrics(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        return {"examples": len(labels), "loss_sum": float(outputs.sum())}

    measured = Measured(SimpleNamespace(figures=figures, metrics=metrics))  # type: ignore[arg-type]
    for rows, labels in (([[0.5], [2.5], [1.0]], [4, 1, 2]), ([[-3.0]], [9])):
        measured.add(torch.tensor(rows, dtype=torch.bfloat16), torch.tensor(labels))
    measured.add(torch.ones(2, 1), None)
    assert measured.quality() == {"loss": 0.25, "largest": 2.5, "labels": [4, 1, 2, 9]}


def test_a_line_has_the_figures_of_its_record() -> None:
    record = {
        "epoch": 3, "step": 2, "steps": 9, "loss": 0.25, "unit": "tokens", "seconds_waiting": 1.5,
        "seconds_per_unit": 0.002, "bytes_sent_per_step": 1000, "bytes_received_per_step": 4000,
    }  # fmt: skip
    said = "epoch 3 step 2/9 loss: 0.250000, 500 tokens/s, 5 KB a step, 1.50 s waiting"
    assert log_lines.line(record) == said


def test_a_line_says_what_its_record_lacks() -> None:
    """Some followers know no loss. A resumed run may have no time of a step."""
    steps = {
        "epoch": 3, "step": 2, "steps": 9, "unit": "tokens", "seconds_waiting": 1.5,
        "seconds_per_unit": 0.0, "bytes_sent_per_step": 1000, "bytes_received_per_step": 4000,
    }  # fmt: skip
    for record, said in (
        (steps, "epoch 3 step 2/9, - tokens/s, 5 KB a step, 1.50 s waiting"),
        ({"epoch": 3, "look": 18, "seconds": 0.5}, "epoch 3 held-out examples: sent"),
        ({"epoch": 5, "calibration": 18, "examples": 1200},
         "epoch 5 calibrated on 1,200 training examples"),
    ):  # fmt: skip
        assert log_lines.line(record) == said


def test_a_bundle_at_the_end_has_no_file_of_an_earlier_end(tmp_path: Path) -> None:
    old = [tmp_path / name for name in ("calibrator.json", "manifest.json", "signatures.json")]
    for path in old:
        path.write_text("{}")
    folder: Any = RunFolder(tmp_path, None)  # type: ignore[arg-type]
    write_contents(
        folder, VerticalJob(), party="lead", step=3, modules=torch.nn.ModuleDict(), columns={},
        files={}, sent=b"",
    )  # fmt: skip
    assert not any(path.exists() for path in old)


def test_a_bundle_says_how_often_each_id_was_sent_and_which_had_labels() -> None:
    ids = [np.array(["a", "bé", "c"]), np.empty(0, "U1"), np.array(["zz"])]
    times = [np.array([3, 1, 2]), np.array([9]), np.array([5])]
    found = unsealed(sent_file(ids, times, [True, True, False]))
    assert found["times"].tolist() == [3, 1, 2, 5]
    assert found["labelled"].tolist() == [1, 1, 1, 0]
    assert np.array_equal(found["ids"], id_digests(np.array(["a", "bé", "c", "zz"])))
    assert len(np.unique(found["ids"], axis=0)) == 4
    assert unsealed(sent_file(ids[1:2], times[1:2], [True]))["ids"].shape == (0, 16)


def test_contents_name_the_party_the_step_the_columns_and_every_file(tmp_path: Path) -> None:
    folder: Any = RunFolder(tmp_path, None)  # type: ignore[arg-type]
    digest = write_contents(
        folder, VerticalJob(), party="bank", step=37, modules=torch.nn.ModuleDict(),
        columns={"age": "numbers"}, files={"table.json": b"[1]"}, sent=b"counts",
    )  # fmt: skip
    raw = (tmp_path / "contents.json").read_bytes()
    assert digest == hashlib.sha256(raw).digest()
    found = Contents.model_validate_json(raw)
    assert (found.party, found.step, found.columns) == ("bank", 37, {"age": "numbers"})
    assert found.versions["fedveil"] == fedveil.__version__
    names = ["imports.txt", "job.yaml", "model.safetensors", "sent", "table.json"]
    assert sorted(Path(name).name for name in found.files) == names
    for name, expected in found.files.items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == expected


def test_no_party_can_test_guesses_at_anothers_private_settings_with_its_digest(
    tmp_path: Path,
) -> None:
    """The others know a frozen part's weights and columns. `max_epsilon` is private."""

    def digest(name: str, most: float) -> bytes:
        (tmp_path / name).mkdir()
        folder: Any = RunFolder(tmp_path / name, None)  # type: ignore[arg-type]
        return write_contents(
            folder, VerticalJob().with_({"privacy.max_epsilon": most}), party="bank", step=37,
            modules=torch.nn.ModuleDict(), columns={"age": "numbers"},
            files={"summary-bank.json": b"[1]"}, sent=b"",
        )  # fmt: skip

    told = digest("bank", 3.5)
    assert told not in [digest(f"guess-{most}", most) for most in (2.0, 3.5, 8.0)]
    salts = {json.loads(p.read_bytes())["salt"] for p in tmp_path.glob("*/contents.json")}
    assert len(salts) == 4
    assert {len(bytes.fromhex(salt)) for salt in salts} == {32}


def test_a_bundle_is_complete_only_after_its_signatures_are_saved() -> None:
    """A process may be killed between the two files."""
    saved: list[str] = []
    folder: Any = SimpleNamespace(write_atomically=lambda name, data: saved.append(name))
    manifest = Manifest(run="r", leader="lead", step=3, job="0a" * 32, contents={})
    write_manifest(folder, manifest, Signatures({}))
    assert saved == ["signatures.json", "manifest.json"]


@pytest.mark.parametrize("torn", [b"", b"x" * 15])
def test_the_id_that_was_scored_most_often_counts(torn: bytes, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    scored = tmp_path / "state" / "scored"
    assert most_scored(tmp_path, np.array(["a"])) == 0
    ids = np.array(list("abcdefghi"))
    times = np.array([3, 1, 2, 5, 1, 1, 4, 1, 2])
    digests = id_digests(ids)
    scored.write_bytes(np.repeat(digests, times, axis=0).tobytes() + torn)
    for one, often in zip(ids, times.tolist(), strict=True):
        assert most_scored(tmp_path, np.array([one])) == often
    assert most_scored(tmp_path, np.array(["b", "i", "new", "e"])) == 2
    assert most_scored(tmp_path, np.array([f"new{number}" for number in range(40)])) == 0
    assert most_scored(tmp_path, ids[:0]) == 0


def test_every_report_that_was_sent_is_required_to_its_last_byte(tmp_path: Path) -> None:
    split = vertical_parts.Bottoms().split_model()
    crossing = replace(split.crossings[0], output=(3, 7))  # 21 bits are three bytes
    reports, path = Reports(Seeded(1), tmp_path), tmp_path / f"reports-{crossing.part}-train"
    path.write_bytes(bytes(5 * (8 + 3)))
    reports.require(crossing, "train", 5)
    for size in (5 * (8 + 3) - 1, 0):
        path.write_bytes(bytes(size))
        with pytest.raises(RunFolderError, match="is missing or cut short"):
            reports.require(crossing, "train", 5)


def test_reports_are_the_saved_ones_after_a_kill_within_a_record_and_after_a_close(
    tmp_path: Path,
) -> None:
    reused = EmbeddingPrivacy(0.5, gradient="none", reuse=True)
    private = vertical_parts.Bottoms().split_model().replace("left", privacy=reused)
    crossing = replace(private.crossings[0], output=(3, 7))
    path = tmp_path / f"reports-{crossing.part}-train"

    def sent(reports: Reports, *positions: int) -> list[bytes]:
        values = np.ones((1, 3, 7), np.float32)
        occasions = [Occasion("train", 0, 1, 0, np.array([one])) for one in positions]
        return [reports(crossing, values, occasion).tobytes() for occasion in occasions]

    first = Reports(Secure(), tmp_path)
    before = sent(first, 4, 9, 2)
    first.close()
    raw = path.read_bytes()
    path.write_bytes(raw[:-5])  # within the third report
    second = Reports(Secure(), tmp_path)
    assert sent(second, 9, 4) == before[1::-1]
    after = sent(second, 2, 7)
    second.close()
    assert path.stat().st_size == 4 * (8 + 3)
    after += sent(second, 5)
    second.close()
    for reports in (second, Reports(Secure(), tmp_path)):
        assert sent(reports, 5, 7, 2, 4, 9) == [*after[::-1], *before[:2]]
        reports.close()


@pytest.mark.parametrize("is_saved", [True, False])
def test_each_example_of_each_part_and_subset_keeps_its_own_report(
    tmp_path: Path, is_saved: bool
) -> None:
    """Parts have outputs of other sizes, and a batch has examples with and without a report."""
    reused = EmbeddingPrivacy(0.5, gradient="none", reuse=True)
    split = vertical_parts.Bottoms().split_model()
    for part, output in (("left", (3, 7)), ("right", (9,))):
        split = split.replace(part, output=output, privacy=reused)
    reports = Reports(Secure(), tmp_path if is_saved else None)
    known: dict[Any, bytes] = {}

    def check(*positions: int) -> None:
        for crossing in split.crossings:
            for subset in ("train", "test"):
                values = np.zeros((len(positions), *crossing.output), np.float32)
                occasion = Occasion(subset, 0, len(known), 0, np.array(positions))
                packed = reports(crossing, values, occasion)
                sent = EmbeddingDP.unpack(packed, values.shape)
                for position, report in zip(positions, sent, strict=True):
                    place = crossing.part, subset, position
                    assert known.setdefault(place, report.tobytes()) == report.tobytes(), place

    for positions in ([9, 4], [4, 7, 2], [7, 9, 2, 4]):
        check(*positions)
    if is_saved:
        reports.close()
        reports = Reports(Secure(), tmp_path)
        check(2, 9, 7, 4)
        reports.close()
        found = {path.name for path in tmp_path.iterdir()}
        assert len(found) == 4
    assert len(set(known.values())) > 12


@pytest.mark.parametrize("eps", [0.0, 0.7])
def test_an_example_whose_output_is_no_number_is_reported_at_every_eps(eps: float) -> None:
    split = vertical_parts.Bottoms().split_model()
    split = split.replace("left", output=(3, 7), privacy=EmbeddingPrivacy(eps))
    values, notes = np.ones((4, 3, 7), np.float32), list[str]()
    values[2, 1, 5] = values[3] = np.nan
    occasion = Occasion("train", 0, 1, 0, np.arange(4))
    report = Reports(Seeded(2), note=notes.append)(split.crossings[0], values, occasion)
    assert report.shape == (-(-4 * 3 * 7 // 8),)
    assert notes == ["2 of 4 examples are reported as zeros: the output of left for them is NaN"]


@pytest.mark.parametrize(("entropy", "on_disk"), [(Secure(), True), (Seeded(3), False)])
def test_reports_that_cannot_be_drawn_again_are_on_disk_before_they_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entropy: Entropy, on_disk: bool
) -> None:
    reused = EmbeddingPrivacy(0.5, gradient="none", reuse=True)
    private = vertical_parts.Bottoms().split_model().replace("left", privacy=reused)
    crossing = replace(private.crossings[0], output=(3, 7))
    path = tmp_path / f"reports-{crossing.part}-train"
    disk, reports = SyncedDisk(path, monkeypatch), Reports(entropy, tmp_path)
    for positions in ([4, 9], [9, 2, 5]):
        values = np.ones((len(positions), 3, 7), np.float32)
        reports(crossing, values, Occasion("train", 0, 1, 0, np.array(positions)))
        assert (disk.content == path.read_bytes()) == on_disk
    reports.close()
    assert path.stat().st_size == 4 * (8 + 3)


def test_without_a_limit_all_may_be_scored_and_with_one_nothing_unprotected() -> None:
    bare = vertical_parts.Bottoms().split_model()
    private = bare.replace("left", privacy=EmbeddingPrivacy(1.0))
    allowed = [
        Limit(split, "bank", most, 1e-5, None).allows(0, labelled=False, scored=900)
        for split in (bare, private)
        for most in (None, 1e6)
    ]
    assert allowed == [True, False, True, True]


@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_a_fingerprint_is_of_all_rows_however_many_are_read_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {"x": torch.arange(20.0).reshape(10, 2)}
    at = np.array([4, 0, 9, 2, 7, 1, 3])
    rows = Rows(7, stored, torch.arange(7), np.arange(7), at)
    whole = rows.fingerprint()
    monkeypatch.setattr(rows_module, "_AT_ONCE", at_once)
    assert rows.fingerprint() == whole
    for place in range(7):
        other = Rows(
            7, stored, torch.arange(7), np.arange(7), np.where(np.arange(7) == place, 5, at)
        )
        assert other.fingerprint() != whole
        labels = torch.arange(7)
        labels[place] = 8
        assert Rows(7, stored, labels, np.arange(7), at).fingerprint() != whole


def test_a_fingerprint_is_of_each_id_column_and_type() -> None:
    ids, zeros = np.array([4, 7, 9]), torch.zeros(3, 4)

    def found(own: Any = ids, labels: Any = None, **columns: torch.Tensor) -> bytes:
        return Rows(3, columns, labels, own).fingerprint()

    prints = [
        found(x=zeros), found(np.array([4, 7, 8]), x=zeros), found(ids.astype(np.uint64), x=zeros),
        found(ids, torch.zeros(3), x=zeros), found(ids, torch.zeros(3, 1), x=zeros), found(y=zeros),
        found(x=zeros.int()), found(x=zeros.reshape(3, 2, 2)), found(x=zeros, y=zeros),
    ]  # fmt: skip
    assert len(set(prints)) == len(prints)
    assert found(x=zeros) == prints[0]
