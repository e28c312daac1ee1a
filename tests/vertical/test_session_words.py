"""The messages at the end of a session, and the files that a party accepts from another."""

from __future__ import annotations

import json
import math
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedveil.base import message
from fedveil.base.message import Message
from fedveil.entropy import Secure
from fedveil.errors import ExchangeError, FedveilError, LinkLost, MessageTooLong, RunFolderError
from fedveil.link.streams import Address
from fedveil.record.sealed_message import sealed
from fedveil.vertical import VerticalJob
from fedveil.vertical.crossing import check_sizes
from fedveil.vertical.job_split import report_entropy
from fedveil.vertical.remote import machine as machine_module
from fedveil.vertical.remote import sessions
from fedveil.vertical.remote.handshake_state import Agreement, Standing
from fedveil.vertical.remote.machine import Machine, _checked
from fedveil.vertical.remote.sessions import Meeting, _noting, _tell, _told_of
from fedveil.vertical.split import EmbeddingPrivacy
from fedveil.vertical.step_checkpoint import last_common
from vertical_parts import Bottoms

HEAD = "0a" * 32
DUE: Message = {"kind": "done", "step": 3}
SAID: Message = {**DUE, "lines": 5, "head": HEAD}


def test_the_head_of_the_others_log_is_taken() -> None:
    assert _checked("bank", SAID, DUE) == (5, HEAD)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 4}, {"kind": "farewell"}, {"more": 1}, {"lines": -1}, {"lines": (1 << 40) + 1},
        {"lines": "5"}, {"head": HEAD[:-1]}, {"head": HEAD.upper()}, {"head": f"{HEAD[:-1]}\n"},
        {"head": b"a" * 64},
    ],
)  # fmt: skip
def test_what_is_no_head_of_a_log_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ExchangeError, match=r"^bank sent .* where 'done' was due: "):
        _checked("bank", {**SAID, **change}, DUE)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ExchangeError("x knows the id a1", told="x ended"), "x ended"),
        (KeyboardInterrupt(), "it was interrupted"),
        (LinkLost("10.1.2.3 is away"), "it has lost another party"),
        (FedveilError("/home/a/t.csv is gone"), "it met an error of its own"),
        (ValueError("a1"), "it failed"),
    ],
)
def test_the_others_learn_no_more_of_an_error_than_that_it_was_there(
    error: BaseException, told: str
) -> None:
    assert _told_of(error) == told


def test_a_session_says_where_it_goes_on_and_which_links_broke() -> None:
    said: list[str] = []
    meeting: Any = SimpleNamespace(report=said.append)
    for step in (0, 12):
        examples: Any = None
        _tell(meeting, Agreement(bytes(16), "train", step, 1, examples, ("one", "two")))
    assert said == ["one", "two", "one", "two", "train from step 12"]
    said.clear()
    log = SimpleNamespace(event=said.append)
    links: Any = {
        name: SimpleNamespace(reconnections=count, away_s=seconds)
        for name, count, seconds in (("bank", 2, 3.25), ("shop", 0, 0.0), ("desk", 1, 60.0))
    }
    session: Any = SimpleNamespace(run=SimpleNamespace(log=log))
    assert _noting(links, session) is session
    assert said == [
        "the link to bank was reopened 2 times, after 3.2 s in all",
        "the link to desk was reopened 1 time, after 60.0 s in all",
    ]


def test_a_follower_needs_the_right_to_what_the_leader_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(own: object, who: str, right: str) -> None:
        raise KeyError(who, right)

    monkeypatch.setattr(sessions, "check_right", refused)
    machine: Any = SimpleNamespace(split=SimpleNamespace(followers=("bank", "shop")))
    meeting: Any = SimpleNamespace(credentials=None)
    for purpose in ("train", "evaluate"):
        with pytest.raises(KeyError) as asked:
            sessions.lead(machine, meeting, purpose)
        assert asked.value.args == ("bank", purpose)


