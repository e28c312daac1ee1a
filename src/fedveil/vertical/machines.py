"""One party of a vertical run on a machine of its own, linked to the others.

The leader listens and each follower dials it. They agree on the job, the examples and the step
(`handshake`), go back to that step and play the same exchanges as in one process. Whenever a
party turns out to be a new process they agree anew, so that a run in which any of them was killed
ends with the weights of one in which none was. When all have written their files, all hear that
all have.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from fedveil._version import __version__
from fedveil.entropy import Secure
from fedveil.errors import (
    ExchangeError,
    FedveilError,
    InvalidValue,
    LinkLost,
    PeerRestarted,
    RunFolderError,
)
from fedveil.message import Message, Value
from fedveil.runtime.own_code import import_roots, make_importable
from fedveil.runtime.run_folder import IMPORTS, JOB, RunFolder
from fedveil.vertical import generation, handshake
from fedveil.vertical.assembly import (
    check_device,
    make_split,
    make_task,
    own_functions,
    threads,
)
from fedveil.vertical.channel import Channel, Exchange, Receive, Send, drive
from fedveil.vertical.checkpoint import held
from fedveil.vertical.dialer import Dialer
from fedveil.vertical.handshake import SUBSETS, TRAIN, Agreement, Standing, Unfit
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.ledger import Figure
from fedveil.vertical.link import Link
from fedveil.vertical.listener import Listener
from fedveil.vertical.party_run import PartyRun, Progress, Setting
from fedveil.vertical.rows import Rows
from fedveil.vertical.streams import Address
from fedveil.vertical.tasks import Task
from fedveil.vertical.tls import Credentials, named_in

LEADER = "fedveil vertical leader"
FOLLOWER = "fedveil vertical follower"

RUN = "run"
FINISHED = "finished"

#: What a session is for, and the exchange that every party plays in it.
PURPOSES: Mapping[str, Callable[[PartyRun], Exchange[Any]]] = {
    TRAIN: PartyRun.train,
    "evaluate": PartyRun.evaluate,
    "predict": PartyRun.predict,
    "generate": lambda run: generation.assist(run.party, run.setting.entropy),
}


@dataclass(frozen=True)
class Place:
    """Where a party meets the others, and how it speaks of what happens there.

    Without credentials the link is plaintext, which only loopback addresses take. A party that is
    away for more than `patience_s` seconds ends the session.
    """

    address: Address
    credentials: Credentials | None
    patience_s: float = 600.0
    report: Callable[[str], None] = print
    progress: Progress | None = None
    listening: Callable[[Address], None] = field(default=lambda address: None)


@dataclass(frozen=True)
class Session:
    """What a party has at the end of a session: the leader's result, and its own account."""

    folder: Path
    run: PartyRun
    result: Any
    figures: list[Figure]


