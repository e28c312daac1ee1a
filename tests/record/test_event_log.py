"""The chain of an event log: an edit, a removal or a new chain shows."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from fedveil.record import event_log
from fedveil.record.event_log import CHAIN, DIGEST_LETTERS, EventLog, anchor, anchors, faults, seal
from fedveil.record.recorder import Recorder
from fedveil.record.run_folder import EVENTS, RunFolder

LINES = ["begun", "step 7", "ähnlich", "step 14", "ended"]


def written(folder: Path, *more: str) -> Path:
    path = folder / EVENTS
    for some in (LINES[:2], [*LINES[2:], *more]):  # by two processes
        log = EventLog(path)
        for line in some:
            log.append(line)
        log.close()
    return path


def test_a_log_that_two_processes_wrote_is_whole(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert path.read_text("utf-8").splitlines() == LINES
    assert faults(path) == []
    assert len((tmp_path / CHAIN).read_text().splitlines()) == len(LINES)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda lines: [*lines[:1], *lines[2:]], "line 2: it was edited"),
        (lambda lines: [*lines[:3], "step 15", *lines[4:]], "line 4: it was edited"),
        (lambda lines: [*lines[:2], "new", *lines[2:]], "line 3: it was edited"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1: it was edited"),
        (lambda lines: lines[:-2], "2 lines are missing at its end"),
        (lambda lines: lines[:-1], "1 line is missing at its end"),
        (lambda lines: [*lines, "added"], "line 6: it is not in events.chain"),
        (lambda lines: [*lines, "added", "more"], "line 6: it is not in events.chain"),
    ],
)
def test_a_change_shows(tmp_path: Path, change, why: str) -> None:  # type: ignore[no-untyped-def]
    path = written(tmp_path)
    path.write_text("".join(f"{line}\n" for line in change(LINES)), "utf-8")
    (fault,) = faults(path)
    assert why in fault
    if len(change(LINES)) != len(LINES) + 1:  # the next process does not hide it
        log = EventLog(path)
        log.append("later")
        log.close()
        assert faults(path)


@pytest.mark.parametrize("lost", [1, 20, DIGEST_LETTERS])
def test_a_digest_that_a_full_disk_cut_is_no_edit(tmp_path: Path, lost: int) -> None:
    path, chain = written(tmp_path), tmp_path / CHAIN
    whole = chain.read_bytes()
    chain.write_bytes(whole[:-lost])
    assert faults(path) == [f"{path}, line 5: it is not in {CHAIN}"]
    EventLog(path).close()
    assert chain.read_bytes() == whole
    assert faults(path) == []


def test_a_new_chain_contradicts_the_other_party(tmp_path: Path) -> None:
    path = written(tmp_path)
    log = EventLog(path)
    head = log.head
    log.close()
    (tmp_path / "other").mkdir()
    other = written(tmp_path / "other", f"2026-01-02T03:04:05 {anchor('bank', head)}")
    assert list(anchors(other)) == [("bank", head)]
    said = [head]
    assert faults(path, said) == []
    begun = [LINES[0], "step 8", *LINES[2:]]
    for lines in (LINES[:-1], [*LINES[:1], *LINES[2:]], [*LINES[:4], "failed"], begun):
        for file in (path, tmp_path / CHAIN):
            file.unlink()
        again = EventLog(path)
        for line in lines:
            again.append(line)
        again.close()
        assert faults(path) == []
        assert "another party saw other lines" in faults(path, said)[0]


@pytest.mark.parametrize("party", ["north-bank", "st.mary_2"])
def test_a_partys_name_may_have_signs_between_its_letters(tmp_path: Path, party: str) -> None:
    head = "5d" * (DIGEST_LETTERS // 2)
    assert list(anchors(written(tmp_path, f"0 {anchor(party, head)}"))) == [(party, head)]


def test_a_line_that_quotes_a_peer_records_no_digest(tmp_path: Path) -> None:
    """A peer chooses the words of its refusal, and could accuse another party with them."""
    words = f"the session ended: lead has left: - {anchor('bank', 'ab' * 32)}"
    assert list(anchors(written(tmp_path, f"2026-01-02T03:04:05 {words}"))) == []


@pytest.mark.parametrize("earlier", ["", "has 1 line and ", "has 1,234,567 lines and "])
def test_records_of_other_logs_are_read_back_also_from_an_earlier_version(
    tmp_path: Path, earlier: str
) -> None:
    first, second = "c" * DIGEST_LETTERS, "ab" * (DIGEST_LETTERS // 2)
    other = written(
        tmp_path, f"0 {anchor('bank', first)}", f"0 the log of lead {earlier}ends in {second}"
    )
    assert list(anchors(other)) == [("bank", first), ("lead", second)]


def test_nobody_can_confirm_a_guess_of_sealed_lines(tmp_path: Path) -> None:
    """Two logs with the same lines have one digest, until each is sealed with a line of its own."""
    heads = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        log = EventLog(written(tmp_path / name))
        heads.append([log.head])
        log.append(seal())
        heads[-1].append(log.head)
        log.close()
    (same, sealed), (also_same, otherwise) = heads
    assert same == also_same
    assert sealed != otherwise
    assert len(seal().split()[-1]) == 2 * 16, "nobody can try all random lines"


def test_a_killed_process_leaves_a_log_that_is_still_whole(tmp_path: Path) -> None:
    path = written(tmp_path)
    chain = tmp_path / CHAIN
    whole = chain.read_text()
    chain.write_text("".join(f"{one}\n" for one in whole.splitlines()[:-1]))
    EventLog(path).close()
    assert faults(path) == []
    assert chain.read_text() == whole
    chain.write_text(whole[:-1])  # without the end of its last line
    again = EventLog(path)
    again.append("more")
    again.close()
    assert faults(path) == []
    with path.open("ab") as log:
        log.write(b"step 2")  # half of a line
    again = EventLog(path)
    again.append("resumed")
    again.close()
    assert path.read_text("utf-8").splitlines() == [*LINES, "more", "step 2", "resumed"]
    assert faults(path) == []


def test_the_recorder_chains_its_events(tmp_path: Path) -> None:
    recorder = Recorder(RunFolder.create(tmp_path / "run"))
    recorder.event("one\ntwo")
    recorder.event("three")
    assert len((tmp_path / "run" / CHAIN).read_text().splitlines()) == 2
    recorder.close()
    assert faults(tmp_path / "run" / EVENTS) == []
    assert event_log.CHAIN in {path.name for path in (tmp_path / "run").iterdir()}


class Full:
    """A log's file on a disk that has room for `left` more bytes."""

    def __init__(self, file: Any, left: int) -> None:
        self.file, self.left = file, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        if not self.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = self.file.write(data[: self.left])
        self.left -= written
        return written


@pytest.mark.parametrize("which", ["_log", "_chain"])
@pytest.mark.parametrize("left", [0, 3])
def test_a_line_that_does_not_fit_on_the_disk_leaves_no_part(
    tmp_path: Path, which: str, left: int
) -> None:
    path = written(tmp_path)
    log = EventLog(path)
    head, file = log.head, getattr(log, which)
    setattr(log, which, Full(file, left))
    with pytest.raises(OSError, match="No space"):
        log.append("does not fit")
    setattr(log, which, file)
    assert log.head == head
    log.append("fits")
    log.close()
    assert path.read_text("utf-8").splitlines() == [*LINES, "fits"]
    assert faults(path) == []
