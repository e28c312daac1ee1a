"""Runs of every kind begin, go on and read what they kept in one way."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from fedveil.base.message import Value
from fedveil.errors import LimitReached, MessageInvalid, ModelInvalid, RunFolderError, RunStopped
from fedveil.privacy.ledger_message import kinds_to_state
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.record.byte_count import shown_bytes
from fedveil.record.lifecycle import beginning, how_to_resume, log_start
from fedveil.record.recorder import PRIVACY, Record
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.record.started_rounds import Attempts, read_started


def test_what_is_said_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(time, "perf_counter", lambda: 1000.25)
    log_start(said.append, beginning("round", 0), 992.5, ["one", "two"])
    log_start(said.append, beginning("step", 3), 0.0, [])
    assert said[0].startswith("began: fedveil ")
    assert f"NumPy {np.__version__}, torch " in said[0]
    assert said[0].endswith("; ready after 7.8 s")
    assert said[1:3] == ["one", "two"]
    assert said[3].startswith("went on after step 3: fedveil ")


@pytest.mark.parametrize(
    ("end", "note", "notes"),
    [
        (RunStopped("full"), "go on", ["go on"]),
        (KeyboardInterrupt(), "go on", ["go on"]),
        (RunStopped("full"), "", []),
        (RunFolderError("another model"), "go on", []),
        (ValueError("a defect"), "go on", []),
    ],
)
def test_what_ends_a_run_says_how_to_resume(
    end: BaseException, note: str, notes: list[str]
) -> None:
    with pytest.raises(type(end)), how_to_resume(lambda: note, RunStopped):
        raise end
    assert getattr(end, "__notes__", []) == notes


def test_a_run_that_would_end_at_once_again_is_not_resumed() -> None:
    for end, notes in (
        (ModelInvalid("no"), []),
        (LimitReached("step 1 would exceed it"), []),
        (RunStopped("full"), ["go on"]),
    ):
        with pytest.raises(type(end)), how_to_resume(lambda: "go on"):
            raise end
        assert getattr(end, "__notes__", []) == notes


def test_bytes_are_shown_in_the_unit_of_their_rounded_number() -> None:
    shown = {0: "0 B", 999: "999 B", 1000: "1 KB", 1540: "1.5 KB", 999_949: "999.9 KB",
             999_950: "1 MB", 999_960_000: "1 GB", 5e12: "5000 GB"}  # fmt: skip
    assert {count: shown_bytes(count) for count in shown} == shown


def test_a_sealed_message_is_refused_when_a_bit_has_changed() -> None:
    raw = sealed({"a": 1, "b": b"two"})
    assert unsealed(raw) == {"a": 1, "b": b"two"}
    for at in range(len(raw)):
        with pytest.raises(MessageInvalid, match="its digest does not match"):
            unsealed(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
    with pytest.raises(MessageInvalid, match="its digest does not match"):
        unsealed(b"")


def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with pytest.raises(RunFolderError, match=f"^{a} cannot be read: No such file or directory$"):  # noqa: SIM117
        with intact(a):
            a.read_bytes()
    with pytest.raises(RunFolderError, match=f"^{a} or {b} is damaged: too short$"), intact(a, b):
        raise MessageInvalid("too short")
    with pytest.raises(RunFolderError, match=f"^{b} is damaged: ValueError$"), intact(b):
        raise ValueError


def test_the_last_of_several_started_rounds_is_the_one_that_needs_a_record(tmp_path: Path) -> None:
    attempts = Attempts(RunFolder.create(tmp_path / "run"), 1)
    for number in (2, 3):
        attempts.begin(number, ((PrivacyLoss(0.5), number),), {"round": number})
    assert [attempts.without_record(recorded) for recorded in (1, 2, 3)] == [True, True, False]


def test_rounds_that_were_begun_are_known_to_the_next_process_with_what_they_cost(
    tmp_path: Path,
) -> None:
    pure, noise = PrivacyLoss(0.5), PrivacyLoss(1.0, 1e-5, release=Gaussian(5.0))
    costs = {1: ((pure, 3),), 2: ((noise, 1), (pure, 1)), 3: ((pure, 4),)}
    folder = RunFolder.create(tmp_path / "run")
    first = Attempts(folder, 0)
    for number in (1, 2, 1, 3):
        first.begin(number, costs[number], {"round": number})
    again = Attempts(folder, 0)
    assert again.begun == [(number, costs[number]) for number in (1, 2, 1, 3)]
    again.checkpointed(1)
    assert not again.without_record(1)
    again.begin(2, costs[3], {"round": 2})
    assert (again.without_record(1), again.without_record(2)) == (True, False)
    assert Attempts(folder, 1).begun == [(2, costs[3])]
    assert Attempts(folder, 2).begun == []  # the checkpoint's own ledger has it
    file = tmp_path / "run" / "checkpoint" / "begun"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match="begun is damaged: its digest does not match"):
        Attempts(folder, 1)


def test_an_older_checkpoint_does_not_take_the_costs_of_later_rounds_away(tmp_path: Path) -> None:
    """The costs of rounds 1 to 3 are only in the checkpoint after round 3."""
    folder = RunFolder.create(tmp_path / "run")
    Attempts(folder, 3).begin(4, ((PrivacyLoss(0.5), 1),), {"round": 4})
    for older in (0, 2):
        said = f"checkpoint: it ends with round {older}, and .*begun follows round 3"
        with pytest.raises(RunFolderError, match=said):
            Attempts(folder, older)
    assert Attempts(folder, 3).begun == [(4, ((PrivacyLoss(0.5), 1),))]
    assert Attempts(folder, 4).begun == []


STATED: Record = {
    "unit": "client", "randomness": "seeded", "in_clear": [], "rests_on_server": False,
    **{key: 0.5 for key in PRIVACY if key.startswith(("epsilon_", "delta_"))},
    **{key: "strong" for key in PRIVACY if key.startswith("promise_")},
}  # fmt: skip


def test_a_started_round_without_a_record_says_what_it_cost(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    assert read_started(folder.path, 0) == {}
    stated = {"round": 3, **STATED, "epsilon_per_bit": math.inf}
    Attempts(folder, 0).begin(3, ((PrivacyLoss(0.5), 1),), stated)
    assert read_started(folder.path, 2) == stated
    assert read_started(folder.path, 3) == read_started(folder.path, 4) == {}


BEGUN = {
    "since": 1,
    "rounds": np.array([2, 3]),
    "kinds": np.array([0, 0]),
    **kinds_to_state([((PrivacyLoss(0.5), 1),)]),
}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "it does not state the privacy of a started round"),
        (json.dumps({**STATED}), "it does not state the privacy"),
        (json.dumps({**STATED, "round": 3, "more": 1}), "it does not state the privacy"),
        (json.dumps({**STATED, "round": "3"}), "round"),
        ("{", "Expecting property name"),
    ],
)
def test_an_edited_statement_of_a_started_round_is_one_sentence(
    text: str, sentence: str, tmp_path: Path
) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_atomically("checkpoint/begun", sealed({**BEGUN, "stated": text}))
    with pytest.raises(RunFolderError, match=f"begun is damaged: .*{sentence}"):
        read_started(tmp_path / "run", 2)
    # Runs of earlier versions have the text in a file of its own.
    folder.write_atomically("checkpoint/begun", sealed(BEGUN))
    folder.write_atomically("checkpoint/started.json", text.encode())
    with pytest.raises(RunFolderError, match=f"started.json is damaged: .*{sentence}"):
        read_started(tmp_path / "run", 2)


def test_a_smaller_epsilon_of_a_started_round_is_not_shown(tmp_path: Path) -> None:
    folder, path = RunFolder.create(tmp_path / "run"), tmp_path / "run" / "checkpoint"
    attempts = Attempts(folder, 1)
    attempts.begin(2, ((PrivacyLoss(0.5), 1),), {"round": 2, **STATED})
    before = (path / "begun").read_bytes()
    attempts.begin(3, ((PrivacyLoss(0.5), 1),), {"round": 3, **STATED})
    whole = (path / "begun").read_bytes()
    assert [one.name for one in path.iterdir()] == ["begun"]

    def refused(content: bytes | None, said: str, **kept: bool) -> None:
        (path / "begun").unlink(missing_ok=True)
        if content is not None:
            (path / "begun").write_bytes(content)
        with pytest.raises(RunFolderError, match=said):
            read_started(tmp_path / "run", 2, **kept)

    assert whole.count(b": 0.5,") > 1
    refused(whole.replace(b": 0.5,", b": 0.1,"), "begun is damaged: its digest does not match")
    without = {**BEGUN, "rounds": np.array([2, 3])}
    refused(sealed(without), "begun is damaged: it does not state the privacy")
    older = {**without, "stated": json.dumps({"round": 2, **STATED})}
    refused(sealed(older), "begun is damaged: it does not state the privacy of the last")
    refused(None, "begun is missing", is_kept=True)
    (path / "started.json").write_text(json.dumps({"round": 3, **STATED}))
    refused(None, "begun is missing")
    # A second file is not believed beside the first one, nor before a round was started.
    (path / "begun").write_bytes(before)
    assert read_started(tmp_path / "run", 1)["round"] == 2
    (path / "begun").unlink()
    Attempts(folder, 0).keep()
    (path / "started.json").write_text(json.dumps({"round": 3, **STATED}))
    assert read_started(tmp_path / "run", 2) == {}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": 2}, "field rounds is missing or malformed"),
        ({"kinds": np.array([0])}, "field kinds has the wrong length"),
        ({"kinds": np.array([0.0, 0.0])}, "field kinds has the wrong type"),
        ({"kinds": np.array([0, 1])}, "does not say what each round cost"),
        ({"kinds": np.array([0, -1])}, "does not say what each round cost"),
        ({"rounds": np.array([1, 2])}, "does not name rounds after the checkpoint's"),
        ({"since": -1}, "does not name rounds after the checkpoint's"),
        ({"more": 1}, "it is not written as a run writes it"),
        ({"loss.epsilon": np.array([-1.0])}, "epsilon = -1.0 is outside"),
        (None, "is missing: it says which rounds were begun"),
    ],
)
def test_rounds_that_cannot_have_been_begun_are_refused(
    changes: dict[str, Value] | None, sentence: str, tmp_path: Path
) -> None:
    folder = RunFolder.create(tmp_path / "run")
    if changes is not None:
        folder.write_atomically("checkpoint/begun", sealed({**BEGUN, **changes}))
    with pytest.raises(RunFolderError, match=f"begun {sentence}|begun is damaged: .*{sentence}"):
        Attempts(folder, 1, is_kept=True)


def test_a_run_keeps_its_started_rounds_before_it_has_any(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run")
    Attempts(folder, 0).keep()
    again = Attempts(folder, 0, is_kept=True)
    assert again.begun == []
    again.begin(1, ((PrivacyLoss(0.5), 3),), {"round": 1})
    again.keep()  # it keeps what was begun
    assert Attempts(folder, 0, is_kept=True).begun == [(1, ((PrivacyLoss(0.5), 3),))]
