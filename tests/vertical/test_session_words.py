"""The messages at the end of a session, and the files that a party accepts from another."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vertical_parts
from fedveil.base import message
from fedveil.base.message import Message
from fedveil.entropy import Secure
from fedveil.errors import (
    ExchangeError,
    FedveilError,
    JobError,
    LimitReached,
    LinkLost,
    MessageTooLong,
    PeerRestarted,
    RightMissing,
    RunFolderError,
    Unfit,
)
from fedveil.link.channel import Exchange, Send, drive_together
from fedveil.link.streams import Address
from fedveil.record.event_log import anchor
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import sealed
from fedveil.vertical import VerticalJob
from fedveil.vertical.crossing import check_sizes
from fedveil.vertical.job_split import report_entropy
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.remote import machine as machine_module
from fedveil.vertical.remote import sessions
from fedveil.vertical.remote.brought_ids import read_brought
from fedveil.vertical.remote.found_examples import FoundExamples
from fedveil.vertical.remote.handshake_state import Agreement, Standing
from fedveil.vertical.remote.machine import Machine, _checked
from fedveil.vertical.remote.sessions import Meeting, _noting, _tell, _told_of
from fedveil.vertical.split import EmbeddingPrivacy, module_of
from fedveil.vertical.step_checkpoint import last_common
from vertical_parts import Bottoms

HEAD = "0a" * 32
DUE: Message = {"kind": "done", "step": 3}
SAID: Message = {**DUE, "head": HEAD}


def test_the_head_of_the_others_log_is_taken() -> None:
    assert _checked("bank", SAID, DUE) == HEAD


@pytest.mark.parametrize(
    "change",
    [
        {"step": 4}, {"kind": "farewell"}, {"more": 1}, {"lines": 5},
        {"head": 5}, {"head": HEAD[:-1]}, {"head": HEAD.upper()}, {"head": f"{HEAD[:-1]}\n"},
        {"head": b"a" * 64}, {"step": np.array([3, 3])}, {"kind": np.arange(2)},
    ],
)  # fmt: skip
def test_what_is_no_head_of_a_log_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ExchangeError, match=r"^bank sent .* where 'done' was due: "):
        _checked("bank", {**SAID, **change}, DUE)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ExchangeError("x knows the id a1", told="x ended"), "x ended"),
        (
            RightMissing("lead may not predict: tls.yaml", "its roles forbid it"),
            "its roles forbid it",
        ),
        (KeyboardInterrupt(), "it was interrupted"),
        (LinkLost("10.1.2.3 is away"), "it has lost another party"),
        (
            LimitReached("evaluation 3 would bring an example of bank to epsilon 4.1"),
            "its own privacy.max_epsilon is reached",
        ),
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
        if who != "bank":
            raise KeyError(who, right)

    monkeypatch.setattr(sessions, "check_right", refused)
    machine: Any = SimpleNamespace(split=SimpleNamespace(followers=("bank", "shop")))
    meeting: Any = SimpleNamespace(credentials=None)
    for purpose in ("train", "evaluate"):
        with pytest.raises(KeyError) as asked:
            sessions.lead(machine, meeting, purpose)
        assert asked.value.args == ("shop", purpose)


class Reached(ExchangeError):
    """Stops a session where its handshake begins."""


@pytest.fixture
def handshakes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of arguments with which handshakes begin, on links that are none."""
    seen: list[Any] = []

    def begun(*given: Any, **named: Any) -> None:
        seen.append((given, named))
        raise Reached("the handshake")

    for side in ("lead", "follow"):
        monkeypatch.setattr(sessions.handshake, side, begun)
    link = SimpleNamespace(peer="", send=print, begin=lambda: None, close=lambda reason: None)
    monkeypatch.setattr(sessions, "Link", lambda *given, **named: link)
    for name in ("Listener", "Dialer"):
        place = SimpleNamespace(address=None)
        monkeypatch.setattr(sessions, name, lambda *given, place=place: nullcontext(place))
    return seen


