"""The file of scored rows, its counts, and the sentences on its probabilities."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import Message
from fedveil.errors import (
    BundleInvalid,
    ExchangeError,
    InvalidValue,
    LinkLost,
    MessageInvalid,
    PeerAborted,
    RunFolderError,
)
from fedveil.link.channel import Exchange, Send, drive_together
from fedveil.link.streams import Address
from fedveil.vertical.bundle import Bundle, digest
from fedveil.vertical.calibrator import CALIBRATOR, Calibrator
from fedveil.vertical.remote.sessions import Meeting
from fedveil.vertical.scoring import predicted, row_alignment, sources
from fedveil.vertical.scoring.guesses import begin_counts
from fedveil.vertical.scoring.predicted import Decision, ScoreFile
from fedveil.vertical.scoring.scorer import Scorer
from fedveil.vertical.scoring.sources import Apart, Together, bundles_in
from scoring_parts import BANKS, LEADERS, NEW, scorers, together, trained

COMMON = NEW - BANKS - LEADERS


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Together]:
    """Parties of which the bank may send a few reports of each row."""
    with ExitStack() as stack:
        yield together(trained(tmp_path, eps=0.5, limit=13.0), stack)


def test_rows_at_a_limit_are_left_out_of_the_file_and_counted(
    source: Together, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows of the file are at the limit, so its first piece is empty."""
    monkeypatch.setattr(predicted, "MOST_ROWS", 40)
    lead, bank = source.leader, source._all["bank"]
    refused = np.r_[:40, 57, 100]
    times = 0
    while bank.scored.allowed(bank._used[refused]).all():
        bank.scored.charge(bank._used[refused])
        times += 1
    assert times > 1
    said: list[str] = []
    counts = ScoreFile(tmp_path / "out.csv").write(source, said.append)
    assert counts == {"scored": COMMON - 42, "refused": 42, "unusable": 0, "alone": LEADERS}
    lines = list(csv.reader((tmp_path / "out.csv").open()))
    assert lines[0] == ["id", "prediction", "probability", "probability of no",
                        "probability of yes"]  # fmt: skip
    left = np.delete(source.common, refused)
    assert [line[0] for line in lines[1:]] == lead.ids[left].tolist()
    assert said == [Decision(lead).note]
    (line,) = bank.keep_account()
    what = f"an example, scored {times} times and sent 0 times in training and evaluations"
    assert line.what == what
    assert line.epsilon == bank.scored._limit.figure(0, labelled=False, scored=times).epsilon


def test_a_report_that_was_written_in_part_is_written_over(tmp_path: Path) -> None:
    folder = trained(tmp_path, eps=0.7)
    path = folder / "run" / "bank" / "bundle" / "state" / "scored"
    for tries in (1, 2):
        with ExitStack() as stack:
            source = together(folder, stack)
            source.scores(source.common[:3])
        assert len(path.read_bytes()) == tries * 3 * 16
        with path.open("ab") as file:
            file.write(b"torn")
    with ExitStack() as stack:
        bank = scorers(folder, stack)["bank"]
        assert sorted(bank.scored._scored)[-4:] == [0, 2, 2, 2]


def test_a_decision_says_on_what_it_rests(tmp_path: Path) -> None:
    calibrator = Calibrator(
        factor=0.5, shifts=(0.0, 1.0), threshold=0.3125, criterion="f1", examples=1200
    )
    assert str(calibrator) == "calibrator of 1,200 examples: factor 0.5000, threshold 0.3125 by f1"
    path, files = tmp_path / CALIBRATOR, {CALIBRATOR: ""}

    def decision(classes: int | None, made: Calibrator | None) -> Decision:
        if made is not None:
            path.write_bytes(made.written())
        contents = SimpleNamespace(files=files if made is not None else {})
        return Decision(SimpleNamespace(
            task=SimpleNamespace(classes=classes), folder=SimpleNamespace(path=tmp_path),
            bundle=SimpleNamespace(contents=contents)))  # type: ignore[arg-type]  # fmt: skip

    rests = "the probabilities are calibrated on 1,200 training rows set aside"
    several = calibrator.model_copy(update={"shifts": (0.0, 1.0, 2.0), "threshold": None})
    assert decision(None, None).note is None
    assert "not calibrated: train with scoring.calibration" in str(decision(2, None).note)
    assert decision(3, several).note == rests
    assert decision(2, calibrator).note == (
        f"{rests}, and the second class is predicted from 0.3125 on (f1)"
    )
    with pytest.raises(InvalidValue, match="is of 3 classes, not 2"):
        decision(2, several)


