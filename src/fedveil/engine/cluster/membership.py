"""The machines of a cluster that take part in a run: they join, are checked, and may be lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedveil.engine.cluster.cluster import Call, Cluster, MachineLost, Place, Remote
from fedveil.engine.cluster.machine import PackedSetup
from fedveil.engine.cluster.machine_check import Facts
from fedveil.errors import ClusterUnavailable, RunStopped

#: Seconds to wait for a first machine before giving up, and for the others after the first one.
WAIT_S, OTHERS_S = 600.0, 60.0
#: Seconds between two searches for new machines: during the rounds, and while none is ready.
_LOOK_S, _POLL_S = 5.0, 0.5
#: Seconds between two checks that a machine still runs, and without an answer until it is given up.
_PULSE_S, _SILENT_S = 10.0, 60.0
#: A place that lost n machines in a row, without a result, is left alone for 2^n times this many
#: seconds.
_PAUSE_S = 1.0


@dataclass(eq=False)
class Member:
    """A machine of the run. `alive` is False once it is lost.

    `pulse` is an unfinished call, begun at `asked_at`, to test if the machine still runs.
    """

    place: Place
    name: str
    remote: Remote
    alive: bool = True
    pulse: Call | None = None
    asked_at: float = 0.0

    @property
    def cores(self) -> int:
        return self.place.cores

    def call(self, method: str, *arguments: Any) -> Call:
        return self.remote.call(method, *arguments)


class Membership:
    """Starts a machine at each place of the cluster, and checks that all compute equal updates.

    The `Facts` of each machine must equal `facts`, the `Facts` of the calling process. Every
    machine is made from `setup`. `starting` is called with the name of each step before the first
    round. `event` logs a line.
    """

    def __init__(
        self,
        cluster: Cluster,
        setup: PackedSetup,
        facts: Facts,
        *,
        event: Callable[[str], None],
        starting: Callable[[str], None],
    ) -> None:
        self._cluster, self._facts = cluster, facts
        self._event, self._starting = event, starting
        self._setup = cluster.share(setup)
        #: The machines that have been checked.
        self.ready: list[Member] = []
        self._joining: dict[Call, Member] = {}
        self._names: dict[str, str] = {}
        self._lost: Counter[str] = Counter()
        #: When a place at which machines were lost may be used again.
        self._again: dict[str, float] = {}
        self._looked = float("-inf")
        self._started = False

    def gather(self) -> None:
        """Wait until at least one machine is ready, then a while for others that are starting.

        Raises `ClusterUnavailable` if no machine is ready within `WAIT_S` seconds. Before the first
        round, also raises `MachineDiffers` if a machine would compute other updates than this one.
        """
        began = first = time.monotonic()
        while True:
            self._look()
            self._welcome(_POLL_S)
            now = time.monotonic()
            if not self.ready:
                first = now
            if self.ready and (not self._joining or now - first > OTHERS_S):
                break
            if not self.ready and now - began > WAIT_S:
                raise ClusterUnavailable(
                    f"{self._cluster.name} had no machine for this job within "
                    f"{WAIT_S:.0f} s: {self._missing()}"
                )
            self._starting(f"waiting for {self._cluster.name}: {self._missing()}")
        if not self._started:
            self._event(f"{self._cluster.name}: " + ", ".join(
                f"machine {m.name} with {m.cores} cores" for m in self.ready
            ))  # fmt: skip
        self._started = True

    def changed(self) -> bool:
        """Look for new machines. Returns True if at least one machine has joined the run."""
        if time.monotonic() - self._looked > _LOOK_S:
            self._look()
        return self._welcome(0.0)

    def wait(self, calls: Mapping[Call, Member]) -> Sequence[Call]:
        """Wait until at least one of `calls` has ended. Returns the calls that have ended.

        `calls` maps each call to its machine. Calls of a machine that does not respond fail.
        """
        while not (ended := self._cluster.wait(list(calls), _PULSE_S)):
            for member in dict.fromkeys(calls.values()):
                self._feel(member)
        return ended

    def _feel(self, member: Member) -> None:
        now = time.monotonic()
        if member.pulse is None or self._cluster.wait([member.pulse], 0.0):
            member.pulse, member.asked_at = member.remote.pulse(), now
        elif now - member.asked_at > _SILENT_S:
            self._event(f"machine {member.name} gives no sign of life: it is given up")
            member.asked_at = float("inf")
            member.remote.end()

    def lose(self, member: Member) -> None:
        """Remove a lost machine from the run. A new machine can start at its place later."""
        if member.alive:
            member.alive = False
            member.remote.end()
            key = member.place.key
            self._lost[key] += 1
            self._again[key] = time.monotonic() + _PAUSE_S * 2.0 ** self._lost[key]
            if member in self.ready:
                self.ready.remove(member)

    def worked(self, member: Member) -> None:
        """Record that `member` returned a result. Resets the count of losses at its place."""
        self._lost.pop(member.place.key, None)

    def close(self) -> None:
        closing = [member.call("close") for member in self.ready]
        limit = time.monotonic() + 5
        while closing and time.monotonic() < limit:
            for call in self._cluster.wait(closing, 1.0):
                closing.remove(call)
        for member in (*self.ready, *self._joining.values()):
            member.remote.end()
        self._cluster.close()

    def _look(self) -> None:
        self._looked = time.monotonic()
        taken = {member.place.key for member in (*self.ready, *self._joining.values())}
        for place in self._cluster.places():
            if place.key not in taken and self._again.get(place.key, 0.0) <= self._looked:
                name = self._name(place)
                remote = self._cluster.start(place, self._setup, name)
                member = Member(place, name, remote)
                self._joining[member.call("facts")] = member

    def _name(self, place: Place) -> str:
        if place.key not in self._names:
            alike = sum(name.split(" ")[0] == place.name for name in self._names.values())
            self._names[place.key] = f"{place.name} ({alike + 1})" if alike else place.name
        return self._names[place.key]

    def _welcome(self, timeout_s: float) -> bool:
        before = len(self.ready)
        if not self._joining:
            time.sleep(0.0 if self.ready else timeout_s)
            return False
        for call in self._cluster.wait(list(self._joining), timeout_s):
            member = self._joining.pop(call)
            try:
                self._check(member, call)
            except MachineLost as lost:
                self._event(f"machine {member.name} was lost while it started ({lost})")
                self.lose(member)
            except RunStopped as wrong:
                if not self._started:
                    raise
                self._event(f"not used: {wrong}")
                self.lose(member)
                self._again[member.place.key] = float("inf")
        return len(self.ready) > before

    def _check(self, member: Member, call: Call) -> None:
        found = call.result()
        if isinstance(found, Exception):
            raise found
        self._facts.check(found, member.name)
        self.ready.append(member)
        if self._started:
            self._event(f"machine {member.name} with {member.cores} cores has joined")

    def _missing(self) -> str:
        if not self._joining and not self.ready:
            if self._lost:
                return "all its machines were lost"
            return "no node has the processor cores, or the GPU, that the job asks for"
        return (
            f"{len(self.ready)} of {len(self.ready) + len(self._joining)} machines are ready; the "
            f"others start, or their cores are in use by other programs"
        )
