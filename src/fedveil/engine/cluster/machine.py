"""A machine of a cluster: holds some clients' examples, trains them and adds up their reports."""

from __future__ import annotations

import pickle
import tempfile
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree

import numpy as np

from fedveil.base import own_code
from fedveil.base.array_types import Float32s, Float64s
from fedveil.base.message import Message, decode
from fedveil.engine.assembly import ModelShape, make_protection
from fedveil.engine.cluster.machine_check import Facts, facts
from fedveil.engine.cluster.own_sources import unpack_sources
from fedveil.engine.cluster.shards import Piece, Shards
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.local import start_locally
from fedveil.engine.executors.pool import WorkerPool
from fedveil.errors import FedveilError, StatesUnreachable
from fedveil.federated.job import Job
from fedveil.protections.base import RoundContext, ServerRound
from fedveil.protections.own_errors import own_errors
from fedveil.rounds.outcomes import Answer, ClientId, Effort, Folded, Report

#: The file in the run's folder by which a machine recognises the folder.
PROOF = "clients/machines"


@dataclass(frozen=True)
class MachineSetup:
    """Everything that a machine needs at its start.

    `dimension` is the number of entries of an update. `own` are the user's own functions and
    classes, pickled. `batch` holds the examples on which `machine_check` trains. If clients keep a
    state between rounds, the machine must be able to open the run's folder `run`: the random text
    `proof` must equal the folder's file PROOF. If clients keep no state, `proof` is None.
    """

    job: Job
    shape: ModelShape
    dimension: int
    run: Path
    own: bytes
    batch: ClientsData
    proof: str | None = None

    def packed(self, sources: bytes) -> PackedSetup:
        """Return this setup as bytes. `sources` are the user's own modules (`packed_sources`)."""
        return PackedSetup(sources, self.own, pickle.dumps(self))


@dataclass(frozen=True)
class PackedSetup:
    """A `MachineSetup` as bytes, with the user's own code that its job may need."""

    sources: bytes
    own: bytes
    setup: bytes

    def unpacked(self, folder: Path) -> MachineSetup:
        """Return the setup. Writes the user's own modules into `folder`."""
        unpack_sources(self.sources, folder)
        own_code.unpack(self.own)
        setup: MachineSetup = pickle.loads(self.setup)  # noqa: S301 - from the run's process
        return setup


@dataclass(frozen=True)
class Request:
    """The messages of one phase: pairs of an encoded message and the clients that receive it."""

    phase: str
    messages: Sequence[tuple[bytes, Sequence[ClientId]]]


@dataclass(frozen=True)
class Work:
    """One phase of a round for some of a machine's clients.

    If `fold` is True, the machine returns the sum of the reports instead of each report. If these
    clients were on a machine that was lost, `before` are the earlier phases of this round, which
    this machine repeats first. `coming` are examples that it does not have yet. `leaving` are
    clients of this machine that another machine trains from now on.
    """

    context: RoundContext
    request: Request
    fold: bool
    before: Sequence[Request] = ()
    coming: Piece | None = None
    leaving: Sequence[ClientId] = ()


@dataclass
class Played:
    """A machine's answers to one `Work`.

    - `half`: a `ServerRound` that contains the sum of the reports, or None if `Work.fold` is False.
    - `clients`: the clients whose reports are in the sum, apart from those in `others`.
    - `columns`: row i has four numbers about clients[i]: the report's size in bytes, and the
      seconds of training, protection and aggregation.
    - `others`: the answers that `columns` cannot describe, such as one with warnings.
    - `took_s`: the time that the machine needed, in seconds.
    - `fixed`: True if the machine must restart its worker processes when its clients change.
    """

    clients: Sequence[ClientId] = ()
    columns: Float64s = field(default_factory=lambda: np.empty((0, 4)))
    others: Sequence[Answer] = ()
    half: ServerRound | None = None
    took_s: float = 0.0
    fixed: bool = False

    def answers(self) -> Iterable[Answer]:
        for client, (size, *seconds) in zip(self.clients, self.columns.tolist(), strict=True):
            yield Folded(client, int(size), effort=Effort(*seconds))
        yield from self.others