def test_probabilities_without_a_calibrator_are_the_models_own(tmp_path: Path) -> None:
    """A calibrator in the folder that the bundle does not name is not read."""
    (tmp_path / CALIBRATOR).write_text("another model's")
    task = SimpleNamespace(classes=3, class_names=("red", "blue", "green"))
    decision = Decision(SimpleNamespace(
        task=task, folder=SimpleNamespace(path=tmp_path),
        bundle=SimpleNamespace(contents=SimpleNamespace(files={}))))  # type: ignore[arg-type]  # fmt: skip
    shares = np.array([[0.2, 0.7, 0.1], [0.25, 0.125, 0.625]])
    outputs = np.log(shares).astype(np.float32) + np.float32([[3.0], [-2.0]])
    assert decision.columns(outputs) == {
        "prediction": ["blue", "green"], "probability": ["0.700000", "0.625000"],
        "probability of red": ["0.200000", "0.250000"],
        "probability of blue": ["0.700000", "0.125000"],
        "probability of green": ["0.100000", "0.625000"],
    }  # fmt: skip


def test_probabilities_of_a_masked_class_are_zero() -> None:
    made = Calibrator(factor=0.0625, shifts=(0.0, 1.0), criterion="f1", examples=1)
    found = made.probabilities(np.array([[0.0, -math.inf], [-math.inf, 0.0], [math.inf, 0.0]]))
    np.testing.assert_allclose(found, [[1, 0], [0, 1], [1, 0]], atol=1e-12)


def test_a_bundle_names_files_of_its_own_folder_alone(tmp_path: Path) -> None:
    """An editor mends every digest of an unsigned bundle that names a file elsewhere."""
    path = trained(tmp_path) / "run" / "lead" / "bundle"
    contents, manifest = (
        json.loads((path / f"{name}.json").read_bytes()) for name in ("contents", "manifest")
    )
    contents["files"]["../own"] = digest(b"x")
    (path.parent / "own").write_bytes(b"x")
    data = json.dumps(contents).encode()
    manifest["contents"]["lead"] = digest(data)
    (path / "contents.json").write_bytes(data)
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleInvalid, match=r"names '\.\./own', which is no file's name"):
        Bundle.read(path)


def test_a_manifest_without_the_party_is_not_of_its_bundle(tmp_path: Path) -> None:
    path = trained(tmp_path) / "run" / "bank" / "bundle"
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["contents"]["bank"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleInvalid, match=r"contents\.json is not the file that the parties"):
        Bundle.read(path)


def test_every_file_of_a_bundle_is_in_its_contents(tmp_path: Path) -> None:
    path = trained(tmp_path) / "run" / "lead" / "bundle"
    held = {file.name for file in path.iterdir() if file.is_file()}
    said = set(json.loads((path / "contents.json").read_bytes())["files"])
    assert held - said - {".lock"} == {"contents.json", "manifest.json", "signatures.json"}


# --- sessions


def side_of(folder: Path, name: str, ids: list[str], **more: Any) -> Any:
    """Return a party with a file of rows, whose state is in `folder`."""
    state = SimpleNamespace(path=folder)
    state.write_atomically = lambda name, data: (folder / name).write_bytes(data)
    begin_counts(state)
    own = {
        "ids": np.array(ids), "state": state, "most_ids": 5, "name": name, "followers": ("bank",),
        "split": SimpleNamespace(leader="lead"), "bundle": SimpleNamespace(name=b"model"),
        "job": SimpleNamespace(alignment=SimpleNamespace(by="digests")), "task": None,
    }  # fmt: skip
    return SimpleNamespace(**own | more)


def test_rows_in_another_order_are_the_same_file_to_guess_at(tmp_path: Path) -> None:
    def count(ids: list[str]) -> None:
        row_alignment._count_guesses(side_of(tmp_path, "bank", ids), "lead", 3)

    count(["a", "b", "c"])
    count(["a", "b", "d"])
    with pytest.raises(Exception, match="it brings 6 ids in all for the 3 rows of this file"):
        count(["c", "a", "b"])


def test_as_many_ids_as_the_limit_says_are_accepted(tmp_path: Path) -> None:
    bank = side_of(tmp_path, "bank", ["a", "b"], most_ids=6)
    for _ in range(2):
        row_alignment._count_guesses(bank, "lead", 3)
    with pytest.raises(MessageInvalid, match="it brings 7 ids in all for the 2 rows"):
        row_alignment._count_guesses(bank, "lead", 1)