def test_a_leader_brings_its_jobs_order_and_saves_the_run_before_others_do(
    handshakes: list[Any],
) -> None:
    split = SimpleNamespace(followers=("bank", "shop"))
    state = Standing("lead", {}, {}, {})
    machine: Any = SimpleNamespace(
        split=split, job=SimpleNamespace(seed=23), party="lead", folder=None,
        standing=lambda: state, keep_run="keep_run",
    )  # fmt: skip
    meeting = Meeting(Address("127.0.0.1", 1), None)
    with pytest.raises(Reached):
        sessions.lead(machine, meeting, "evaluate")
    named = {"attempt": 1, "purpose": "evaluate", "order_seed": 23, "keep_run": "keep_run"}
    assert handshakes == [((state, ("bank", "shop")), named)]


def test_a_follower_checks_the_right_to_each_purpose_that_a_leader_names(
    handshakes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, str, str]] = []
    monkeypatch.setattr(sessions, "check_right", lambda *given: asked.append(given))
    own: Any = "own credentials"
    state = Standing("bank", {}, {}, {})
    machine: Any = SimpleNamespace(
        split=SimpleNamespace(leader="lead", followers=("bank",)), party="bank", folder=None,
        log_refusal=print,
        standing=lambda: state,
    )  # fmt: skip
    with pytest.raises(Reached):
        sessions.follow(machine, Meeting(Address("127.0.0.1", 1), own), looks=True)
    ((standing, leader, begin), _) = handshakes[0]
    assert (standing.party, leader, begin) == ("bank", "lead", None)
    assert not asked
    standing.check("evaluate")
    standing.check("score")
    assert asked == [(own, "lead", "evaluate"), (own, "lead", "predict")]


def test_each_party_is_told_its_own_command_to_resume_a_training(
    handshakes: list[Any], tmp_path: Path
) -> None:
    machine: Any = SimpleNamespace(
        split=SimpleNamespace(leader="lead", followers=()), job=SimpleNamespace(seed=0), party="",
        folder=tmp_path, root=SimpleNamespace(path=tmp_path), keep_run=print,
        log_refusal=print,
        standing=lambda: Standing("bank", {}, {}, {}),
    )  # fmt: skip
    meeting = Meeting(Address("127.0.0.1", 1), None)
    for begin, command in (
        (lambda: sessions.lead(machine, meeting), "leader"),
        (lambda: sessions.lead(machine, meeting, "evaluate"), None),
        (lambda: sessions.follow(machine, meeting), "follower"),
        (lambda: sessions.follow(machine, meeting, looks=True), None),
    ):
        with pytest.raises(Reached) as error:
            begin()
        said = "".join(getattr(error.value, "__notes__", []))
        assert (f"`fedveil vertical {command} --resume {tmp_path}`" in said) == bool(command)
        assert bool(said) == bool(command)


