"""Parties on separate machines, each linked to the leader by mutual TLS on loopback."""

from __future__ import annotations

import csv
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cutter import Cutter
from fedveil.attacks.split.evidence import Evidence
from fedveil.attacks.split.example_prior import Gaussian
from fedveil.attacks.split.whitebox_inversion import invert
from fedveil.base import message
from fedveil.base.message import Message
from fedveil.entropy import Secure
from fedveil.errors import (
    ExchangeError,
    InvalidValue,
    LimitReached,
    LinkLost,
    MessageTooLong,
    PeerRefused,
    RunFolderError,
)
from fedveil.link.link import Link
from fedveil.link.own_authority import write_certificates
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials
from fedveil.record.event_log import faults
from fedveil.vertical import Optimizer, Part, SplitModel, VerticalJob, evaluate, resume, train
from fedveil.vertical.crossing import check_sizes
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.remote import handshake, intersection, sessions
from fedveil.vertical.remote.found_examples import FoundExamples
from fedveil.vertical.remote.handshake_state import Agreement
from fedveil.vertical.remote.machine import Machine, Session, follower_of
from fedveil.vertical.remote.sessions import Meeting, follow, lead
from fedveil.vertical.split import module_of
from fedveil.vertical.step_checkpoint import Checkpoint
from lying_side import lying_side

DEADLINE_S = 180.0
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    write_certificates(folder, ["lead", "bank", "shop"])
    return folder


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedveil.link.dialer.LONGEST_WAIT_S", 0.2)


def job_of(task: str = "bottoms", *overrides: str) -> VerticalJob:
    settings = (
        f"task=vertical_apart:{task}",
        "epochs=2",
        "batch_size=10",
        "checkpoint.every_steps=4",
        "record.every_steps=1",
        "alignment.least_common=8",
    )
    return VerticalJob.load(None, [*settings, *overrides])


class Parties:
    """The parties of a test, each in a thread."""

    def __init__(self, folder: Path, certificates: Path, stack: ExitStack) -> None:
        self.folder, self._certificates, self.stack = folder, certificates, stack
        self.said: dict[str, list[str]] = {}
        self.ends: dict[str, Session | BaseException] = {}
        self.machines: dict[str, Machine] = {}
        self.port = 0
        #: If True, initial weights are those of a run in one process, so that the runs are equal.
        self.shares_seed = True
        self._stacks: dict[str, ExitStack] = {}
        self._listening = threading.Event()
        self._threads: list[threading.Thread] = []

    def lead(self, job: VerticalJob, purpose: str = "train", **options: Any) -> None:
        machine = self._machine(job, "lead")

        def listening(address: Address) -> None:
            self.port = address.port
            self._listening.set()

        place = self._meeting("lead", 0, listening=listening, **options)
        self._start("lead", lambda: lead(machine, place, purpose))
        assert self._listening.wait(DEADLINE_S)

    def follow(
        self, job: VerticalJob, party: str, *, port: int = 0, looks: bool = False, **options: Any
    ) -> None:
        machine = self._machine(job, party)
        place = self._meeting(party, port or self.port, **options)
        self._start(party, lambda: follow(machine, place, looks=looks))

    def end(self) -> dict[str, Session | BaseException]:
        """Return each party's result or error."""
        end = time.monotonic() + DEADLINE_S
        for thread in self._threads:
            thread.join(max(0, end - time.monotonic()))
            assert not thread.is_alive(), "a party does not end"
        return self.ends

    def sessions(self) -> dict[str, Session]:
        sessions = {}
        for party, end in self.end().items():
            if not isinstance(end, Session):
                raise end
            sessions[party] = end
        return sessions

    def _machine(self, job: VerticalJob, party: str) -> Machine:
        if party in self._stacks:
            self._stacks[party].close()
        stack = self._stacks[party] = self.stack.enter_context(ExitStack())
        path = self.folder / party
        if (path / "job.yaml").exists():
            machine = Machine.reopened(path, lambda task: party, stack)
        else:
            seed = job.seed if self.shares_seed else None
            machine = Machine.new(job, lambda task: party, path, "command", stack, own_seed=seed)
        self.machines[party] = machine
        return machine

    def _meeting(self, party: str, port: int, **options: Any) -> Meeting:
        self.said[party] = []
        return Meeting(
            **{
                "address": Address("127.0.0.1", port),
                "credentials": Credentials.read(self._certificates, party),
                "patience_s": PATIENCE_S,
                "report": self.said[party].append,
                **options,
            }
        )

    def _start(self, party: str, work: Callable[[], Session]) -> None:
        def run() -> None:
            try:
                self.ends[party] = work()
            except BaseException as error:
                self.ends[party] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()