def test_a_follower_answers_the_attempt_and_takes_no_further_field(tmp_path: Path) -> None:
    begin: Message = {
        "kind": "begin", "attempt": 3, "purpose": "score", "bundle": b"model", "ids": 2,
        "align_by": "digests", "key": bytes(32),
    }  # fmt: skip
    said = next(row_alignment.follow(side_of(tmp_path, "bank", ["a", "b"]), begin))
    assert isinstance(said, Send)
    assert (said.message["kind"], said.message["attempt"]) == ("apply", 3)
    with pytest.raises(ExchangeError, match=r"^lead broke the alignment: .*fields are missing or"):
        next(row_alignment.follow(side_of(tmp_path, "bank", ["a", "b"]), {**begin, "more": 1}))


def test_files_without_a_common_row_end_the_session_in_one_sentence(tmp_path: Path) -> None:
    sides = {"lead": ["a", "b"], "bank": ["c"]}
    for name in sides:
        (tmp_path / name).mkdir()
    lead, bank = (side_of(tmp_path / name, name, ids) for name, ids in sides.items())
    with pytest.raises(ExchangeError, match=r"^no example is common to all of lead, bank$"):
        drive_together({"lead": row_alignment.lead(lead, 1), "bank": row_alignment.follow(bank)})


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"kind": "abort", "reason": "no memory"}, "the other party ended the step: no memory"),
        ({"kind": "rows", "request": 2, "positions": np.arange(2), "more": 1}, "fields are missi"),
        ({"kind": "rows", "request": 2}, "fields are missing"),
    ],
)
def test_a_request_has_its_fields_alone_and_an_end_is_one(message: Message, why: str) -> None:
    scorer: Any = SimpleNamespace()
    with pytest.raises((PeerAborted, MessageInvalid), match=why):
        Scorer._due(scorer, message, "rows", 2, "request", "positions")


def test_rows_are_charged_and_sent_under_the_number_of_their_request() -> None:
    did: list[Any] = []

    def look(number: int, batch: list[int], *, subset: str) -> Exchange[None]:
        did.append((number, batch, subset))
        yield from ()

    scorer: Any = SimpleNamespace(
        _request=7, _used=np.array([90, 91, 95]), party=SimpleNamespace(look=look),
        _rows=SimpleNamespace(batch=np.ndarray.tolist),
        scored=SimpleNamespace(charge=lambda rows: did.append(rows.tolist())),
    )  # fmt: skip
    assert not list(Scorer._look(scorer, np.array([2, 0])))
    assert did == [[95, 90], (7, [2, 0], "score")]


def test_a_leader_aligns_again_before_it_asks_and_ends_quietly_if_a_link_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[Any] = []

    def align() -> None:
        did.append("aligned")
        apart._place, apart._agreed = np.array([-1, 0, 1]), True

    def drive(asked: Any, links: Any) -> Any:
        if asked == "finish":
            did.append(asked)
            raise LinkLost("bank is away")
        return asked

    apart: Any = Apart.__new__(Apart)
    apart._agreed, apart._place, apart._links = False, np.array([0, 1, 2]), {}
    apart._align = align
    apart.leader = SimpleNamespace(ask=np.ndarray.tolist, finish=lambda: "finish")
    monkeypatch.setattr(sources, "drive", drive)
    for rows, positions in (([2, 1], [1, 0]), ([1], [0])):
        assert apart._scores(np.array(rows)) == positions
    apart._finish()
    assert did == ["aligned", "finish"]


def test_a_party_accepts_four_times_its_rows_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    path, data = folder / "run" / "bank" / "bundle", str(folder / "new-bank.csv")
    for most, accepted in ((None, 4 * (NEW - LEADERS)), (9, 9)):
        with ExitStack() as stack:
            assert Scorer(path, data, stack, most_ids=most).most_ids == accepted


def test_a_follower_that_came_back_without_rows_is_noticed() -> None:
    apart = Apart.__new__(Apart)
    apart._agreed, apart._place = True, np.array([0, -1, 1])
    with pytest.raises(ExchangeError, match="restarted without some rows that it had before"):
        apart._scores(np.array([0, 1]))


def test_a_follower_serves_session_after_session_and_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = iter(
        [None, LinkLost("lead is away"), None, ExchangeError("lead lies"), KeyboardInterrupt]
    )
    seen: list[Any] = []

    def follow(scorer: object, meeting: Meeting) -> None:
        seen.append((scorer, meeting.link_patience_s, meeting.patience_s))
        if (end := next(ends)) is not None:
            raise end

    monkeypatch.setattr(sources, "follow", follow)
    said: list[str] = []
    own: Any = object()
    with pytest.raises(KeyboardInterrupt):
        sources.serve(own, Meeting(Address("127.0.0.1", 1), None, 5.0, said.append))
    assert said == ["lead is away", "lead lies"]
    assert seen == [(own, math.inf, 5.0)] * 5


def test_a_folder_without_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="has no model bundle: name the folder of a finished"):
        bundles_in(tmp_path)