class Machine:
    """A party with its task, its part of the model and its data; writes nothing before they agree.

    `here` picks the party from the task's leader and followers.
    """

    def __init__(
        self, job: VerticalJob, here: Callable[[Task], str], old: Path | None = None
    ) -> None:
        check_device(job.device)
        self._began = time.perf_counter()
        self.job = job
        self.task = make_task(job, old)
        self.party = here(self.task)
        self.split = make_split(job, self.task, here={self.party})
        self._owned = {subset: self.task.owned(self.party, subset) for subset in SUBSETS}
        self._last: tuple[Agreement, PartyRun] | None = None
        self._run = b""
        self.folder: RunFolder | None = None

    @classmethod
    def new(
        cls,
        job: VerticalJob,
        here: Callable[[Task], str],
        out: Path | None,
        command: str,
        stack: ExitStack,
    ) -> Machine:
        """A party at the beginning of a run, with a new folder."""
        stack.enter_context(threads(job.threads))
        machine = cls(job, here)
        machine._keep(RunFolder.create(out, job.name, command), stack)
        if machine.party == machine.task.leader:
            machine._run = Secure().token(handshake.RUN_BYTES)
        return machine

    @classmethod
    def reopened(cls, path: Path, here: Callable[[Task], str], stack: ExitStack) -> Machine:
        """A party that goes on with the run in its folder."""
        folder = RunFolder.reopen(path)
        make_importable(folder.read_lines(IMPORTS))
        job = VerticalJob.load(path / JOB)
        stack.enter_context(threads(job.threads))
        machine = cls(job, here, path)
        if not (path / machine.party).is_dir():
            raise RunFolderError(f"{path} holds no party {machine.party}")
        machine._keep(folder, stack)
        machine._write()
        return machine

    def standing(self) -> Standing:
        """What this party brings to an agreement."""
        return Standing(
            party=self.party,
            job=self.job.agreed(),
            parts=handshake.described(self.split),
            ids={subset: columns.ids for subset, columns in self._owned.items()},
            steps=(self.folder is not None and tuple(held(self.folder))) or (0,),
            run=self._run,
        )

    @property
    def has_finished(self) -> bool:
        """Whether all parties have said that their files are written."""
        return self.folder is not None and (self.folder.path / FINISHED).exists()

    def play(
        self,
        agreement: Agreement,
        channels: Mapping[str, Channel],
        progress: Progress | None = None,
        own: Callable[[PartyRun], Exchange[Any]] | None = None,
    ) -> Session:
        """Go back to the step that was agreed on, and do what the session is for.

        `own` is this party's side of it, where that is another than the purpose's.
        """
        if agreement.purpose not in PURPOSES:
            raise ExchangeError(
                f"the leader asks for {agreement.purpose!r}, which is not known here"
            )
        run = self._run_for(agreement, progress)
        run.restore(agreement.step)
        self._introduce(run, agreement)
        result = drive((own or PURPOSES[agreement.purpose])(run), channels)
        drive(self._farewell(run, channels), channels)
        if agreement.purpose == TRAIN and self.folder is not None:
            self.folder.write_atomically(FINISHED, b"")
        return Session(self.root.path, run, result, run.figures())

    def _keep(self, root: RunFolder, stack: ExitStack) -> None:
        self.root = root
        stack.callback(root.close)
        stack.callback(self._close)

    def _write(self) -> None:
        """What the folder holds of a run from its first agreement on; a refused party has none."""
        self.root.write_atomically(JOB, self.job.to_yaml().encode())
        roots = import_roots(own_functions(self.job))
        self.root.write_atomically(IMPORTS, "".join(f"{path}\n" for path in roots).encode())
        for name, data in getattr(self.task, "files", lambda party: {})(self.party).items():
            self.root.write_atomically(name, data)
        self.folder = self.root.within(self.party)
        named = self.folder.path / RUN
        if named.exists():
            self._run = named.read_bytes()

    def _close(self) -> None:
        if self._last is not None:
            self._last[1].close()

    def _run_for(self, agreement: Agreement, progress: Progress | None) -> PartyRun:
        """The party's run: one for the process, whatever becomes of the others."""
        if self._last is not None:
            before, run = self._last
            if not agreement.same_examples(before):
                raise RunFolderError(
                    "the examples that all parties hold are others than when this run began"
                )
            return run
        if self.folder is None:
            self._write()
        assert self.folder is not None
        self._run = agreement.run
        self.folder.write_atomically(RUN, self._run)
        setting = Setting(
            job=self.job,
            task=self.task,
            split=self.split,
            party=self.party,
            rows={
                subset: Rows.aligned(
                    columns, self.split.columns(self.party), agreement.positions[subset]
                )
                for subset, columns in self._owned.items()
            },
            entropy=Secure(),
            order_seed=agreement.order_seed,
            folder=self.folder,
        )
        run = PartyRun(setting, progress)
        self._last = agreement, run
        return run

    def _introduce(self, run: PartyRun, agreement: Agreement) -> None:
        seconds = time.perf_counter() - self._began
        what = f"{agreement.purpose} from step {agreement.step} of run {agreement.run.hex()}"
        run.event(
            f"{what}: fedveil {__version__}, Python {platform.python_version()}, "
            f"{platform.machine()}; ready after {seconds:.1f} s"
        )
        for note in agreement.notes:
            run.event(note)

    def _farewell(self, run: PartyRun, channels: Mapping[str, Channel]) -> Exchange[None]:
        """Nobody leaves before all have their files: a party that was killed needs the others."""
        done: dict[str, Value] = {"kind": "done", "step": run.done}
        if self.party == self.task.leader:
            for follower in channels:
                _check(follower, (yield Receive(follower)), done)
            for follower in channels:
                yield Send(follower, {"kind": "farewell"})
        else:
            yield Send(self.task.leader, done)
            _check(self.task.leader, (yield Receive(self.task.leader)), {"kind": "farewell"})


def _check(peer: str, message: Message | None, due: Message) -> None:
    if message != due:
        found = message.get("kind") if message is not None else None
        raise ExchangeError(f"{peer} sent {found!r} where {due['kind']!r} was due")


def leader_of(task: Task) -> str:
    """The leader's name."""
    return task.leader


def follower_of(task: Task, named: str | None, tls: Path | None) -> str:
    """Which follower this is: the one that is named, the only one, or the certificate's."""
    choices = ", ".join(task.followers)
    if named is not None:
        if named not in task.followers:
            raise InvalidValue(f"--party {named!r} is not a follower of the job: {choices}")
        return named
    if len(task.followers) == 1:
        return task.followers[0]
    certified = None if tls is None else named_in(tls)
    if certified in task.followers:
        return certified
    raise InvalidValue(f"--party is missing: the followers of the job are {choices}")


# --- the leader