def test_a_follower_answers_the_first_message_of_an_attempt_only_once(
    handshakes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first: Message = {"kind": "begin", "attempt": 2}
    examples: Any = None
    agreed = Agreement(bytes(16), "train", 0, 1, examples, ())
    steps = iter([agreed, PeerRestarted("lead is a new process"), Reached("the third")])
    begun: list[Message | None] = []
    said: list[str] = []

    def drive(exchange: object, links: object) -> Agreement:
        step = next(steps)
        if isinstance(step, BaseException):
            raise step
        return step

    def play(agreement: Agreement, channels: Any, *given: object, **named: object) -> None:
        channels["lead"].receive()

    link = SimpleNamespace(
        peer="lead",
        begin=print,
        send=print,
        close=lambda reason: None,
        receive=lambda *given: first,
    )
    monkeypatch.setattr(sessions, "Link", lambda *given, **named: link)
    monkeypatch.setattr(sessions, "drive", drive)
    monkeypatch.setattr(
        sessions.handshake, "follow", lambda standing, leader, begin: begun.append(begin)
    )
    machine: Any = SimpleNamespace(
        split=SimpleNamespace(leader="lead", followers=("bank",)), party="bank", folder=None,
        log_refusal=print,
        play=play, standing=lambda: Standing("bank", {}, {}, {}),
    )  # fmt: skip
    with pytest.raises(Reached):
        sessions.follow(machine, Meeting(Address("127.0.0.1", 1), None, report=said.append))
    assert begun == [None, first, None]
    back = ": back to the last step that all parties have saved"
    assert said == [f"the leader starts over{back}", f"lead is a new process{back}"]


def test_a_leader_numbers_its_attempts_and_waits_for_another_in_place_of_who_is_unfit(
    handshakes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = iter([PeerRestarted("bank is a new process"), Unfit("shop", "it lies"), Reached("3")])
    numbers: list[int] = []
    did: list[Any] = []

    def drive(exchange: object, links: object) -> None:
        raise next(ends)

    def link(peer: str, **named: object) -> Any:
        return SimpleNamespace(
            peer=peer, send=print, begin=lambda: did.append(peer), close=lambda reason: None,
            refuse=lambda why: did.append((peer, why)),
            await_another=lambda: did.append((peer, "another")),
        )  # fmt: skip

    monkeypatch.setattr(sessions, "Link", link)
    monkeypatch.setattr(sessions, "drive", drive)
    monkeypatch.setattr(
        sessions.handshake, "lead", lambda *given, **named: numbers.append(named["attempt"])
    )
    machine: Any = SimpleNamespace(
        split=SimpleNamespace(followers=("bank", "shop")), job=SimpleNamespace(seed=0),
        party="lead", folder=None, standing=lambda: Standing("lead", {}, {}, {}), keep_run=print,
    )  # fmt: skip
    with pytest.raises(Reached):
        sessions.lead(machine, Meeting(Address("127.0.0.1", 1), None, report=did.append))
    assert numbers == [1, 2, 3]
    both = ["bank", "shop"]  # both begin anew
    assert did == [
        *both, "bank is a new process: back to the last step that all parties have saved",
        *both, "refused: it lies", ("shop", "it lies"), ("shop", "another"), *both,
    ]  # fmt: skip


@pytest.mark.parametrize("party", ["lead", "bank"])
def test_a_session_has_all_that_the_meeting_has(
    party: str, handshakes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The credentials sign the model's bundle, and the user sees the records and sentences."""
    examples: Any = None
    agreed = Agreement(bytes(16), "train", 0, 1, examples, ("bank lacks 3",))
    waits: list[tuple[str, float]] = []
    said: list[str] = []

    def link(peer: str, *, patience_s: float = 600.0) -> Any:
        waits.append((peer, patience_s))
        return SimpleNamespace(
            peer=peer, begin=print, send=print, close=lambda reason: None, reconnections=0
        )

    def play(
        agreement: Agreement, channels: dict[str, Any], progress: Any = None, own: Any = None,
        say: Any = None, credentials: Any = None,
    ) -> Any:  # fmt: skip
        played.append((agreement, sorted(channels), progress, own, credentials))
        say("the first sentence")
        return SimpleNamespace(run=None)

    played: list[Any] = []
    monkeypatch.setattr(sessions, "Link", link)
    monkeypatch.setattr(sessions, "check_right", lambda *given: None)
    monkeypatch.setattr(sessions, "drive", lambda exchange, links: agreed)
    for side in ("lead", "follow"):
        monkeypatch.setattr(sessions.handshake, side, lambda *given, **named: None)
    machine: Any = SimpleNamespace(
        split=SimpleNamespace(leader="lead", followers=("bank", "shop")), party=party, folder=None,
        job=SimpleNamespace(seed=0), standing=lambda: Standing(party, {}, {}, {}), keep_run=print,
        log_refusal=print,
        play=play,
    )  # fmt: skip
    own: Any = "own credentials"
    place = Meeting(Address("127.0.0.1", 1), own, 7.5, report=said.append, progress=repr)
    if party == "lead":
        sessions.lead(machine, place, own=iter)  # type: ignore[arg-type]
        assert played == [(agreed, ["bank", "shop"], repr, iter, own)]
        assert waits == [("bank", 7.5), ("shop", 7.5)]
    else:
        sessions.follow(machine, place)
        assert played == [(agreed, ["lead"], repr, None, own)]
        assert waits == [("lead", 7.5)]
    assert said == ["bank lacks 3", "the first sentence"]


def test_a_follower_serves_on_after_an_error_and_waits_without_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[float, float, bool]] = []
    said: list[str] = []

    def follow(machine: object, meeting: Meeting, *, looks: bool) -> None:
        asked.append((meeting.link_patience_s, meeting.patience_s, looks))
        raise (LinkLost("it is away"), ExchangeError("it lies"), KeyError())[len(asked) - 1]

    monkeypatch.setattr(sessions, "follow", follow)
    meeting = Meeting(Address("127.0.0.1", 1), None, patience_s=3.0, report=said.append)
    machine: Any = None
    with pytest.raises(KeyError):
        sessions.serve(machine, meeting)
    assert asked == [(math.inf, 3.0, True)] * 3
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
            task=f"vertical_parts:{task}",
            batch_size=64,
            in_flight=3,
            alignment={"most_ids": most, "least_common": 9},
        )
        with ExitStack() as stack:
            machine = Machine(job, lambda task: "bank", stack)
            found = machine.standing()
            assert found.least_common == 9
            assert found.brought is machine._brought
            return found

    assert standing("bottoms").most_ids == 4 * (50 + 20)
    assert standing("bottoms", 7).most_ids == 7
    assert standing("u_shape").most_ids == sys.maxsize, "the bank has no ids to guess at"
    # Micro-batches of the 50 training examples, or of a whole batch if the party has none.
    assert sizes == [17, 17, 22]


@pytest.mark.parametrize(
    "privacy", [{}, {"label_dp": {"eps": 2}}, {"label_protection": {"name": "max_norm"}}]
)
def test_a_party_that_protects_labels_has_a_secret_for_the_order_of_examples(
    privacy: dict[str, Any],
) -> None:
    """Otherwise the order is that of the leader's file, which may be sorted by its labels."""
    job = VerticalJob(task="vertical_parts:bottoms", privacy=privacy)
    secrets = set()
    for seed in (5, 6):
        with ExitStack() as stack:
            standing = Machine(job, lambda task: "lead", stack, own_seed=seed).standing()
            secrets.add(standing.order_secret)
    assert len(secrets - {None}) == (2 if privacy else 0)


@pytest.mark.parametrize("counts", ['{"lead": -1}', '{"lead": 1.5}', '{"lead": true}'])
def test_edited_guesses_are_refused(counts: str, tmp_path: Path) -> None:
    path = tmp_path / "guesses"
    path.write_bytes(sealed({"brought": json.dumps({"bank": 3, "shop": 0})}))
    assert read_brought(tmp_path) == {"bank": 3, "shop": 0}
    path.write_bytes(sealed({"brought": counts}))
    with pytest.raises(RunFolderError, match="it contains invalid counts"):
        read_brought(tmp_path)


@pytest.mark.parametrize("party", ["lead", "bank"])
def test_deleted_guesses_are_missed_even_if_no_id_was_sent(party: str, tmp_path: Path) -> None:
    """A process that is killed between the two files has no seed yet, and may start anew."""
    job, folder = VerticalJob(task="vertical_parts:bottoms"), tmp_path / "run"
    with ExitStack() as stack:
        machine = Machine.new(job, lambda task: party, folder, "command", stack)
        machine.keep_run()
    (folder / "guesses").unlink()
    with ExitStack() as stack, pytest.raises(RunFolderError, match="guesses is missing"):
        Machine.reopened(folder, lambda task: party, stack)
    (folder / "own-seed").unlink()
    assert read_brought(folder) == {}


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


def test_a_machine_makes_its_own_modules_from_its_own_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the job would know weights that are drawn from the job's seed."""
    seeds: list[int] = []

    def made(seed: int) -> nn.Module:
        seeds.append(seed)
        return nn.Linear(3, 5)

    monkeypatch.setattr(vertical_parts, "wider", made)
    left = {"module": "vertical_parts:wider", "output": [5]}
    parts: dict[str, Any] = {"left": left, "right": {}, "top": {"module": "nowhere:secret"}}
    job = VerticalJob(task="vertical_parts:bottoms", seed=41, parts=parts)
    with ExitStack() as stack:
        machine = Machine(job, lambda task: "bank", stack, own_seed=77)
    assert seeds == [77]
    assert module_of(machine.split.by_name["left"])(torch.zeros(2, 3)).shape == (2, 5)
    assert machine.split.by_name["top"].module is None


def test_a_machine_that_is_started_again_has_its_seed_its_files_and_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path | None] = []

    def stored(seed: int, folder: Path | None) -> Bottoms:
        folders.append(folder)
        return Bottoms(seed)

    monkeypatch.setattr(vertical_parts, "stored", stored, raising=False)
    job, found = VerticalJob(task="vertical_parts:stored", seed=41), list[Machine]()
    with ExitStack() as stack:
        first = Machine.new(job, lambda task: "bank", tmp_path / "run", "command", stack)
        first._brought["lead"] = 12
        first._keep_brought()
        found.append(first)
    with ExitStack() as stack:
        found.append(Machine.reopened(tmp_path / "run", lambda task: "bank", stack))
    assert folders == [None, tmp_path / "run"]
    assert [machine._brought for machine in found] == [{"lead": 12}] * 2
    one, other = (module_of(machine.split.by_name["left"]).state_dict() for machine in found)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_machine_has_the_jobs_threads_and_refuses_a_device_that_is_not_here() -> None:
    before = torch.get_num_threads()
    job = VerticalJob(task="vertical_parts:bottoms", threads=before + 2)
    with ExitStack() as stack:
        Machine(job, lambda task: "bank", stack)
        assert torch.get_num_threads() == before + 2
    assert torch.get_num_threads() == before
    with ExitStack() as stack, pytest.raises(JobError, match="device = cuda:99 cannot be used"):
        Machine(job.with_(device="cuda:99"), lambda task: "bank", stack)


