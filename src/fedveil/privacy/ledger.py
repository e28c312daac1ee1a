"""The ledger: what each client has spent, and the resulting epsilons of a run.

A ledger states four epsilons. Each is an upper bound and is never rounded down.

    per bit         what a round's reports reveal about one bit of a mechanism's input
    per parameter   what they reveal about one parameter, the rest of the update fixed
    per round       what they reveal about one client's whole data, in the costliest round
    whole run       what they reveal about that data in all rounds together

The epsilon of the whole run is stated twice: for the client that was drawn most often, and for a
client that was drawn in every round.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.message import Message, encode, take
from fedveil.base.validate import integer, within
from fedveil.errors import InvalidValue
from fedveil.privacy.client_tally import Clients, Counts, Kind, Sums, Tally, sorted_clients
from fedveil.privacy.compose import Charge, cost
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger_message import (
    MAX_RELEASES,
    MAX_ROUND,
    kinds_from_state,
    kinds_to_state,
    rounds_from_state,
    rounds_to_state,
)
from fedveil.privacy.loss import PrivacyLoss

Unit: TypeAlias = Literal["bit", "parameter", "round", "run"]

_BIT, _PARAMETER, _UPDATE = 0, 1, 3


class Spent(Protocol):
    """A privacy loss, and its number of releases in one report. `Spending` is an example."""

    @property
    def loss(self) -> PrivacyLoss:
        """Return the privacy loss of one release."""

    @property
    def count(self) -> int:
        """Return the number of releases of the loss in one report."""


Spendings: TypeAlias = Sequence[Spent | Charge]


class Line(NamedTuple):
    """An epsilon with its delta, for printing. `what` describes the guarantee in words."""

    epsilon: float
    delta: float
    what: str

    @property
    def figure(self) -> Figure:
        return Figure(self.epsilon, self.delta)

    def __str__(self) -> str:
        return f"{self.figure} for {self.what}"


class Ledger:
    """Records the privacy loss of every client of a run.

    If `adaptive` is True, a round's losses can depend on earlier rounds. The ledger then adds
    epsilons and deltas (basic composition), which stays valid.
    """

    def __init__(self, *, adaptive: bool = False) -> None:
        self.adaptive = adaptive
        self._kinds: list[Kind] = []
        self._index: dict[frozenset[tuple[Charge, int]], int] = {}
        self._tally: Tally = Sums() if adaptive else Counts()
        self._open: dict[int, dict[int, Clients]] = {}
        self._closed: Counter[tuple[int, ...]] = Counter()
        self._first_open = 0
        self._counted: Tally | None = None
        self._in_clear: set[str] = set()

    def record(self, loss: PrivacyLoss, *, round: int, client: int, count: int = 1) -> None:
        """Charge `client` for `count` more releases of `loss` in its report of `round`."""
        self._record([(loss, count)], round, [client], another=False)

    def record_many(
        self,
        spendings: Spendings,
        *,
        round: int,
        clients: Iterable[int] | Array,
        ahead: bool = False,
    ) -> None:
        """Charge each of `clients` for one more report in `round`, which costs all `spendings`.

        This closes all earlier rounds: nothing more can be recorded in them. If `ahead` is True,
        earlier rounds stay open, so that interrupted ones can be repeated and charged again.
        """
        self._record(spendings, round, clients, another=True)
        if ahead:
            return
        for earlier in sorted(number for number in self._open if number < round):
            groups = self._open.pop(earlier)
            for kind, members in groups.items():
                self._tally.add(self._kinds, kind, members)
            self._closed[tuple(sorted(groups))] += 1
        self._first_open = max(self._first_open, round)

    def note_in_clear(self, what: Iterable[str]) -> None:
        """Record `what`, the names of values sent unprotected. No epsilon covers them."""
        self._in_clear.update(what)

    @property
    def in_clear(self) -> tuple[str, ...]:
        """Return the names of the values that are sent unprotected."""
        return tuple(sorted(self._in_clear))

    @property
    def clients(self) -> Clients:
        """Return the numbers, in order, of the clients that were charged for a report."""
        return self._everything().clients.copy()

    @property
    def kinds(self) -> int:
        """Return the number of different combinations of charges in the reports of all rounds."""
        return len(self._kinds)

    def charges(self, spendings: Spendings) -> Kind:
        """Return `spendings` as (loss, count) pairs. If adaptive, losses have no mechanisms."""
        return _charges(spendings, bare=self.adaptive)

    def epsilon(self, per: Unit = "run", delta: float = 0.0) -> float:
        """Return one of the ledger's epsilons at `delta`: per "bit", "parameter", "round" or "run".

        "bit", "parameter" and "round" are for one bit, one parameter or all data of a client, in
        the costliest round of any client. "run" is for all rounds of the client that spent most. At
        delta = 0, the epsilon is the exact sum of pure losses. Without a guarantee, it is infinite.
        """
        delta = within("delta", delta, 0, 1, open_high=True)
        match per:
            case "bit" | "parameter" | "round":
                return max((_costliest(kind, per, delta) for kind in self.live()), default=0.0)
            case "run":
                return self._everything().worst(self._kinds, delta)
        raise InvalidValue(f"per = {per!r} is not one of {', '.join(get_args(Unit))}")

    def epsilon_every_round(self, delta: float = 0.0) -> float:
        """Return the run's epsilon at `delta` for a client that took part in every round so far.

        The charges are those of `kinds_every_round`. The result is never below the epsilon "run".
        """
        epsilon = cost(self.charges_every_round(delta), delta, adaptive=self.adaptive)
        if any(len(kinds) > 1 for kinds, _ in self._rounds()):
            # A client's own mixture of reports can cost more than the kinds that were chosen.
            epsilon = max(epsilon, self.epsilon("run", delta))
        return epsilon

    def charges_every_round(self, delta: float = 0.0) -> list[Charge]:
        """Return the charges of `kinds_every_round`, one after the other."""
        kinds = self.kinds_every_round(delta)
        return [(loss, count * times) for kind, times in kinds for loss, count in kind]

    def kinds_every_round(self, delta: float = 0.0) -> list[tuple[Kind, int]]:
        """Return (combination of charges, number of rounds) pairs for a client in every round.

        If the clients of a round had different combinations, one counts in all n such rounds: the
        one with the largest epsilon at `delta` if it is charged n times.
        """
        delta = within("delta", delta, 0, 1, open_high=True)
        paid: Counter[int] = Counter()
        for kinds, times in self._rounds():
            costs = dict.fromkeys(kinds, 0.0)  # a single one needs no comparison
            if len(costs) > 1:
                costs = {k: _costliest(self._kinds[k], "round", delta, times) for k in costs}
            paid[max(costs, key=costs.__getitem__)] += times
        return [(self._kinds[kind], times) for kind, times in sorted(paid.items())]

    def figures(self, delta: float) -> dict[str, Figure]:
        """Return the epsilons per_bit, per_parameter, per_round, run_every_round, run_most_drawn.

        The first three are for the costliest round. `run_every_round` is for a client drawn in
        every round of the run, `run_most_drawn` for the client drawn most often. All are stated at
        `delta`. An epsilon that is not larger at delta = 0 is stated at delta = 0 instead.
        """
        return {
            "per_bit": _stated(lambda d: self.epsilon("bit", d), delta),
            "per_parameter": _stated(lambda d: self.epsilon("parameter", d), delta),
            "per_round": _stated(lambda d: self.epsilon("round", d), delta),
            "run_every_round": self.figure_every_round(delta),
            "run_most_drawn": _stated(lambda d: self.epsilon("run", d), delta),
        }

    def figure_every_round(self, delta: float) -> Figure:
        """Return the figure `run_every_round` of `figures`, without computing the others."""
        return _stated(self.epsilon_every_round, delta)

    def preview(
        self, spendings: Spendings, *, round: int, clients: Iterable[int], delta: float
    ) -> dict[str, Figure]:
        """Return the `figures` as they would be after `record_many` with these arguments."""
        trial = self.copy()
        trial.record_many(spendings, round=round, clients=clients)
        return trial.figures(delta)

    def copy(self) -> Ledger:
        other = Ledger(adaptive=self.adaptive)
        other._kinds, other._index = list(self._kinds), dict(self._index)
        other._tally = self._tally.copy()
        other._open = {number: dict(groups) for number, groups in self._open.items()}
        other._closed, other._first_open = Counter(self._closed), self._first_open
        other._in_clear = set(self._in_clear)
        return other

    def _record(
        self, spendings: Spendings, round: int, clients: Iterable[int] | Array, *, another: bool
    ) -> None:
        round = integer("round", round, 0, MAX_ROUND)
        if round < self._first_open:
            raise InvalidValue(f"round = {round} is closed: round {self._first_open} has begun")
        charges = self.charges(spendings)
        members = sorted_clients(clients)
        if not charges or not len(members):
            return
        self._counted = None
        self._join(self._open.setdefault(round, {}), charges, members, another=another)

    def _join(
        self, groups: dict[int, Clients], charges: Kind, members: Clients, *, another: bool
    ) -> None:
        """Charge the clients `members` with `charges` for a round, and update `groups` in place.

        `groups` maps an index of `_kinds`, a combination of charges, to the clients that have
        exactly these charges in the round. If `another` is True, `charges` are for one more report
        of each client. If it is False, they are more charges for an earlier report, and counts of
        equal losses are added.
        """
        joined = []
        for kind, others in list(groups.items()):
            both = np.intersect1d(others, members, assume_unique=True)
            if not len(both):
                continue
            members = np.setdiff1d(members, both, assume_unique=True)
            rest = np.setdiff1d(others, both, assume_unique=True)
            if len(rest):
                groups[kind] = rest
            else:
                del groups[kind]
            held = self._kinds[kind]
            joined.append(((*held, *charges) if another else _merged(charges, held), both))
        # Not in the loop: a new kind may equal that of a group that the loop has yet to read.
        for kind_of_both, both in joined:
            self._put(groups, kind_of_both, both)
        if len(members):
            self._put(groups, charges, members)

    def _put(self, groups: dict[int, Clients], charges: Kind, members: Clients) -> None:
        key = frozenset(Counter(charges).items())
        kind = self._index.setdefault(key, len(self._kinds))
        if kind == len(self._kinds):
            self._kinds.append(charges)
        groups[kind] = np.union1d(groups[kind], members) if kind in groups else members

    def _rounds(self) -> list[tuple[tuple[int, ...], int]]:
        """Return (indices of `_kinds`, n) pairs: in n rounds, exactly these kinds were charged."""
        rounds = Counter(self._closed)
        rounds.update(tuple(sorted(groups)) for groups in self._open.values())
        return sorted(rounds.items())

    def live(self) -> list[Kind]:
        return [self._kinds[k] for k in sorted({k for kinds, _ in self._rounds() for k in kinds})]

    def _everything(self) -> Tally:
        if self._counted is None:
            self._counted = self._tally.copy()
            for _, groups in sorted(self._open.items()):
                for kind, members in groups.items():
                    self._counted.add(self._kinds, kind, members)
        return self._counted

    def to_state(self) -> Message:
        return {
            **kinds_to_state(self._kinds),
            **rounds_to_state(self._closed, self._open),
            **{f"tally.{name}": array for name, array in self._tally.to_state().items()},
            "adaptive": self.adaptive,
            "first_open": self._first_open,
            "in_clear": "\n".join(self.in_clear),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ledger:
        """Restore a ledger that `to_state` encoded. Raises `InvalidValue` for an impossible one."""
        try:
            ledger = cls(adaptive=take(state, "adaptive", bool))
            ledger._first_open = integer("first_open", take(state, "first_open", int), 0, MAX_ROUND)
            ledger._kinds = kinds = kinds_from_state(state)
            ledger._index = {frozenset(Counter(kind).items()): i for i, kind in enumerate(kinds)}
            first = ledger._first_open
            ledger._closed, ledger._open = rounds_from_state(state, len(kinds), first)
            times = [
                sum(n for ks, n in ledger._closed.items() if k in ks) for k in range(len(kinds))
            ]
            columns = {n[6:]: value for n, value in state.items() if n.startswith("tally.")}
            ledger._tally.restore(columns, times)
            ledger.note_in_clear(take(state, "in_clear", str).splitlines())
            integer("rounds that are over", ledger._closed.total(), 0, first)
            if encode(ledger.to_state()) != encode(state):
                raise InvalidValue("it is not written as a ledger writes it")
        except ValueError as error:
            raise InvalidValue(f"state is not one of a ledger: {error}") from None
        return ledger


def project(
    spendings: Spendings, rounds: int, delta: float, *, adaptive: bool = False
) -> dict[str, Figure | None]:
    """Return the epsilons of a run before it starts, if a report costs `spendings` in each round.

    The keys are those of `Ledger.figures`. The epsilon `run_most_drawn` is unknown: None. In an
    adaptive run, all epsilons are valid only if no later loss is larger than the first.
    """
    ledger = projected(spendings, rounds, adaptive=adaptive)
    return {**ledger.figures(delta), "run_most_drawn": None}


def projected(spendings: Spendings, rounds: int, *, adaptive: bool = False) -> Ledger:
    """Return the ledger of a client that pays `spendings` in each of `rounds` rounds."""
    ledger = Ledger(adaptive=adaptive)
    ledger._closed[(0,)] = integer("rounds", rounds, 1)
    ledger._kinds.append(_charges(spendings, bare=adaptive))
    return ledger


def _stated(epsilon: Callable[[float], float], delta: float) -> Figure:
    pure, tight = epsilon(0.0), epsilon(delta)
    return Figure(pure, 0.0) if pure <= tight and pure < math.inf else Figure(tight, delta)


def _charges(spendings: Spendings, *, bare: bool) -> Kind:
    """Merge `spendings` to one (loss, count) pair per loss. If `bare`, drop the mechanisms."""
    pairs = []
    for spent in spendings:
        loss, count = spent if isinstance(spent, tuple) else (spent.loss, spent.count)
        if not isinstance(loss, PrivacyLoss):
            raise InvalidValue(f"loss = {loss!r} is not a PrivacyLoss")
        count = integer("count", count, 1, MAX_RELEASES)
        pairs.append((loss.bare() if bare else loss.resolved(), count))
    return _merged(pairs)


def _merged(charges: Iterable[Charge], held: Kind = ()) -> Kind:
    """Return `held` with more `charges` of the same report. Counts of equal losses are added."""
    total = list(held)
    for loss, count in charges:
        place = next((i for i, (one, _) in enumerate(total) if one == loss), len(total))
        before = total.pop(place)[1] if place < len(total) else 0
        total.insert(place, (loss, before + count))
    return tuple(total)


def _costliest(kind: Kind, per: Unit, delta: float, times: int = 1) -> float:
    repeated = tuple((loss, count * times) for loss, count in kind)
    return max((cost(charges, delta) for charges in _exposures(repeated, per)), default=0.0)


def _exposures(kind: Kind, per: Unit) -> list[list[Charge]]:
    # A loss stated for a unit also holds for every part of it, and `part` is the better statement
    # if there is one. A change of one parameter shows in everything that is stated per update, and
    # in all bits, since all of them may be its own. Of the `count` parameters, rows, vectors or
    # examples in a report, it shows in one. A change of one bit shows only in that bit. If bits are
    # not distinguished, it shows in everything in which a parameter shows. A round that was
    # repeated has several reports, which charge the same loss. A change shows in each of them.
    if per == "round":
        return [list(kind)]
    if per == "parameter":
        return [[_narrowed(loss, count, _PARAMETER) for loss, count in kind]]
    narrowed = [_narrowed(loss, count, _BIT) for loss, count in kind]
    reports = Counter(whole for whole, _ in kind)
    alone = [[(loss, reports[whole])] for (loss, _), (whole, _) in zip(narrowed, kind, strict=True)
             if whole.size < _UPDATE]  # fmt: skip
    together = [c for c, (whole, _) in zip(narrowed, kind, strict=True) if whole.size == _UPDATE]
    return [*alone, together] if together else alone


def _narrowed(loss: PrivacyLoss, count: int, size: int) -> Charge:
    among_many = _BIT < loss.size < _UPDATE
    while loss.part is not None and loss.part.size >= size:
        loss = loss.part
    return loss, 1 if among_many else count
