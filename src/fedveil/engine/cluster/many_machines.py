"""Trains a round's clients on the machines of a cluster.

If a machine is lost, another machine trains its clients again. With seeded randomness, this does
not change the results.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedveil.base.message import Message, encode
from fedveil.engine.cluster.cluster import Call, Cluster, MachineLost
from fedveil.engine.cluster.machine import MachineSetup, Played, Request, Work
from fedveil.engine.cluster.membership import Member, Membership
from fedveil.engine.cluster.placement import SLACK, Expected, Group, groups, placed
from fedveil.engine.cluster.shards import Piece, pieces
from fedveil.engine.executors.client_side import ClientsData
from fedveil.engine.executors.executor import Executor
from fedveil.engine.run_records import MACHINES, RETRAINED
from fedveil.protections.base import RoundContext
from fedveil.rounds.loop import MergeableHalf, shared
from fedveil.rounds.outcomes import Answer, ClientId

_NO_MODEL = np.empty(0, np.float32)


@dataclass
class _Used:
    clients: int = 0
    busy_s: float = 0.0


class ManyMachines(Executor):
    """An executor whose clients are on the machines of a cluster.

    `members` are these machines, and `data` the examples of all clients. `setup` is what each
    machine needs at its start. `least` is the smallest number of clients that are trained together.
    `event` logs a line.
    """

    def __init__(
        self,
        cluster: Cluster,
        members: Membership,
        data: ClientsData,
        setup: MachineSetup,
        least: int,
        event: Callable[[str], None],
    ) -> None:
        self._cluster, self._members, self._data = cluster, members, data
        self._least, self._event = least, event
        #: True if a repeated exchange of messages has the same bytes as the first one.
        self._repeatable = setup.job.privacy.randomness == "seeded"
        self._homes: dict[ClientId, Member] = {}
        self._everyone = [c for c in range(len(data.offsets) - 1) if data.examples(c)]
        self._fixed = False
        #: True if some clients' machine was lost.
        self._homeless = True
        self._expected: Expected[Member] = Expected(data.examples)
        self._context: RoundContext
        self._model: Any = None
        self._requests: list[tuple[str, Mapping[ClientId, Message]]] = []
        #: For each machine, the clients whose examples it may delete: they moved to another one.
        self._leaving: dict[Member, set[ClientId]] = {}
        self._at: dict[ClientId, Member] = {}
        self._used: dict[str, _Used] = {}
        self._wall_s = 0.0
        self._retrained = 0
        self._deal()
        gc.freeze()  # a garbage collection of the run's permanent objects takes as long as a round

    def open(self, context: RoundContext) -> None:
        if self._members.changed() or self._homeless:
            self._deal()
        self._context = replace(context, model=_NO_MODEL, whole=None)
        self._model = self._cluster.share(context.sent)
        self._requests.clear()
        self._at.clear()
        self._used = {machine.name: _Used() for machine in self._members.ready}
        self._wall_s, self._retrained = 0.0, 0

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """Send `messages` to the clients, and yield their answers as they arrive.

        `phase` is the phase of the round. If a machine is lost, its clients train again on another
        one. Clients that use the operating system's randomness drop out of the round instead.
        """
        yield from self._answers(phase, messages, None)
        self._requests.append((phase, messages))

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        return self._answers(phase, messages, server)

    def shown(self) -> dict[str, Any]:
        wall = max(self._wall_s, 1e-9)
        machines = {
            name: [used.clients, used.busy_s, max(0.0, 1 - used.busy_s / wall)]
            for name, used in sorted(self._used.items())
        }
        return {MACHINES: machines} | ({RETRAINED: self._retrained} if self._retrained else {})

    def close(self) -> None:
        gc.unfreeze()
        self._members.close()

    def _answers(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf | None
    ) -> Iterator[Answer]:
        began, fold = time.perf_counter(), server is not None
        calls: dict[Call, tuple[Member, Sequence[ClientId]]] = {}
        self._send(calls, phase, messages, list(messages), fold=fold)
        while calls:
            for call in self._members.wait({call: of[0] for call, of in calls.items()}):
                machine, clients = calls.pop(call)
                try:
                    played = call.result()
                except MachineLost as lost:
                    again = self._lost(machine, lost, clients, fold=fold)
                    self._send(calls, phase, messages, again, fold=fold)
                    continue
                if isinstance(played, Exception):
                    raise played
                yield from self._heard(machine, clients, played)
                if server is not None:
                    server.merge(played.half)
        self._wall_s += time.perf_counter() - began

    def _heard(
        self, machine: Member, clients: Sequence[ClientId], played: Played
    ) -> Iterator[Answer]:
        used = self._used.setdefault(machine.name, _Used())
        if not self._requests:
            used.clients += len(clients)
        used.busy_s += played.took_s
        self._members.worked(machine)
        self._fixed = played.fixed
        took = dict[ClientId, float]()
        for answer in played.answers():
            if answer.effort.training_s:
                took[answer.client] = answer.effort.training_s + answer.effort.protection_s
            yield answer
        if took and self._least == 1:  # otherwise the first of a group has the time of all
            self._expected.learn(machine, took)

    def _lost(
        self, machine: Member, lost: MachineLost, clients: Sequence[ClientId], *, fold: bool
    ) -> Sequence[ClientId]:
        """Remove a lost machine. Returns the `clients` that another machine can train again.

        Usually, all of them can. Returns none if reports are sent one by one (`fold` is False) and
        use the operating system's randomness, because such reports cannot be repeated.
        """
        self._members.lose(machine)
        self._homeless = True
        number = self._context.round
        said = f"round {number}: machine {machine.name} was lost ({lost})"
        if not fold and not self._repeatable:
            self._event(f"{said}: its {len(clients):,} clients drop out of the round")
            return ()
        self._event(f"{said}: its {len(clients):,} clients train again on other machines")
        self._retrained += len(clients)
        return clients

    def _send(
        self,
        calls: dict[Call, tuple[Member, Sequence[ClientId]]],
        phase: str,
        messages: Mapping[ClientId, Message],
        clients: Sequence[ClientId],
        *,
        fold: bool,
    ) -> None:
        if self._requests and not self._repeatable:
            clients = [c for c in clients if (at := self._at.get(c)) is not None and at.alive]
        if not clients:
            return
        if not self._members.ready:
            self._members.gather()
        encoded: dict[int, bytes] = {}
        shares = self._shares(clients)
        lacking = dict(self._move(shares))
        for machine in sorted(lacking, key=lambda machine: len(lacking[machine])):
            theirs = shares[machine]  # machines that need the fewest new examples start first
            moved: list[Piece | None] = [*pieces(self._data, lacking[machine])]
            *sent, coming = moved or [None]
            for piece in sent:
                machine.call("give", piece)  # a machine's calls run in order
            new, known = list[ClientId](), list[ClientId]()
            for client in theirs:
                (known if self._at.get(client) is machine else new).append(client)
                self._at[client] = machine
            for some, requests in ((new, self._requests), (known, ())):
                if some:
                    before = [_request(name, sent, some, encoded) for name, sent in requests]
                    request = _request(phase, messages, some, encoded)
                    leaving = sorted(self._leaving.pop(machine, ()))
                    work = Work(self._context, request, fold, before, coming, leaving)
                    coming = None
                    calls[machine.call("play", work, self._model)] = machine, some

    def _shares(self, clients: Sequence[ClientId]) -> dict[Member, list[ClientId]]:
        def home(group: Group) -> Member | None:
            machine = self._at.get(group[0]) or self._homes.get(group[0])
            return machine if machine is not None and machine.alive else None

        stay = self._fixed or bool(self._requests)
        return self._placed(groups(clients, self._least), home, float("inf") if stay else SLACK)

    def _placed(
        self, work: Sequence[Group], home: Callable[[Group], Member | None], slack: float
    ) -> dict[Member, list[ClientId]]:
        speeds = self._expected.speeds({m: m.cores for m in self._members.ready})
        shares = placed(work, self._expected.length, speeds, home, slack)
        return {m: [c for group in work for c in group] for m, work in shares.items() if work}

    def _deal(self) -> None:
        while True:
            if not self._members.ready:
                self._members.gather()

            def home(group: Group) -> Member | None:
                machine = self._homes.get(group[0])
                return machine if machine is not None and machine.alive else None

            work = [(client,) for client in self._everyone]
            try:
                for machine, coming in self._move(self._placed(work, home, SLACK)):
                    for piece in pieces(self._data, coming):
                        call = machine.call("give", piece)
                        self._members.wait({call: machine})
                        _delivered(call, machine)
            except _Undelivered as undelivered:
                self._members.lose(undelivered.machine)
                continue
            self._homeless = False
            return

    def _move(
        self, shares: Mapping[Member, Sequence[ClientId]]
    ) -> Iterator[tuple[Member, list[ClientId]]]:
        """Assign clients to machines as in `shares`. Yields each machine with its new clients.

        New clients are those whose examples the machine does not have. The caller must send it
        these examples.
        """
        for machine, clients in shares.items():
            coming = [c for c in clients if self._homes.get(c) is not machine]
            yield machine, coming
            for client in coming:
                old = self._homes.get(client)
                if old is not None and old.alive:
                    self._leaving.setdefault(old, set()).add(client)
            self._leaving.get(machine, set()).difference_update(coming)
            self._homes |= dict.fromkeys(coming, machine)


class _Undelivered(Exception):
    def __init__(self, machine: Member) -> None:
        self.machine = machine


def _delivered(call: Call, machine: Member) -> None:
    try:
        call.result()
    except MachineLost:
        raise _Undelivered(machine) from None


def _request(
    phase: str,
    messages: Mapping[ClientId, Message],
    clients: Sequence[ClientId],
    encoded: dict[int, bytes],
) -> Request:
    theirs = {client: messages[client] for client in clients if client in messages}
    parts = []
    for message, receivers in shared(theirs):
        if id(message) not in encoded:
            encoded[id(message)] = encode(message)
        parts.append((encoded[id(message)], receivers))
    return Request(phase, parts)