def test_a_follower_serves_on_after_an_error_and_waits_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, bool]] = []
    said: list[str] = []

    def follow(machine: object, meeting: Meeting, *, looks: bool) -> None:
        asked.append((meeting.patience_s, looks))
        raise (LinkLost("it is away"), ExchangeError("it lies"), KeyError())[len(asked) - 1]

    monkeypatch.setattr(sessions, "follow", follow)
    meeting = Meeting(Address("127.0.0.1", 1), None, patience_s=3.0, report=said.append)
    machine: Any = None
    with pytest.raises(KeyError):
        sessions.serve(machine, meeting)
    assert asked == [(math.inf, True)] * 3
    assert said == ["it is away", "it lies"]


def test_only_a_training_is_resumed(tmp_path: Path) -> None:
    machine: Any = SimpleNamespace(folder=tmp_path, root=SimpleNamespace(path=tmp_path))
    for purpose, notes in (("train", 1), ("evaluate", 0), ("", 0)):
        error = ExchangeError("it ended")
        with pytest.raises(ExchangeError), sessions._how_to_resume(machine, purpose, "again"):
            raise error
        assert len(getattr(error, "__notes__", [])) == notes


def test_a_machines_limits_follow_from_its_own_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(machine_module, "check_sizes", lambda split, rows: sizes.append(rows))

    def standing(task: str, most: int | None = None) -> Standing:
        job = VerticalJob(
            task=f"vertical_parts:{task}", batch_size=64, in_flight=3, alignment={"most_ids": most}
        )
        with ExitStack() as stack:
            machine = Machine(job, lambda task: "bank", stack)
            found = machine.standing()
            assert found.brought is machine._brought
            return found

    assert standing("bottoms").most_ids == 4 * (50 + 20)
    assert standing("bottoms", 7).most_ids == 7
    assert standing("u_shape").most_ids == sys.maxsize, "the bank has no ids to guess at"
    # Micro-batches of the 50 training examples, or of a whole batch if the party has none.
    assert sizes == [17, 17, 22]


@pytest.mark.parametrize("counts", ['{"lead": -1}', '{"lead": 1.5}', '{"lead": true}'])
def test_edited_guesses_are_refused(counts: str, tmp_path: Path) -> None:
    machine, path = Machine.__new__(Machine), tmp_path / "guesses"
    path.write_bytes(sealed({"brought": json.dumps({"bank": 3})}))
    machine._take_up_brought(path)
    assert machine._brought == {"bank": 3}
    path.write_bytes(sealed({"brought": counts}))
    with pytest.raises(RunFolderError, match="it contains invalid counts"):
        machine._take_up_brought(path)


def test_the_last_common_step_is_all_parties_and_who_has_none_is_named(tmp_path: Path) -> None:
    def folders(**steps: list[int]) -> Any:
        for party, own in steps.items():
            (tmp_path / party / "checkpoint").mkdir(parents=True, exist_ok=True)
            for step in own:
                (tmp_path / party / "checkpoint" / f"{step:09d}").touch()
        return {party: SimpleNamespace(path=tmp_path / party) for party in steps}

    assert last_common(tmp_path, folders(lead=[5, 10], bank=[10, 15, 20])) == 10
    nothing = "no step that all parties have saved: it contains nothing of shop, desk$"
    with pytest.raises(RunFolderError, match=nothing):
        last_common(tmp_path, folders(lead=[], shop=[], bank=[], desk=[]))
    with pytest.raises(RunFolderError, match=r"that all parties have saved$"):
        last_common(tmp_path, folders(lead=[], till=[1]))


def test_a_gradient_is_as_long_as_its_numbers_where_its_output_is_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = Bottoms().split_model()
    for part in ("left", "right"):
        split = split.replace(part, privacy=EmbeddingPrivacy(1.0))
    monkeypatch.setattr(message, "MOST_CARRIED", 20 * 8 * 4)
    check_sizes(split, 20)
    with pytest.raises(MessageTooLong, match="the gradient of part left for 21 examples"):
        check_sizes(split, 21)


def test_reports_are_drawn_from_the_jobs_seed_or_from_the_operating_system() -> None:
    def entropy(seed: int, randomness: str) -> Any:
        return report_entropy(VerticalJob(seed=seed, privacy={"randomness": randomness}))

    drawn = [entropy(seed, "seeded").token(16) for seed in (3, 4, 3)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert isinstance(entropy(3, "secure"), Secure)
