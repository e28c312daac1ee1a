"""One party on its own machine: its task, data and run folder, and its agreements with peers."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from fedveil.base.message import Message, Value, only_fields, quoted, take
from fedveil.base.untrusted import MOST_KEY_BYTES, MOST_STATE_BYTES, read_bytes
from fedveil.entropy import Secure
from fedveil.errors import ExchangeError, FedveilError, InvalidValue, MessageInvalid, RunFolderError
from fedveil.learning.device import check_device
from fedveil.link.channel import Channel, Exchange, Send, drive
from fedveil.link.tls import Credentials, named_in
from fedveil.privacy.ledger import Line
from fedveil.record.event_log import anchor, append_event, seal
from fedveil.record.lifecycle import log_start
from fedveil.record.run_folder import CHECKPOINT, EVENTS, RunFolder
from fedveil.record.saved_job import reopen
from fedveil.record.sealed_message import intact
from fedveil.vertical.crossing import check_sizes
from fedveil.vertical.job import VerticalJob, job_of_run
from fedveil.vertical.job_split import keep_run, make_split, make_task, threads
from fedveil.vertical.part_memory import check_memory
from fedveil.vertical.party_log import Progress
from fedveil.vertical.party_parts import Setting
from fedveil.vertical.party_run import OWN_SEED, PartyRun, begin
from fedveil.vertical.remote import bundle_agreement, handshake
from fedveil.vertical.remote.brought_ids import keep_brought, read_brought
from fedveil.vertical.remote.bundle_agreement import last_message
from fedveil.vertical.remote.found_examples import FoundExamples
from fedveil.vertical.remote.handshake import TRAIN
from fedveil.vertical.remote.handshake_state import Agreement, Standing
from fedveil.vertical.remote.own_seed import SEED_BYTES, kept_seed
from fedveil.vertical.rows import Ids, Rows
from fedveil.vertical.schedule import micro_sizes
from fedveil.vertical.step_checkpoint import saved_steps
from fedveil.vertical.task import (
    SUBSETS,
    Subset,
    Task,
    aligned_by,
    assists_of,
    id_hint_of,
    notes_of,
)  # fmt: skip

RUN = "run"
EXAMPLES = "examples"
#: The default of `alignment.most_ids` is this multiple of the number of own ids.
_MULTIPLE = 4
FINISHED = "finished"

#: The exchange that every party runs, by the purpose of a session. Every task has these purposes.
PURPOSES: Mapping[str, Callable[[PartyRun], Exchange[Any]]] = {
    TRAIN: PartyRun.train,
    "evaluate": PartyRun.evaluate,
    "predict": PartyRun.predict,
}


@dataclass(frozen=True)
class Session:
    folder: Path
    run: PartyRun
    result: Any
    figures: list[Line]


class Machine:
    """A party with its task, its part of the model and its data.

    The function `here` returns this party's name in the task. `old` is the folder of a resumed run.
    The party's initial weights come from a secret seed, so nobody can compute them from the job.
    Pass `own_seed` only for simulation. `stack` closes the run's files.
    """

    root: RunFolder

    def __init__(
        self,
        job: VerticalJob,
        here: Callable[[Task], str],
        stack: ExitStack,
        old: Path | None = None,
        own_seed: int | None = None,
    ) -> None:
        check_device("device", job.device)
        self._began = time.perf_counter()
        self._stack = stack
        stack.enter_context(threads(job.threads))
        self.job = job
        if own_seed is None and old is not None:
            own_seed = kept_seed(old / OWN_SEED)
        self._own_seed = drawn_seed() if own_seed is None else own_seed
        self.task = make_task(job, old, self._own_seed)
        self.party = here(self.task)
        check_memory(job, self.task, {self.party})
        self.split = make_split(job, self.task, {self.party}, self._own_seed)
        self._owned = {subset: self.task.owned(self.party, subset) for subset in SUBSETS}
        most = max(len(columns.ids) for columns in self._owned.values()) or job.batch_size
        check_sizes(self.split, max(micro_sizes(min(job.batch_size, most), job.in_flight)))
        self._last: tuple[Agreement, PartyRun] | None = None
        self._run = b""
        self._examples: FoundExamples | None = None
        self._brought: dict[str, int] = {}
        self.folder: RunFolder | None = None

    @classmethod
    def new(
        cls,
        job: VerticalJob,
        here: Callable[[Task], str],
        out: Path | None,
        command: str,
        stack: ExitStack,
        own_seed: int | None = None,
    ) -> Machine:
        machine = cls(job, here, stack, own_seed=own_seed)
        machine.root = RunFolder.create(out, job.name, command)
        stack.callback(machine.root.close)
        machine._name_run()
        return machine

    @classmethod
    def reopened(cls, path: Path, here: Callable[[Task], str], stack: ExitStack) -> Machine:
        root, job = reopen(path, job_of_run, stack)
        machine = cls(job, here, stack, path)
        machine.root = root
        if not (path / machine.party).is_dir():
            raise RunFolderError(f"{path} has no folder of the party {machine.party}")
        machine._brought = read_brought(path)
        own = path / machine.party
        if (own / RUN).exists():
            if any((own / CHECKPOINT).glob("*")) and not (path / OWN_SEED).exists():
                raise RunFolderError(
                    f"{path / OWN_SEED} is missing: this party's randomness is drawn from it"
                )
        elif saved_steps(root.within(machine.party)):
            raise RunFolderError(
                f"{path} contains a run of all parties in one process: resume it with "
                f"`fedveil vertical run --resume {quote(str(path))}`"
            )
        machine._write()
        machine._name_run()  # a process may be killed before it saves the run's identity
        return machine

    def standing(self) -> Standing:
        return Standing(
            party=self.party,
            job=self.job.agreed(),
            parts=handshake.described(self.split),
            ids=self._ids,
            steps=(self.folder is not None and tuple(saved_steps(self.folder))) or (0,),
            run=self._run,
            align_by=aligned_by(self.job.alignment.by, self.task),
            most_ids=self.job.alignment.most_ids or _MULTIPLE * self._held_ids or sys.maxsize,
            examples=self._examples,
            brought=self._brought,
            keep_brought=self._keep_brought,
            least_common=self.job.alignment.least_common,
            id_hint=self._id_hint,
            order_secret=self._own_seed if self.job.privacy.protects_labels else None,
        )

    @cached_property
    def _id_hint(self) -> str:
        ids = np.concatenate([held for held in self._ids.values() if len(held)] or [np.empty(0)])
        return id_hint_of(self.task, {self.party: ids}) if len(ids) else ""

    @property
    def _held_ids(self) -> int:
        return sum(len(ids) for ids in self._ids.values())

    def _keep_brought(self) -> None:
        """Save the number of ids that each other party has sent. Call it before answering."""
        if self.folder is None:
            self._write()
        keep_brought(self.root, self._brought)

    @property
    def _ids(self) -> dict[Subset, Ids]:
        return {subset: columns.ids for subset, columns in self._owned.items()}

    @property
    def has_finished(self) -> bool:
        """True if all parties have confirmed that their files are written."""
        return self.folder is not None and (self.folder.path / FINISHED).exists()

    def play(
        self,
        agreement: Agreement,
        channels: Mapping[str, Channel],
        progress: Progress | None = None,
        own: Callable[[PartyRun], Exchange[Any]] | None = None,
        say: Callable[[str], None] | None = None,
        credentials: Credentials | None = None,
    ) -> Session:
        """Run one session with the other parties, such as training, until all have ended it.

        `agreement` has the session's purpose, and the step after which it starts. This party first
        loads its checkpoint of that step. `channels` has a channel to each other party. `progress`
        is called with each of the party's records, `say` with each sentence for its user. `own` is
        this party's side of the exchange of messages. None means the usual side for the purpose,
        such as `PartyRun.train`. `credentials` sign the model bundle after training. The returned
        `Session` has that side's result and this party's epsilons so far (`figures`).
        """
        side = own or self._side(agreement.purpose)
        run = self._run_for(agreement, progress, say)
        run.settle(to_train=agreement.purpose == TRAIN)
        what = f"{agreement.purpose} from step {agreement.step} of run {agreement.run.hex()}"
        log_start(run.log.event, what, self._began, ())
        for sentence in (*notes_of(self.task, self.party), *agreement.notes):
            run.log.note(sentence)
        try:
            if agreement.purpose != TRAIN and run.unfinished:
                run.log.say(run.unfinished)
            result = drive(side(run), channels)
        finally:
            if agreement.purpose != TRAIN:  # training itself writes it
                run.keep_account()
        if agreement.purpose == TRAIN and run.contents is not None:
            drive(bundle_agreement.agree(run, agreement.run, credentials), channels)
        drive(self._farewell(run, channels), channels)
        if agreement.purpose == TRAIN and self.folder is not None:
            self.folder.write_atomically(FINISHED, b"")
        return Session(self.root.path, run, result, run.figures())

    def _side(self, purpose: str) -> Callable[[PartyRun], Exchange[Any]]:
        if purpose in PURPOSES:
            return PURPOSES[purpose]
        assist = assists_of(self.task).get(purpose)
        if assist is None:
            raise ExchangeError(f"the leader asks for {purpose!r}, which this party does not know")
        return lambda run: assist(run.party, run.setting.entropy)

    def _write(self) -> None:
        keep_run(self.root, self.job, self.task, [self.party])
        if not (self.root.path / OWN_SEED).exists():
            keep_brought(self.root, self._brought)  # before the seed, see `read_brought`
            self.root.write_atomically(OWN_SEED, self._own_seed.to_bytes(SEED_BYTES, "little"))
        self.folder = self.root.within(self.party)
        named = self.folder.path / RUN
        if named.exists():
            with intact(named):
                self._run = read_bytes(named, MOST_KEY_BYTES)
                if len(self._run) != handshake.RUN_BYTES:
                    raise InvalidValue(f"it has {len(self._run)} bytes")
        if (found := self.folder.path / EXAMPLES).exists():
            with intact(found):
                self._examples = FoundExamples.from_bytes(
                    read_bytes(found, MOST_STATE_BYTES), self._ids
                )

    def log_refusal(self, told: str) -> None:
        """Log why a session ended, if this party has a run folder already.

        `told` is the reason that other parties may know, because a party shows them its log.
        """
        text = f"the session ended: {told}"
        with suppress(FedveilError, OSError):  # the original error matters more
            if self._last is not None:
                self._last[1].log.event(text)
            elif self.folder is not None:
                append_event(self.folder.path / EVENTS, text)

    def keep_run(self) -> None:
        """Save the run's identity, so that a restarted party knows it without asking others."""
        if self.folder is None:
            self._write()
        assert self.folder is not None
        self.folder.write_atomically(RUN, self._run)

    def _name_run(self) -> None:
        if self.party == self.task.leader and not self._run:
            self._run = Secure().token(handshake.RUN_BYTES)

    def _run_for(
        self,
        agreement: Agreement,
        progress: Progress | None,
        say: Callable[[str], None] | None = None,
    ) -> PartyRun:
        if self._last is not None:
            before, run = self._last
            if not agreement.same_examples(before):
                raise RunFolderError("the common examples are not those with which this run began")
            run.load(agreement.step)
            return run
        self._run = agreement.run
        self.keep_run()
        assert self.folder is not None
        wanted = self.split.columns(self.party)
        setting = Setting(
            job=self.job,
            task=self.task,
            split=self.split,
            party=self.party,
            rows={
                subset: Rows.aligned(columns, wanted, agreement.examples.positions[subset])
                for subset, columns in self._owned.items()
            },
            entropy=Secure(),
            order_seed=agreement.order_seed,
            folder=self.folder,
            own_seed=self._own_seed,
        )
        run = begin(setting, progress, say)
        self._stack.callback(run.close)
        run.load(agreement.step)  # raises if the run began with other examples
        if self._examples is None or self._examples.name != agreement.examples.name:
            self._examples = agreement.examples
            self.folder.write_atomically(EXAMPLES, self._examples.to_bytes(self._ids))
        self._last = agreement, run
        return run

    def _farewell(self, run: PartyRun, channels: Mapping[str, Channel]) -> Exchange[None]:
        """Wait until all parties have written their files. Log the last digest of each peer's log.

        If this party left earlier, a peer that restarts before it has written its files would wait.
        """
        run.log.event(seal())
        log: dict[str, Value] = {"head": run.log.head}
        done: dict[str, Value] = {"kind": "done", "step": run.done}
        if self.party == self.task.leader:
            heads = {}
            for follower in channels:
                message = yield from last_message(follower, run)
                heads[follower] = _checked(follower, message, done)
            for follower in channels:
                yield Send(follower, {"kind": "farewell", **log})
        else:
            yield Send(self.task.leader, {**done, **log})
            last = yield from last_message(self.task.leader, run)
            heads = {self.task.leader: _checked(self.task.leader, last, {"kind": "farewell"})}
        for peer, theirs in heads.items():
            run.log.event(anchor(peer, theirs))