def test_links_are_closed_with_the_reason_of_whatever_ended_the_session() -> None:
    closed: list[tuple[str, str]] = []
    links: Any = [
        SimpleNamespace(close=lambda reason, name=name: closed.append((name, reason)))
        for name in ("bank", "shop")
    ]
    for error, reason in (
        (KeyboardInterrupt(), "it was interrupted"),
        (ExchangeError("a1", told="it lied"), "it lied"),
    ):  # fmt: skip
        with pytest.raises(type(error)), sessions.closing(links):
            raise error
        assert closed == [("bank", reason), ("shop", reason)]
        closed.clear()
    with sessions.closing(links):
        assert not closed
    assert closed == [("bank", ""), ("shop", "")]


def test_a_leader_names_each_new_run_differently_and_a_follower_names_none() -> None:
    """Folders of two runs with one name would be resumed together."""

    def named(party: str, run: bytes) -> bytes:
        task = SimpleNamespace(leader="lead")
        machine: Any = SimpleNamespace(party=party, task=task, _run=run)
        Machine._name_run(machine)
        return machine._run  # type: ignore[no-any-return]

    known = bytes(range(16))
    assert [named(party, known) for party in ("lead", "bank")] == [known] * 2
    assert named("bank", b"") == b""
    new = {named("lead", b"") for _ in range(3)}
    assert (len(new), {len(name) for name in new}) == (3, {16})