@pytest.fixture
def parties(tmp_path: Path, certificates: Path) -> Iterator[Callable[..., Parties]]:
    with ExitStack() as stack:
        yield lambda name="apart": Parties(tmp_path / name, certificates, stack)


def says(end: Any, kind: type[BaseException]) -> str:
    """Return the sentence of a party's error."""
    assert isinstance(end, kind)
    return str(end)


def weights(folder: Path, party: str) -> bytes:
    return (folder / party / "model.safetensors").read_bytes()


def without_clock(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if not k.startswith("seconds")} for r in records]


@pytest.mark.parametrize(
    ("task", "names", "overrides"),
    [
        ("bottoms", ("bank", "shop"), ()),
        ("bottoms", ("bank", "shop"), ("in_flight=4",)),
        ("u_shape", ("bank",), ("in_flight=2",)),
        ("u_shape", ("bank",), ("record.followers_see_loss=false",)),
    ],
)
def test_apart_they_end_with_the_bytes_of_one_process(
    parties: Any, tmp_path: Path, task: str, names: tuple[str, ...], overrides: tuple[str, ...]
) -> None:
    job = job_of(task, *overrides)
    together = train(job, tmp_path / "together")
    apart = parties()
    apart.lead(job)
    for name in names:
        apart.follow(job, name)
    sessions = apart.sessions()
    for name in ("lead", *names):
        assert weights(apart.folder / name, name) == weights(tmp_path / "together", name)
        alone = without_clock(sessions[name].run.log.records)
        assert alone == without_clock(together.records[name])
        assert apart.machines[name].has_finished


def test_a_link_that_breaks_again_and_again_changes_nothing(parties: Any, tmp_path: Path) -> None:
    job = job_of()
    train(job, tmp_path / "together")
    apart = parties()
    apart.lead(job)
    with Cutter(apart.port) as cutter:
        steps = []

        def cut(record: dict[str, Any]) -> None:
            steps.append(record)
            if len(steps) in (2, 5, 9):
                cutter.cut_after(500)

        apart.follow(job, "bank", port=cutter.port, progress=cut)
        apart.follow(job, "shop")
        sessions = apart.sessions()
        assert cutter.cuts == 3
    for name in ("lead", "bank", "shop"):
        assert weights(apart.folder / name, name) == weights(tmp_path / "together", name)
    events = (apart.folder / "bank" / "bank" / "events.log").read_text()
    assert "the link to lead was reopened" in events
    assert sessions["lead"].run.done == 10


class Died(BaseException):
    """Simulates a killed process: it tells no other party."""