def drawn_seed() -> int:
    return int.from_bytes(Secure().token(SEED_BYTES), "little")


def _checked(peer: str, message: Message, due: Message) -> str:
    """Return the last digest of a peer's log, from its `message`.

    Raises ExchangeError if it is no digest, or if the message's other fields are not equal to those
    of `due`.
    """
    try:
        only_fields(message, *due, "head")
        if any(type(message[n]) is not type(v) or message[n] != v for n, v in due.items()):
            raise MessageInvalid(f"it sent {quoted(message['kind'])}")
        head: str = take(message, "head", str)
        if not re.fullmatch("[0-9a-f]{64}", head):
            raise MessageInvalid("it states no digest of a log")
    except MessageInvalid as error:
        raise ExchangeError(
            f"{peer} sent {quoted(message.get('kind'))} where {due['kind']!r} was due: {error}"
        ) from None
    return head


def follower_of(task: Task, named: str | None, tls: Path | None) -> str:
    """Return this follower's name: `named` or, if that is None, the job's only follower.

    If the job has several followers, the certificate in the folder `tls` decides. Raises
    InvalidValue if no follower has the name.
    """
    choices = ", ".join(task.followers)
    if named is not None:
        if named not in task.followers:
            raise InvalidValue(
                f"--party {named!r} is not a follower of the job; its followers are {choices}"
            )
        return named
    if len(task.followers) == 1:
        return task.followers[0]
    certified = None if tls is None else named_in(tls, [task.leader, *task.followers])
    if certified in task.followers:
        return certified
    raise InvalidValue(f"--party is missing: the followers of the job are {choices}")