def test_a_machine_that_is_started_again_knows_its_run_and_its_examples(tmp_path: Path) -> None:
    job, run = VerticalJob(task="vertical_parts:bottoms"), bytes(range(16))
    rows = {"train": np.array([4, 0, 31]), "test": np.array([7, 2])}
    examples = FoundExamples(bytes(range(16, 32)), rows)
    agreed = Agreement(run, "train", step=0, order_seed=5, examples=examples, notes=())
    path, heard, records = tmp_path / "run", list[str](), list[Any]()
    with ExitStack() as stack:
        first = Machine.new(job, lambda task: "bank", path, "command", stack)
        run_here = first._run_for(agreed, records.append, heard.append)
        assert run_here.setting.order_seed == 5
        assert run_here.setting.own_seed == first._own_seed
        run_here.settle()
        run_here.log.say("hello")
        run_here.log.record(epoch=0)
    assert (heard, records) == (["hello"], [{"party": "bank", "epoch": 0}])
    newer = FoundExamples(bytes(range(32, 48)), rows)  # the leader had lost the old ones
    with ExitStack() as stack:
        second = Machine.reopened(path, lambda task: "bank", stack)
        standing = second.standing()
        second._run_for(replace(agreed, examples=newer), None)
    with ExitStack() as stack:
        again = Machine.reopened(path, lambda task: "bank", stack).standing()
    assert again.known_by(newer.name) is not None
    assert (standing.run, standing.steps) == (run, (0,))
    known = standing.known_by(examples.name)
    assert known is not None
    assert {subset: found.tolist() for subset, found in known.positions.items()} == {
        subset: found.tolist() for subset, found in rows.items()
    }
    with ExitStack() as stack, pytest.raises(RunFolderError, match="`command --resume"):
        Machine.new(job, lambda task: "bank", path, "command", stack)
    (path / "bank" / "run").write_bytes(run[:-1])
    with ExitStack() as stack, pytest.raises(RunFolderError, match="run is damaged: it has 15 by"):
        Machine.reopened(path, lambda task: "bank", stack)