class Machine:
    """Trains the clients of one machine. Methods return a `FedveilError` instead of raising it."""

    def __init__(self, packed: PackedSetup, name: str, cores: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix="fedveil-") if packed.sources else ".")
        #: Deletes the folder at the latest when the process ends, even without a call of `close`.
        self._delete = weakref.finalize(self, rmtree, folder) if packed.sources else None
        self._setup = packed.unpacked(folder)
        self._name, self._cores = name, cores
        self._shards = Shards()
        self._executor: Executor | None = None
        self._round = 0
        #: The requests of this round so far, without those whose reports were added up here.
        self._done: list[Request] = []

    def facts(self) -> Facts | FedveilError:
        setup = self._setup
        if setup.proof is not None:
            found = None
            with suppress(OSError):
                found = (setup.run / PROOF).read_text("utf-8")
            if found != setup.proof:
                return StatesUnreachable(self._name, str(setup.run))
        try:
            return facts(setup.job, setup.shape, setup.batch, setup.dimension)
        except FedveilError as error:
            return error

    def give(self, piece: Piece) -> None:
        """Store the examples in `piece`. This machine trains the piece's clients from now on."""
        copied = {name: np.array(value) for name, value in vars(piece).items() if value is not None}
        self._shards.add(Piece(**copied))
        self._renew()

    def play(self, work: Work, model: Float32s) -> Played | FedveilError:
        """Run the phase that `work` describes, and return the answers.

        `model` is the vector that the server sent to the clients in this round.
        """
        began = time.perf_counter()
        if work.leaving:
            self._shards.drop(work.leaving)
            self._renew()
        if work.coming is not None:
            self.give(work.coming)
        try:
            weights = model[: self._setup.dimension]
            played = self._play(work, replace(work.context, model=weights, whole=model))
        except FedveilError as error:
            return error
        played.took_s = time.perf_counter() - began
        played.fixed = isinstance(self._executor, WorkerPool)
        return played

    def pulse(self) -> None:
        """Do nothing. If a call of this method returns, the machine's process still runs."""

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        if self._delete is not None:
            self._delete()

    def _play(self, work: Work, context: RoundContext) -> Played:
        setup = self._setup
        before = list(work.before)
        if self._round != context.round:
            self._done.clear()
        elif self._executor is None:  # closed during the round: its clients' halves are made again
            before = [*self._done, *before]
        if self._round != context.round or self._executor is None:
            self._started().open(context)
            self._round = context.round
        executor = self._started()
        for request in before:
            for _ in executor.ask(request.phase, _messages(request)):
                pass  # the run's process has these answers already
        if not work.fold:
            self._done += [*work.before, work.request]
        protection = make_protection(setup.job, setup.dimension)
        phase, messages = work.request.phase, _messages(work.request)
        with own_errors(protection):
            if not work.fold:
                return Played(others=[_lasting(a) for a in executor.ask(phase, messages)])
            half = protection.server_round(context)
            return _columns(executor.fold(phase, messages, half), half)

    def _started(self) -> Executor:
        if self._executor is None:
            setup = self._setup
            self._executor = start_locally(
                setup.job,
                setup.shape,
                self._shards,
                setup.dimension,
                setup.run,
                pack=lambda: setup.own,
                starting=lambda what: None,
                event=lambda what: None,
                cores=self._cores,
            )
        return self._executor

    def _renew(self) -> None:
        """Close the worker processes, whose copies of the examples are outdated."""
        if isinstance(self._executor, WorkerPool):
            self._executor.close()
            self._executor = None


def _messages(request: Request) -> Mapping[ClientId, Message]:
    return {
        client: message
        for encoded, clients in request.messages
        for message in (decode(encoded),)
        for client in clients
    }


def _lasting(answer: Answer) -> Answer:
    return replace(answer, data=bytes(answer.data)) if isinstance(answer, Report) else answer


def _columns(answers: Iterable[Answer], half: ServerRound) -> Played:
    clients, rows, others = list[ClientId](), list[tuple[float, ...]](), list[Answer]()
    for answer in answers:
        effort = answer.effort
        if isinstance(answer, Folded) and not effort.warnings and effort.unusable is None:
            clients.append(answer.client)
            seconds = (effort.training_s, effort.protection_s, effort.aggregation_s)
            rows.append((answer.size, *seconds))
        else:
            others.append(_lasting(answer))
    return Played(clients, np.array(rows, np.float64).reshape(-1, 4), others, half)
