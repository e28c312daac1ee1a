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

from fedveil.errors import BundleInvalid, ExchangeError, InvalidValue, LinkLost, RunFolderError
from fedveil.link.streams import Address
from fedveil.vertical.bundle import Bundle, digest
from fedveil.vertical.calibrator import CALIBRATOR, Calibrator
from fedveil.vertical.remote.sessions import Meeting
from fedveil.vertical.scoring import predicted, row_alignment, sources
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


def test_rows_in_another_order_are_the_same_file_to_guess_at(tmp_path: Path) -> None:
    state = SimpleNamespace(path=tmp_path)
    state.write_atomically = lambda name, data: (tmp_path / name).write_bytes(data)

    def count(ids: list[str]) -> None:
        own: Any = SimpleNamespace(ids=np.array(ids), state=state, most_ids=5, name="bank")
        row_alignment._count_guesses(own, "lead", 3)

    count(["a", "b", "c"])
    count(["a", "b", "d"])
    with pytest.raises(Exception, match="it brings 6 ids in all for the 3 rows of this file"):
        count(["c", "a", "b"])


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