def test_a_party_that_dies_comes_back_and_the_others_go_back_with_it(
    parties: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower dies silently; test_vertical_processes kills the leader too."""
    job = job_of()
    train(job, tmp_path / "together")
    monkeypatch.setattr(sessions, "closing", silent_where_it_dies)
    apart = parties()

    def dying(at: int) -> Callable[[dict[str, Any]], None]:
        def look(record: dict[str, Any]) -> None:
            if record.get("step") == at % 5 and record.get("epoch") == at // 5:
                raise Died

        return look

    apart.lead(job)
    apart.follow(job, "bank", progress=dying(7))
    apart.follow(job, "shop")
    wait_for(lambda: isinstance(apart.ends.get("bank"), Died))
    apart.follow(job, "bank")
    for name in apart.sessions():
        assert weights(apart.folder / name, name) == weights(tmp_path / "together", name)
    assert [said for said in apart.said["lead"] if not said.startswith("labels: ")] == [
        "bank has started again: back to the last step that all parties have saved",
        "train from step 4",
    ]
    guesses, *others = apart.said["shop"]
    assert guesses.startswith("lead has brought 70 ids in all")
    assert others == [
        "The output of right leaves shop without protection.",
        "the leader starts over: back to the last step that all parties have saved",
        "train from step 4",
    ]
    assert apart.said["bank"] == [
        "train from step 4",
        "The output of left leaves bank without protection.",
    ]


class silent_where_it_dies:
    """Replaces `sessions.closing`, except that a party that dies says nothing."""

    def __init__(self, links: Any) -> None:
        self._links = list(links)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: object) -> None:
        for link in self._links:
            if kind is Died:
                link._ending = True
            link.close()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def corrupted(due: str, changes: dict[str, Any]) -> Callable[[Link, Message], Message]:
    """Change some fields of the tensor `due` of the second training step."""

    def change(link: Link, message: Message) -> Message:
        if message.get("name") == due and message.get("step") == 2:
            given = {k: v(message[k]) if callable(v) else v for k, v in changes.items()}
            return {**message, **given}
        return message

    return change


def with_nan(data: Any) -> Any:
    copy = data.copy()
    copy.flat[3] = np.nan
    return copy


@pytest.mark.parametrize("name", ["left", "left.grad"])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "right"}, "the tensor 'right' where 'left"),
        ({"data": lambda d: d[:, :-1]}, r"of shape \(10, 7\) where \(10, 8\) was due"),
        ({"data": lambda d: d.astype(np.float64)}, "as float64 where float32 was due"),
        ({"step": 3}, "a tensor of step 3 where step 2 was due"),
        ({"micro": 1}, "micro-batch 1 of"),
        ({"data": with_nan}, "with NaN or infinity in it"),
        ({"kind": "gift"}, "'gift' where 'tensor' was due"),
    ],
)
def test_a_tensor_that_is_not_due_ends_the_step_on_every_side_with_nothing_applied(
    parties: Any, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Any], why: str
) -> None:
    change = corrupted(name, changes)
    send = Link.send
    monkeypatch.setattr(Link, "send", lambda link, message: send(link, change(link, message)))
    apart = parties()
    job = job_of("bottoms", "checkpoint.every_steps=1")
    apart.lead(job)
    apart.follow(job, "bank")
    apart.follow(job, "shop")
    ends = apart.end()
    culprit, victim = ("bank", "lead") if name == "left" else ("lead", "bank")
    for party, end in ends.items():
        assert isinstance(end, ExchangeError), (party, end)
        assert "\n" not in str(end)
        run = apart.machines[party]._last[1]  # type: ignore[index]
        assert run.done == 1
        now = {key: value.clone() for key, value in run.party.state().items()}
        run.load(1)
        for key, value in run.party.state().items():
            assert torch.equal(now[key], value), (party, key)
    assert re.match(f"{culprit} sent .*{why}", str(ends[victim]))
    assert re.match(f"{victim} ended the step: {culprit} sent .*{why}", str(ends[culprit]))


def test_a_follower_with_another_job_is_refused_and_the_right_one_may_still_come(
    parties: Any, tmp_path: Path
) -> None:
    apart = parties()
    job = job_of()
    apart.lead(job)
    apart.follow(job, "shop")
    apart.follow(job_of("bottoms", "batch_size=5"), "bank")
    wait_for(lambda: "bank" in apart.ends)
    reason = "the job of bank differs: batch_size = 5, but lead has 10"
    assert says(apart.ends["bank"], PeerRefused) == f"lead refuses: {reason}"
    assert apart.said["lead"] == [f"refused: {reason}"]
    assert not (apart.folder / "bank" / "job.yaml").exists(), "its folder can be used again"
    apart.stack.close()
    apart = parties("again")
    apart.lead(job)
    apart.follow(job_of("bottoms", "batch_size=5"), "bank")
    wait_for(lambda: "bank" in apart.ends)
    apart.folder = tmp_path / "other"
    apart.follow(job, "bank")
    apart.follow(job, "shop")
    assert apart.sessions()["lead"].run.done == 10


def test_a_follower_with_another_model_is_refused(
    parties: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is the same, but its function builds another shape."""
    apart = parties()
    job = job_of()
    apart.lead(job, patience_s=3)
    monkeypatch.setattr("vertical_apart.WIDTH", 9)
    apart.follow(job, "bank")
    ends = apart.end()
    reason = "the model of bank differs: left.output = [9], but lead has [8]"
    assert says(ends["bank"], PeerRefused) == f"lead refuses: {reason}"
    assert apart.said["lead"] == [f"refused: {reason}"]
    assert says(ends["lead"], LinkLost).startswith("bank was away for 3 seconds")


def test_a_follower_that_never_comes(parties: Any) -> None:
    apart = parties()
    job = job_of()
    apart.lead(job, patience_s=3)
    apart.follow(job, "bank")
    ends = apart.end()
    assert says(ends["lead"], LinkLost) == "shop did not come for 3 seconds"
    assert says(ends["bank"], LinkLost) == "lead has ended: it has lost another party"


def test_what_fails_on_one_side_is_told_to_the_others_in_one_sentence(parties: Any) -> None:
    apart = parties()
    job = job_of()

    def interrupt(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    apart.lead(job)
    apart.follow(job, "bank", progress=interrupt)
    apart.follow(job, "shop")
    ends = apart.end()
    assert isinstance(ends["bank"], KeyboardInterrupt)
    assert says(ends["lead"], LinkLost) == "bank has ended: it was interrupted"
    assert says(ends["shop"], LinkLost) == "lead has ended: it has lost another party"
    notes = {party: end.__notes__ for party, end in ends.items()}  # type: ignore[union-attr]
    assert "--resume" in notes["bank"][0]
    assert str(apart.folder / "lead") in notes["lead"][0]
    apart = parties()
    for name in ("bank", "shop"):
        with pytest.raises(RunFolderError, match="is in use"):
            apart.follow(job, name, port=1)


@pytest.mark.parametrize("protected", [False, True])
def test_held_out_examples_are_looked_at_over_the_link(
    parties: Any, tmp_path: Path, protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    privacy = ("privacy.embedding_dp.eps=1000",) if protected else ()
    job = job_of("bottoms", *privacy)
    together = train(job, tmp_path / "together")
    apart = parties()
    apart.lead(job)
    for name in ("bank", "shop"):
        apart.follow(job, name)
    apart.sessions()
    apart.stack.close()
    monkeypatch.setattr(intersection, "Blinding", None)  # the saved examples are used
    results = {}
    for purpose in ("evaluate", "predict"):
        apart = parties()
        apart.lead(job, purpose)
        for name in ("bank", "shop"):
            apart.follow(job, name, looks=True)
        sessions = apart.sessions()
        results[purpose] = sessions["lead"].result
        if protected:
            spent = {figure.what for figure in sessions["bank"].figures}
            sent = 2 + 1 + (purpose == "predict")  # evaluations after two epochs, and this one
            assert f"an example's own reports in the run, sent {sent} times" in spent
            own = apart.folder / "bank" / "bank"
            rows = csv.DictReader((own / "sent.csv").open(newline=""))
            assert {row["times"] for row in rows if row["subset"] == "test"} == {str(sent)}
            last = json.loads((own / "accounts.jsonl").read_text().splitlines()[-1])
            assert last["epsilon"] == sessions["bank"].figures[-1].epsilon
        apart.stack.close()
    looks = [record for record in together.metrics if "look" in record]
    assert results["evaluate"]["accuracy"] == looks[-1]["test_accuracy"]
    assert results["predict"].shape == (20, 3)
    right = results["predict"].argmax(1) == together_labels()
    assert right.mean() == pytest.approx(looks[-1]["test_accuracy"])


def test_a_leader_that_evaluates_an_older_step_deletes_nothing_at_its_followers(
    parties: Any,
) -> None:
    """The leader's folder was restored from a copy, or it lies about the steps that it has."""
    job = job_of("bottoms", "privacy.embedding_dp.eps=1000")

    def evaluated(*, step: int) -> tuple[Parties, dict[str, int]]:
        apart = parties()
        apart.lead(job, "train" if step == 0 else "evaluate")
        for name in ("bank", "shop"):
            apart.follow(job, name, looks=step > 0)
        sessions = apart.sessions()
        assert step in (0, sessions["bank"].run.done)
        apart.stack.close()
        rows = csv.DictReader((apart.folder / "bank" / "bank" / "sent.csv").open(newline=""))
        return apart, {row["subset"]: int(row["times"]) for row in rows}

    apart, sent = evaluated(step=0)
    assert sent == {"train": 2, "test": 2}
    last, own = apart.folder / "lead" / "lead" / "checkpoint" / "000000010", apart.folder / "bank"
    moved = last.rename(apart.folder / "copy")
    kept = [own / "bank" / name for name in ("checkpoint/000000010", "metrics.jsonl")]
    before = [path.read_bytes() for path in kept]
    _, sent = evaluated(step=8)
    assert sent == {"train": 2, "test": 3}
    assert [path.read_bytes() for path in kept] == before
    moved.rename(last)
    apart, sent = evaluated(step=10)
    assert sent == {"train": 2, "test": 4}
    assert not any("unfinished" in sentence for sentence in apart.said["bank"])


@pytest.mark.parametrize("limited", ["bank", "lead and bank"])
def test_one_partys_limit_ends_the_run_in_good_order_everywhere(parties: Any, limited: str) -> None:
    """Two epochs and one evaluation cost more than bank allows; shop has no limit."""
    free = job_of("bottoms", "privacy.embedding_dp.eps=0.3", "epochs=3", "batch_size=8")
    bound = VerticalJob(
        **{**free.model_dump(), "privacy": {**free.model_dump()["privacy"], "max_epsilon": 1.3}}
    )
    apart = parties()
    apart.lead(bound if "lead" in limited else free)
    apart.follow(bound, "bank")
    apart.follow(free, "shop")
    sessions = apart.sessions()
    steps = {session.run.done for session in sessions.values()}
    assert len(steps) == 1
    assert 0 < steps.pop() < 21
    assert sessions["bank"].figures[-1].epsilon <= 1.3
    for name in ("lead", "bank", "shop"):
        folder = apart.folder / name / name
        assert (folder / "model.safetensors").exists()
        events = (folder / "events.log").read_text()
        assert "privacy.max_epsilon is reached" in events
        assert "would bring" not in events, "other parties may be given the log"
        assert apart.machines[name].has_finished


def test_a_run_that_has_not_ended_is_looked_at_with_a_word_and_never_before_its_first_step(
    parties: Any,
) -> None:
    job = job_of()

    def ended(purpose: str) -> tuple[Any, dict[str, Any]]:
        apart = parties()
        apart.lead(job, purpose)
        for name in ("bank", "shop"):
            apart.follow(job, name, looks=purpose != "train")
        ends = apart.end()
        apart.stack.close()
        return apart, ends

    apart, _ = ended("train")
    (apart.folder / "bank" / "bank" / "checkpoint" / "000000010").unlink()
    apart, _ = ended("evaluate")
    for name in ("lead", "bank", "shop"):
        step = "the run is unfinished: using the state after step 8 of 10"
        assert any(step in sentence for sentence in apart.said[name]) == (name != "bank")
        saved = apart.folder / name / name / "checkpoint"
        (saved / "000000008").rename(saved / "000000000")
    _, ends = ended("evaluate")
    untrained = "has no trained model: all parties have saved no training step"
    assert untrained in says(ends["lead"], RunFolderError)


def test_a_follower_that_serves_stops_at_its_limit(parties: Any) -> None:
    job = job_of("bottoms", "privacy.embedding_dp.eps=0.3", "privacy.max_epsilon=3.5")
    apart = parties()
    apart.lead(job)
    for name in ("bank", "shop"):
        apart.follow(job, name)
    apart.sessions()
    apart.stack.close()
    served = []
    for _ in range(5):
        apart = parties()
        apart.lead(job, "evaluate")
        for name in ("bank", "shop"):
            apart.follow(job, name, looks=True)
        ends = apart.end()
        apart.stack.close()
        if isinstance(ends["bank"], LimitReached):
            break
        served.append(ends["bank"].figures[-1].epsilon)
        accounts = (apart.folder / "bank" / "bank" / "accounts.jsonl").read_text().splitlines()
        assert json.loads(accounts[-1])["epsilon"] == served[-1]
    assert served == pytest.approx([2.8854, 3.4419], abs=1e-4)  # 24 and 32 bits of 0.15
    assert "held-out examples would bring an example of bank" in says(ends["bank"], LimitReached)
    ended = says(ends["lead"], LinkLost)
    assert re.fullmatch("(bank|shop) has ended: its own privacy.max_epsilon is reached", ended)


def together_labels() -> Any:
    from vertical_parts import Bottoms

    return Bottoms().whole("test")[1].numpy()


def test_a_follower_says_what_it_is_here_for(parties: Any) -> None:
    apart = parties()
    job = job_of()
    apart.lead(job)
    apart.follow(job, "shop")
    apart.follow(job, "bank", looks=True)
    ends = apart.end()
    assert says(ends["bank"], ExchangeError) == "bank was started to serve, but lead to train"
    assert says(ends["lead"], LinkLost) == (
        "bank has ended: bank was started to serve, but lead to train"
    )


def test_a_follower_that_refuses_its_leader_logs_why(
    parties: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader sends no ids, and claims all of its followers' training examples."""
    honest = handshake.lead

    def claim(message: Any) -> dict[str, Any]:
        rows = {"rows_train": np.arange(50), "rows_test": np.arange(20)}
        return {"kind": "agreed", "step": 0, "examples": bytes(16), **rows}

    def lying(*given: Any, **more: Any) -> Any:
        return lying_side(honest(*given, **more), {"blinded": claim})

    folder = parties().folder
    for lies in (False, True):
        if lies:
            monkeypatch.setattr(handshake, "lead", lying)
            (folder / "lead" / "lead" / "examples").unlink(missing_ok=True)
        apart = parties()
        apart.lead(job_of())
        for name in ("bank", "shop"):
            apart.follow(job_of(), name)
        ends = apart.end()
        apart.stack.close()
    path = folder / "bank" / "bank" / "events.log"
    refusal = says(ends["bank"], ExchangeError)
    assert refusal.startswith("lead broke the handshake: ")
    lines = path.read_text().splitlines()
    assert lines[-1].endswith(f"the session ended: {refusal}")
    assert any("train from step 0" in line for line in lines)
    assert faults(path) == []


def test_which_follower_this_is(certificates: Path) -> None:
    from vertical_parts import Bottoms, UShape

    two, one = Bottoms(), UShape()
    assert follower_of(one, None, None) == "bank"
    assert follower_of(two, "shop", None) == "shop"
    assert follower_of(two, None, certificates / "shop") == "shop"
    for named, tls in ((None, None), (None, certificates), ("lead", None)):
        with pytest.raises(InvalidValue, match="--party"):
            follower_of(two, named, tls)


def test_a_machine_keeps_to_its_examples_and_draws_from_the_operating_system(
    tmp_path: Path,
) -> None:
    rows = {"train": np.arange(40), "test": np.arange(10)}
    found = FoundExamples(bytes(16), rows)
    agreed = Agreement(bytes(16), "train", step=0, order_seed=0, examples=found, notes=())
    with ExitStack() as stack:
        job = job_of("bottoms", "privacy.randomness=seeded")
        machine = Machine.new(job, lambda task: "bank", tmp_path / "run", "command", stack)
        run = machine._run_for(agreed, None)
        assert isinstance(run.setting.entropy, Secure)
        assert machine._run_for(replace(agreed, purpose="evaluate"), None) is run
        others = {**rows, "train": rows["train"][::-1].copy()}
        with pytest.raises(RunFolderError, match="are not those with which this run began"):
            machine._run_for(replace(agreed, examples=FoundExamples(bytes(16), others)), None)


@pytest.mark.parametrize("party", ["bank", "lead"])
@pytest.mark.parametrize("saved", ["examples", "lost", "of other ids"])
def test_a_resumed_run_refuses_other_examples_and_changes_no_file(
    party: str, saved: str, tmp_path: Path
) -> None:
    """A leader that lies, or a follower that says it has lost its examples, begins anew."""
    rows = {"train": np.arange(3, 27), "test": np.arange(1, 8)}
    others = {"train": rows["train"][::-1].copy(), "test": rows["test"]}
    first, other = FoundExamples(bytes(16), rows), FoundExamples(bytes([7] * 16), others)
    agreed = Agreement(bytes([9] * 16), "train", step=0, order_seed=5, examples=first, notes=())
    folder, job = tmp_path / "run", job_of("bottoms", "alignment.least_common=4")

    def leaves(run: Any) -> Any:
        raise ExchangeError("it has gone away")

    with ExitStack() as stack:
        machine = Machine.new(job, lambda task: party, folder, "command", stack)
        with pytest.raises(ExchangeError, match="gone away"):
            machine.play(agreed, {}, own=leaves)
        ids = machine._ids
    kept = folder / party / "examples"
    if saved == "lost":
        kept.unlink()
    elif saved == "of other ids":
        kept.write_bytes(first.to_bytes({name: each + 1 for name, each in ids.items()}))
    before = files_in(folder)
    with ExitStack() as stack:
        machine = Machine.reopened(folder, lambda task: party, stack)
        with pytest.raises(RunFolderError, match="made with other data"):
            machine.play(replace(agreed, examples=other), {}, own=leaves)
    assert files_in(folder) == before
    with ExitStack() as stack:  # the honest leader can still resume the run
        machine = Machine.reopened(folder, lambda task: party, stack)
        with pytest.raises(ExchangeError, match="gone away"):
            machine.play(agreed, {}, own=leaves)
    again = FoundExamples.from_bytes(kept.read_bytes(), ids)
    assert again is not None
    assert again.positions["train"].tolist() == rows["train"].tolist()


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of every file except logs, which say when a process began."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("events")
    }


def test_the_folder_of_a_run_in_one_process_is_not_a_partys(parties: Any, tmp_path: Path) -> None:
    job = job_of()
    train(job, tmp_path / "apart" / "bank")
    with pytest.raises(RunFolderError, match=r"all parties in one process: .*vertical run"):
        parties().follow(job, "bank", port=1)
    assert not (tmp_path / "apart" / "bank" / "own-seed").exists()


@pytest.mark.parametrize("use", [evaluate, resume])
def test_a_partys_folder_is_not_used_in_one_process(
    use: Callable[[Path], object], tmp_path: Path
) -> None:
    """Otherwise the leader would forget its steps, and the others would be untrained."""
    rows = {"train": np.arange(50), "test": np.arange(20)}
    found = FoundExamples(bytes(16), rows)
    agreed = Agreement(bytes(16), "train", step=0, order_seed=0, examples=found, notes=())
    path = tmp_path / "run"
    with ExitStack() as stack:
        machine = Machine.new(job_of(), lambda task: "lead", path, "command", stack)
        machine._run_for(agreed, None)
    with pytest.raises(RunFolderError, match=r"several machines.* --resume .*run`.* --listen"):
        use(path)
    assert not (path / "bank").exists()


def test_a_folder_without_the_party(parties: Any, tmp_path: Path) -> None:
    job = job_of("u_shape")
    train(job, tmp_path / "apart" / "shop")
    with pytest.raises(RunFolderError, match="has no folder of the party shop"):
        parties().follow(job, "shop", port=1)


# --- initial weights


def first_reports(apart: Parties, job: VerticalJob) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bank's rows, and its bottom's outputs for them before any training."""
    folder = apart.machines["bank"].folder
    assert folder is not None
    state = Checkpoint.read(folder, 0).tensors
    bottom = module_of(make_split(job, make_task(job)).by_name["left"])
    bottom.load_state_dict({name: state[f"left/{name}"] for name in bottom.state_dict()})
    rows = make_task(job).owned("bank", "train").columns["x"]
    return rows, bottom(rows).detach()


@pytest.mark.parametrize("shares", [True, False])
def test_who_has_the_job_cannot_rebuild_a_followers_bottom(parties: Any, shares: bool) -> None:
    """The attacker draws the weights from the job's seed and inverts the outputs."""
    job = job_of("bottoms", "epochs=1", "checkpoint.every_steps=100")
    apart = parties()
    apart.shares_seed = shares
    apart.lead(job)
    for name in ("bank", "shop"):
        apart.follow(job, name)
    apart.sessions()
    rows, sent = first_reports(apart, job)
    rebuilt = module_of(make_split(job, make_task(job)).by_name["left"])
    assert bool(torch.allclose(rebuilt(rows), sent)) == shares
    guessed = invert(rebuilt, Evidence.of(sent[None], None), Gaussian.standard((3,)), steps=200)
    read = float(torch.corrcoef(torch.stack([guessed.flatten(), rows.flatten()]))[0, 1])
    assert (read > 0.95) == shares


def test_two_runs_of_a_job_begin_with_other_weights(parties: Any) -> None:
    job, found = job_of("bottoms", "epochs=1"), []
    for name in ("one", "other"):
        apart = parties(name)
        apart.shares_seed = False
        apart.lead(job)
        for follower in ("bank", "shop"):
            apart.follow(job, follower)
        apart.sessions()
        found.append([weights(apart.folder / party, party) for party in ("lead", "bank", "shop")])
    assert all(one != other for one, other in zip(*found, strict=True))


def test_the_leader_names_a_run_once() -> None:
    for party, run, long in (("lead", b"", 16), ("lead", b"earlier", 7), ("bank", b"", 0)):
        machine: Any = SimpleNamespace(party=party, task=SimpleNamespace(leader="lead"), _run=run)
        Machine._name_run(machine)
        assert len(machine._run) == long


def test_a_folder_without_its_seed_is_refused(parties: Any) -> None:
    job = job_of("bottoms", "epochs=1")
    apart = parties()
    apart.shares_seed = False
    apart.lead(job)
    for name in ("bank", "shop"):
        apart.follow(job, name)
    apart.sessions()
    for party in ("bank", "shop"):
        apart._stacks[party].close()
    (apart.folder / "shop" / "own-seed").write_bytes(b"short")
    with ExitStack() as stack, pytest.raises(RunFolderError, match=r"own-seed is damaged"):
        Machine.reopened(apart.folder / "shop", lambda task: "shop", stack)
    (apart.folder / "bank" / "own-seed").unlink()
    with ExitStack() as stack, pytest.raises(RunFolderError, match=r"own-seed is missing"):
        Machine.reopened(apart.folder / "bank", lambda task: "bank", stack)


def test_a_tensor_that_no_message_carries_is_refused_before_a_party_is_met(tmp_path: Path) -> None:
    """The shapes alone decide: 40 examples, in two micro-batches, with too many values each."""
    wide = 30_000_000
    parts = SplitModel(
        [
            Part("left", "bank", ("data.x",), (wide,), optimizer=Optimizer("sgd")),
            Part("top", "lead", ("left",), (2,), nn.Identity(), optimizer=Optimizer("sgd")),
        ],
        leader="lead",
    )
    check_sizes(parts, 10)
    sentence = "the output of part left for 20 examples .* is a message of 2,400,000,000 bytes"
    with pytest.raises(MessageTooLong, match=sentence):
        check_sizes(parts, 20)


def test_a_party_knows_before_it_writes_that_its_tensors_are_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "MOST_CARRIED", 100)
    with ExitStack() as stack, pytest.raises(MessageTooLong, match="part left"):
        Machine.new(job_of(), lambda task: "bank", tmp_path / "run", "command", stack)
    assert not (tmp_path / "run").exists()