def lead(
    machine: Machine,
    place: Place,
    purpose: str = TRAIN,
    own: Callable[[PartyRun], Exchange[Any]] | None = None,
) -> Session:
    """The leader's side of a session, from its first listening to its end.

    `own` is as in `Machine.play`.
    """
    followers = machine.split.followers
    links = {name: Link(name, patience_s=place.patience_s) for name in followers}
    with (
        _how_to_resume(machine, purpose, LEADER),
        Listener(place.address, links, machine.party, place.credentials, place.report) as listener,
        _closing(links.values()),
    ):
        place.listening(listener.address)
        attempt = 0
        while True:
            attempt += 1
            for link in links.values():
                link.begin()
            try:
                agreement = drive(
                    handshake.lead(
                        machine.standing(),
                        followers,
                        attempt=attempt,
                        purpose=purpose,
                        order_seed=machine.job.seed,
                    ),
                    links,
                )
                _tell(place, agreement)
                return _noting(links, machine.play(agreement, links, place.progress, own))
            except Unfit as unfit:
                place.report(f"refused: {unfit}")
                links[unfit.follower].refuse(str(unfit))
                links[unfit.follower].await_another()
            except PeerRestarted as restart:
                place.report(f"{restart}: back to the last step that all hold")


# --- a follower


class _StartOver(PeerRestarted):
    """The leader begins a new attempt; `begin` is its message."""

    def __init__(self, begin: Message) -> None:
        self.begin = begin
        super().__init__("the leader starts over")


class _Attentive:
    """The channel to the leader of a follower that notices when another attempt begins."""

    def __init__(self, link: Link) -> None:
        self.peer = link.peer
        self.send = link.send
        self.close = link.close
        self._link = link

    def receive(self) -> dict[str, Value]:
        """The leader's next message; raises _StartOver where it begins anew."""
        message = self._link.receive()
        if message.get("kind") == "begin":
            raise _StartOver(message)
        return message


def serve(machine: Machine, place: Place) -> NoReturn:
    """Take part in whatever the leader does with the trained model, one session after another."""
    while True:
        try:
            follow(machine, replace(place, patience_s=math.inf), looks=True)
        except (LinkLost, ExchangeError) as error:
            place.report(str(error))


def follow(machine: Machine, place: Place, *, looks: bool = False) -> Session:
    """A follower's side of a session: training, or with `looks` anything but training."""
    leader = machine.split.leader
    link = Link(leader, patience_s=place.patience_s)
    with (
        _how_to_resume(machine, "" if looks else TRAIN, FOLLOWER),
        Dialer(place.address, link, machine.party, place.credentials),
        _closing([link]),
    ):
        begin: Message | None = None
        while True:
            link.begin()
            try:
                agreement = drive(
                    handshake.follow(machine.standing(), leader, begin), {leader: link}
                )
                if looks == (agreement.purpose == TRAIN):
                    here = "serve" if looks else TRAIN
                    raise ExchangeError(
                        f"{machine.party} is here to {here}, and {leader} to {agreement.purpose}"
                    )
                _tell(place, agreement)
                attentive = {leader: _Attentive(link)}
                return _noting({leader: link}, machine.play(agreement, attentive, place.progress))
            except _StartOver as again:
                begin = again.begin
                place.report(f"{again}: back to the last step that all hold")
            except PeerRestarted as restart:
                begin = None
                place.report(f"{restart}: back to the last step that all hold")


def _noting(links: Mapping[str, Link], session: Session) -> Session:
    """Write down what became of the links."""
    for peer, link in links.items():
        if link.reconnections:
            session.run.event(
                f"the link to {peer} was opened again {link.reconnections} times, after "
                f"{link.away_s:.1f} s in all"
            )
    return session


def _tell(place: Place, agreement: Agreement) -> None:
    for note in agreement.notes:
        place.report(note)
    if agreement.step:
        place.report(f"{agreement.purpose} from step {agreement.step}")


@contextmanager
def _how_to_resume(machine: Machine, purpose: str, command: str) -> Iterator[None]:
    try:
        yield
    except (FedveilError, KeyboardInterrupt) as end:
        if machine.folder is not None and purpose == TRAIN:
            end.add_note(
                f"`{command} --resume {machine.root.path}` goes on from the last step that all hold"
            )
        raise


@contextmanager
def _closing(links: Iterable[Link]) -> Iterator[None]:
    """Close the links at the end, telling the peers what kind of end it is."""
    reason = ""
    try:
        yield
    except ExchangeError as error:
        reason = error.told
        raise
    except KeyboardInterrupt:
        reason = "it was interrupted"
        raise
    except FedveilError:
        reason = "it met an error of its own"
        raise
    except BaseException:
        reason = "it failed"
        raise
    finally:
        for link in links:
            link.close(reason)