def test_a_follower_plays_its_tasks_own_side_of_a_purpose_and_refuses_an_unknown_one() -> None:
    assists = {"generate": lambda party, entropy: (party, entropy), "train": print}
    machine: Any = SimpleNamespace(task=SimpleNamespace(assists=assists))
    run: Any = SimpleNamespace(party="party", setting=SimpleNamespace(entropy="entropy"))
    assert Machine._side(machine, "generate")(run) == ("party", "entropy")
    assert Machine._side(machine, "train") is PartyRun.train
    for task in (machine.task, SimpleNamespace()):
        machine.task = task
        with pytest.raises(ExchangeError, match="asks for 'attack', which this party does not kno"):
            Machine._side(machine, "attack")


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
def test_a_session_begins_at_the_agreed_step_and_ends_with_an_account(
    purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training writes its account itself. An evaluation that fails has sent outputs too."""
    did: list[object] = []
    signed: list[object] = []
    asked: list[object] = []
    said: list[str] = []
    private: list[str] = []
    folder = RunFolder(tmp_path, None)  # type: ignore[arg-type]

    def nothing(*given: object) -> Exchange[None]:
        yield from ()

    def sign(*given: object) -> Exchange[None]:
        signed.append(given)
        yield from ()

    def side(run: object, *, fails: bool = False) -> Exchange[str]:
        did.append("side")
        if fails:
            raise ExchangeError("lead sent nonsense")
        yield from ()
        return "result"

    run: Any = SimpleNamespace(
        settle=lambda *, to_train: did.append(f"settle to train: {to_train}"),
        log=SimpleNamespace(event=said.append, note=private.append), contents=bytes(32),
        unfinished="",
        keep_account=lambda: did.append("account"), figures=lambda: ["line"],
    )  # fmt: skip
    machine: Any = SimpleNamespace(
        party="bank", task=SimpleNamespace(notes=lambda party: [f"{party}.csv: UTF-8"]), _began=0.0,
        folder=folder, root=SimpleNamespace(path=tmp_path), _side=lambda purpose: side,
        _run_for=lambda *given: asked.append(given) or run, _farewell=nothing,
    )  # fmt: skip
    examples: Any = None
    agreed = Agreement(bytes(range(16)), purpose, 7, 0, examples, ("bank lacks 3",))
    monkeypatch.setattr(machine_module.bundle_agreement, "agree", sign)
    own: Any = "own credentials"
    session = Machine.play(machine, agreed, {}, repr, None, print, own)
    assert asked == [(agreed, repr, print)]
    assert signed == ([(run, agreed.run, own)] if purpose == "train" else [])
    assert (session.result, session.figures) == ("result", ["line"])
    account = ["account"] if purpose != "train" else []
    settled = f"settle to train: {purpose == 'train'}"
    assert did == [settled, "side", *account]
    (begun,) = said
    assert f"{purpose} from step 7 of run 0001" in begun
    assert private == ["bank.csv: UTF-8", "bank lacks 3"], "others may be given the log"
    assert (tmp_path / "finished").exists() == (purpose == "train")
    did.clear()
    with pytest.raises(ExchangeError):
        Machine.play(machine, agreed, {}, own=lambda run: side(run, fails=True))
    assert did == [settled, "side", *account]


def test_each_log_states_the_end_of_the_others_logs() -> None:
    parties = ("lead", "bank", "shop")
    events: dict[str, list[str]] = {name: [] for name in parties}
    sent: list[tuple[str, str]] = []

    class Log:
        """A log whose head is the digest of its events so far."""

        def __init__(self, party: str) -> None:
            self.event, self._events = events[party].append, events[party]

        @property
        def head(self) -> str:
            return hashlib.sha256(repr(self._events).encode()).hexdigest()

    def side(party: str) -> Exchange[None]:
        machine: Any = SimpleNamespace(party=party, task=SimpleNamespace(leader="lead"))
        run: Any = SimpleNamespace(done=7, stopped=None, log=Log(party))
        others: Any = dict.fromkeys(("bank", "shop") if party == "lead" else ("lead",))
        ending, answer = Machine._farewell(machine, run, others), None
        while True:
            try:
                request = ending.send(answer)
            except StopIteration:
                return
            if isinstance(request, Send):
                sent.append((party, request.peer))
            answer = yield request

    drive_together({name: side(name) for name in parties}, encoded=True)
    seals = {name: events[name].pop(0) for name in parties}
    assert len(set(seals.values())) == len(parties), "each log is sealed with a line of its own"
    assert all(re.fullmatch("sealed with [0-9a-f]{32}", each) for each in seals.values())
    heads = {name: hashlib.sha256(repr([seals[name]]).encode()).hexdigest() for name in parties}
    assert events == {
        "lead": [anchor("bank", heads["bank"]), anchor("shop", heads["shop"])],
        "bank": [anchor("lead", heads["lead"])],
        "shop": [anchor("lead", heads["lead"])],
    }
    assert sent[2:] == [("lead", "bank"), ("lead", "shop")], "no party leaves before all are done"


@pytest.mark.parametrize("kind", [ExchangeError, RightMissing])
def test_a_follower_logs_only_the_reason_that_others_may_know(
    kind: Any, handshakes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*given: Any, **named: Any) -> Any:
        raise kind("too few rows are common; one of its ids is 17", told="too few rows are common")

    monkeypatch.setattr(sessions.handshake, "follow", refusing)
    lines: list[str] = []
    machine: Any = SimpleNamespace(
        split=SimpleNamespace(leader="lead", followers=("bank",)), party="bank", folder=None,
        log_refusal=lines.append, standing=lambda: Standing("bank", {}, {}, {}),
    )  # fmt: skip
    with pytest.raises(kind):
        sessions.follow(machine, Meeting(Address("127.0.0.1", 1), None), looks=True)
    assert lines == ["too few rows are common"]
