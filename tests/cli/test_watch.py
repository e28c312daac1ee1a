"""A run is watched from its records alone."""

from __future__ import annotations

import io
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedveil
from fedveil.base import plain_text
from fedveil.cli.watch import _quiet_s, watch
from fedveil.errors import RunFolderError
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.pages.vertical_page import parties_of
from fedveil.record.run_folder import RunFolder
from fedveil.vertical import VerticalJob, train
from page_parts import new_log, small_job

PATIENCE_S = 60.0
NEVER: Iterator[object] = iter(())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fedveil.simulate(small_job(), tmp_path_factory.mktemp("made") / "run").folder


def watched(folder: Path, steps: Iterator[object] = NEVER, patience: float = PATIENCE_S) -> str:
    """Return a watcher's output. A step happens whenever it waits, and it never waits in vain."""
    out = io.StringIO()
    console = plain_text.console(file=out, width=120)
    run = watch(folder, console, patience, lambda seconds: next(steps))  # type: ignore[arg-type]
    assert run == read_run(folder), "as it is at the end"
    return out.getvalue()


def rounds(text: str) -> list[str]:
    return [line.split()[1] for line in text.splitlines() if line.startswith("round ")]


def test_a_finished_run_is_shown_and_that_is_all(finished: Path) -> None:
    said = watched(finished)
    assert rounds(said) == ["1/3", "2/3", "3/3"]
    assert "\nquality " in said
    assert f"page         {finished}/report.html" in said


def test_a_run_is_followed_as_it_grows_a_half_written_line_included(
    finished: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    metrics, events = copy / "metrics.jsonl", copy / "events.log"
    lines, log = metrics.read_bytes().splitlines(True), events.read_bytes()
    before, _, _ = log.partition(b"\n")
    metrics.write_bytes(b"")
    events.write_bytes(before + b"\n")
    (copy / "model.safetensors").rename(copy / "later")
    seen: list[int] = []

    def grow() -> Iterator[None]:
        for end in (len(lines[0]), len(lines[0]) + 50, len(lines[0] + lines[1])):
            metrics.write_bytes(b"".join(lines)[:end])
            seen.append(end)
            yield
        metrics.write_bytes(b"".join(lines))
        (copy / "later").rename(copy / "model.safetensors")
        events.write_bytes(log)
        yield

    assert rounds(watched(copy, grow())) == ["1/3", "2/3", "3/3"]
    assert len(seen) == 3


def test_a_round_that_a_resumed_run_repeats_is_shown_once(finished: Path, tmp_path: Path) -> None:
    """A resumed run first removes the records after its checkpoint."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    metrics, events = copy / "metrics.jsonl", copy / "events.log"
    lines, log = metrics.read_bytes().splitlines(True), events.read_bytes()
    metrics.write_bytes(b"".join(lines[:2]))
    events.write_bytes(log[: log.index(b"\n") + 1])
    (copy / "model.safetensors").rename(copy / "later")

    def repeat() -> Iterator[None]:
        for end in (1, 2):
            metrics.write_bytes(b"".join(lines[:end]))
            yield
        metrics.write_bytes(b"".join(lines))
        (copy / "later").rename(copy / "model.safetensors")
        events.write_bytes(log)
        yield

    assert rounds(watched(copy, repeat())) == ["1/3", "2/3", "3/3"]


def test_a_run_that_goes_on_after_its_end_is_followed(finished: Path, tmp_path: Path) -> None:
    """A run that was given more rounds still has its earlier model."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    with (copy / "events.log").open("a") as events:
        events.write("0 went on after round 3: fedveil\n")

    def end() -> Iterator[None]:
        with (copy / "events.log").open("a") as events:
            events.write("0 ended after round 3: interrupted\n")
        yield

    steps = end()
    watched(copy, steps)
    assert next(steps, "over") == "over"


def test_a_run_that_has_stopped_growing_is_given_up_unless_it_is_written(
    finished: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    new_log(copy / "events.log", "0 began: fedveil\n")
    with pytest.raises(RunFolderError) as gone:
        watched(copy, iter([None]), patience=0)
    assert str(gone.value) == (
        f"{copy} has not grown for 0 s and no process on this machine is writing it: the run was "
        f"interrupted, or this is a copy that is not updated"
    )
    writer = RunFolder.reopen(copy)
    closed = []

    def end() -> Iterator[None]:
        yield from (None, None)  # it is in use
        writer.close()
        closed.append(True)
        yield

    with pytest.raises(RunFolderError, match="has not grown for 0 s"):
        watched(copy, end(), patience=0)
    assert closed


def test_a_run_dated_by_a_clock_ahead_is_given_up_too(finished: Path, tmp_path: Path) -> None:
    """Its files were written tomorrow, as on a machine whose clock was put back since."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    new_log(copy / "events.log", "0 began: fedveil\n")
    for name in ("metrics.jsonl", "events.log"):
        os.utime(copy / name, (time.time() + 86_400,) * 2)
    looks = iter([None] * 9)
    with pytest.raises(RunFolderError, match="has not grown for 2 s"):
        watched(copy, looks, patience=2)
    assert len([*looks]) == 4, "it waits 2 s, half a second at a time, and no longer"


def test_a_log_that_grows_keeps_the_watcher(finished: Path, tmp_path: Path) -> None:
    """No round is new, and each line is older than the watcher's patience."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    new_log(copy / "events.log", "0 began: fedveil\n")

    def write() -> Iterator[None]:
        for text in ("warning: slow", "warning: slower", "ended after round 3: interrupted"):
            with (copy / "events.log").open("a") as events:
                events.write(f"0 {text}\n")
            yield

    steps = write()
    watched(copy, steps, patience=-1)
    assert next(steps, "over") == "over"


def test_a_run_is_as_quiet_as_the_file_that_was_written_last(tmp_path: Path) -> None:
    run = ReadRun(tmp_path, {}, [], [], [])
    now = time.time()
    for name, age in (("metrics.jsonl", 900), ("events.log", 50)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (now - age, now - age))
    assert 50 <= _quiet_s(run) < 900
    (tmp_path / "events.log").unlink()
    assert 900 <= _quiet_s(run) < 1800
    (tmp_path / "metrics.jsonl").unlink()
    assert _quiet_s(run) > 1e9  # neither was ever written


def test_an_ended_run_is_left_after_a_while_if_its_process_lives(
    finished: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    writer = RunFolder.reopen(copy)
    waits = iter([None] * 100)
    watched(copy, waits)
    writer.close()
    assert len([*waits]) == 100 - 19


def test_a_run_that_failed_says_how_it_ended(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "model.safetensors").unlink()
    with (copy / "events.log").open("a") as events:
        events.write("0 ended after round 3: the disk is full\n")
    assert watched(copy).splitlines()[-1] == "ended after round 3: the disk is full"


def test_a_folder_that_holds_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is not a run's folder: it has no job\.yaml"):
        watched(tmp_path)


def test_a_vertical_run_that_grows_shows_each_line_once(tmp_path: Path) -> None:
    """The records of another party grow too."""
    job = VerticalJob(name="small", epochs=1, batch_size=9, task="vertical_parts:bottoms")
    records = [
        {"party": "lead", "epoch": 0, "step": step, "steps": 6, "loss": 0.5,
         "bytes_sent_per_step": 300.0, "bytes_received_per_step": 4000.0, "seconds_waiting": 0.0,
         "seconds_per_unit": 0.5, "unit": "examples"}
        for step in (2, 4, 6)
    ]  # fmt: skip
    look = {"party": "lead", "epoch": 0, "look": 6, "test_loss": 0.25}
    folder = tmp_path / "run"
    for party, before in (("lead", [look, records[0]]), ("bank", [])):
        (folder / party).mkdir(parents=True)
        lines = "".join(json.dumps(record) + "\n" for record in before)
        (folder / party / "metrics.jsonl").write_text(lines)
        new_log(folder / party / "events.log", "2026-03-01T10:00:00 began: fedveil\n")
    (folder / "job.yaml").write_text(job.to_yaml())

    def grow() -> Iterator[None]:
        for record in records[1:]:
            for party in ("lead", "bank"):
                with (folder / party / "metrics.jsonl").open("a") as lines:
                    lines.write(json.dumps(record) + "\n")
            yield
        with (folder / "lead" / "events.log").open("a") as events:
            events.write("2026-03-01T11:00:00 ended after step 6: interrupted\n")
        yield

    said = watched(folder, grow())
    assert [said.count(f"step {step}/6") for step in (2, 4, 6)] == [1, 1, 1]


def test_a_step_that_a_resumed_vertical_run_repeats_is_shown_once(tmp_path: Path) -> None:
    job = VerticalJob(name="small", epochs=1, batch_size=9, task="vertical_parts:bottoms")
    folder = tmp_path / "run"
    lines = [
        json.dumps({"party": "lead", "epoch": 0, "look": look, "test_loss": 0.25}) + "\n"
        for look in (2, 4, 6)
    ]
    for party, before in (("lead", "".join(lines[:2])), ("bank", "")):
        (folder / party).mkdir(parents=True)
        (folder / party / "metrics.jsonl").write_text(before)
        new_log(folder / party / "events.log", "2026-03-01T10:00:00 began: fedveil\n")
    (folder / "job.yaml").write_text(job.to_yaml())
    metrics = folder / "lead" / "metrics.jsonl"

    def repeat() -> Iterator[None]:
        for end in (1, 3):
            metrics.write_text("".join(lines[:end]))
            yield
        with (folder / "lead" / "events.log").open("a") as events:
            events.write("2026-03-01T11:00:00 ended after step 6: interrupted\n")
        yield

    said = watched(folder, repeat())
    assert len([line for line in said.splitlines() if line.startswith("epoch 0 ")]) == 3


def test_a_vertical_run_is_shown_before_its_first_saved_step(tmp_path: Path) -> None:
    """By default, a party saves its first trained step after 100 steps."""
    job = VerticalJob(
        name="small", epochs=1, batch_size=9, task="vertical_parts:bottoms",
        record={"every_steps": 2},
    )  # fmt: skip
    folder, shown = tmp_path / "run", list[int]()

    def look(record: object) -> None:
        shown.append(max(len(p.records) for p in parties_of(read_run(folder)).values()))
        if len(shown) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(job, folder, progress=look)
    assert shown == [1, 2]


def test_a_vertical_run_shows_the_leader_s_lines(tmp_path: Path) -> None:
    job = VerticalJob(
        name="small", epochs=1, batch_size=9, task="vertical_parts:bottoms",
        record={"every_steps": 2},
    )  # fmt: skip
    said = watched(train(job, tmp_path / "run").folder)
    assert "epoch 0 step 2/6 loss: " in said
    assert "epoch 0 held-out examples: " in said
    assert "\nquality " in said
