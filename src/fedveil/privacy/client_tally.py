"""The memory of a ledger: each client's charges, in a few bytes for each client.

A `Kind` is a combination of charges, here of all charges of a client in one round. The tally counts
each client's rounds of each kind, so that they can be composed later. In an adaptive run, it stores
only sums of charges.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Uint32s, Uint64s
from fedveil.base.message import take_array
from fedveil.base.validate import integer
from fedveil.errors import InvalidValue, MessageInvalid
from fedveil.privacy.compose import Charge, cost, plain_sum

Clients: TypeAlias = Uint64s
#: A combination of charges. A charge is a privacy loss and its number of releases.
Kind: TypeAlias = tuple[Charge, ...]

_MAX_CLIENT = (1 << 64) - 1
#: Up to this many distinct histories are composed one by one. If there are more, a single upper
#: bound on all of them is composed.
_MAX_HISTORIES = 16


class Tally(ABC):
    """The charges of every client: an array with a column per client, ordered by client number.

    A charge is a privacy loss and its number of releases. Subclasses define the rows.
    """

    #: Name of the columns in a state.
    _name: ClassVar[str]

    def __init__(self, columns: Array) -> None:
        self._clients: Clients = np.empty(0, np.uint64)
        self._columns = columns

    @abstractmethod
    def add(self, kinds: Sequence[Kind], kind: int, clients: Clients) -> None:
        """Charge each of `clients` for one round, in which its charges are `kinds[kind]`.

        `kinds` lists the different combinations of charges. Later calls may append to it.
        """

    @abstractmethod
    def worst(self, kinds: Sequence[Kind], delta: float) -> float:
        """Return the largest epsilon at `delta` of any client.

        `kinds` lists the different combinations of charges, in the order that `add` used.
        """

    @property
    def clients(self) -> Clients:
        """Return the numbers, in order, of the clients that were charged."""
        return self._clients

    def copy(self) -> Self:
        other = copy.copy(self)
        other._columns = self._columns.copy()
        return other

    def to_state(self) -> dict[str, Array]:
        return {"clients": self._clients, self._name: self._columns.copy()}

    def restore(self, state: Mapping[str, Any], times: Sequence[int]) -> None:
        """Load an untrusted result of `to_state`. Raises `MessageInvalid` for impossible charges.

        `times[i]` is the number of rounds in which any client had the i-th combination of charges.
        """
        self._clients = in_order(take_array(state, "clients", np.uint64, (None,)).copy())
        shape = (None, len(self._clients))
        self._columns = take_array(state, self._name, self._columns.dtype, shape).copy()
        self._check(times)

    @abstractmethod
    def _check(self, times: Sequence[int]) -> None:
        """Raise `MessageInvalid` if the loaded charges are impossible.

        `times[i]` is the number of rounds in which any client had the i-th combination of charges.
        For example, no client can have had it in more rounds.
        """

    def _places(self, clients: Clients) -> npt.NDArray[np.intp]:
        """Return the column numbers of `clients`. A new client gets a column of zeros."""
        known = self._clients
        if not len(clients):
            return np.empty(0, np.intp)
        if clients[-1] < len(known) and int(known[-1]) == len(known) - 1:
            return clients.astype(np.intp)  # known clients are 0, 1, 2, ... without gaps
        at = np.searchsorted(known, clients)
        if len(known) and np.array_equal(known[np.minimum(at, len(known) - 1)], clients):
            return at
        self._clients = np.union1d(known, clients)
        wider = np.zeros((len(self._columns), len(self._clients)), self._columns.dtype)
        wider[:, np.searchsorted(self._clients, known)] = self._columns
        self._columns = wider
        return np.searchsorted(self._clients, clients)


class Counts(Tally):
    """Each client's number of rounds with each combination of charges, in 4 bytes per number."""

    _name = "counts"

    def __init__(self) -> None:
        super().__init__(np.empty((0, 0), np.uint32))

    def add(self, kinds: Sequence[Kind], kind: int, clients: Clients) -> None:
        at = self._places(clients)
        missing = len(kinds) - len(self._columns)
        if missing > 0:
            rows = np.zeros((missing, len(self._clients)), np.uint32)
            self._columns = np.concatenate([self._columns, rows])
        self._columns[kind, at] += 1

    def _check(self, times: Sequence[int]) -> None:
        paid = [(int(row.max(initial=0)), int(row.sum(dtype=np.uint64))) for row in self._columns]
        missing = [(0, 0)] * (len(times) - len(paid))
        if len(paid) > len(times) or not all(
            most <= n <= whole for n, (most, whole) in zip(times, [*paid, *missing], strict=True)
        ):
            raise MessageInvalid("clients have not paid what its rounds cost")

    def worst(self, kinds: Sequence[Kind], delta: float) -> float:
        """Return the largest composed epsilon of any client at `delta`, or an upper bound on it.

        `kinds` lists the different combinations of charges, in the order that `add` used. The
        result is only a bound if the clients' counts differ too much to compose each of them.
        """
        histories = _unsurpassed(self._columns)
        if len(histories) > _MAX_HISTORIES:
            histories = histories.max(axis=0, keepdims=True)
        return max((cost(_charges(kinds, row), delta) for row in histories), default=0.0)


class Sums(Tally):
    """Each client's sums of epsilons and of deltas, rounded up: 16 bytes per client."""

    _name = "sums"

    def __init__(self) -> None:
        super().__init__(np.empty((2, 0)))

    def add(self, kinds: Sequence[Kind], kind: int, clients: Clients) -> None:
        at = self._places(clients)
        epsilon = plain_sum((loss.epsilon, count) for loss, count in kinds[kind])
        delta = plain_sum((loss.delta, count) for loss, count in kinds[kind])
        for row, term in ((0, epsilon), (1, delta)):
            before, whose = np.unique(self._columns[row, at], return_inverse=True)
            after = [plain_sum([(float(paid), 1), (term, 1)]) for paid in before]
            self._columns[row, at] = np.array(after)[whose]

    def _check(self, times: Sequence[int]) -> None:
        if len(self._columns) != 2 or not (self._columns >= 0).all():
            raise MessageInvalid("what clients have paid is not two sums each")

    def worst(self, kinds: Sequence[Kind], delta: float) -> float:
        """Return the largest sum of epsilons of any client.

        Returns infinity if the deltas of a client add up to more than `delta`. `kinds` is not used.
        """
        if (self._columns[1] > delta).any():
            return math.inf
        return float(self._columns[0].max(initial=0.0))


def sorted_clients(clients: Iterable[int] | Array) -> Clients:
    """Return the client numbers in order. Raises `InvalidValue` for duplicates and non-integers."""
    clients = clients if isinstance(clients, np.ndarray) else list(clients)
    array = np.asarray(clients)
    if array.dtype.kind not in "iu" or (array.size and int(array.min()) < 0):
        array = np.array([integer("client", c, 0, _MAX_CLIENT) for c in clients], np.uint64)
    if array.ndim != 1:
        raise InvalidValue(f"clients has shape {array.shape}, one dimension is needed")
    members = np.sort(array.astype(np.uint64))
    repeated = members[1:][members[1:] == members[:-1]]
    if len(repeated):
        raise InvalidValue(f"clients holds {int(repeated[0])} twice")
    return members


def in_order(clients: Clients) -> Clients:
    """Check that client numbers from an untrusted state ascend, and return them unchanged.

    Raises `MessageInvalid` if they do not, or if a number is there twice.
    """
    if (clients[1:] <= clients[:-1]).any():
        raise MessageInvalid("clients are not in their order, or twice")
    return clients


def _charges(kinds: Sequence[Kind], history: Array) -> list[Charge]:
    return [
        (loss, count * int(times))
        for kind, times in zip(kinds, history, strict=False)
        for loss, count in kind
        if times
    ]


def _unsurpassed(counts: Uint32s) -> Uint32s:
    """Return the different columns of `counts` that no other column dominates, as rows.

    A column is dominated if another one is at least as large in every entry.
    """
    if not counts.size:
        return np.empty((0, len(counts)), np.uint32)
    rows = _different_columns(counts)
    rows = rows[np.argsort(-rows.sum(axis=1, dtype=np.int64), kind="stable")]
    kept = []
    while len(rows):
        kept.append(rows[0])
        rows = rows[(rows > rows[0]).any(axis=1)]
    return np.array(kept)


def _different_columns(counts: Uint32s) -> Uint32s:
    if len(counts) == 1:
        return np.full((1, 1), counts.max(), np.uint32)
    radices = [int(most) + 1 for most in counts.max(axis=1)]
    if math.prod(radices) < 1 << 63:  # a column read as the digits of one number sorts fast
        keys = np.zeros(counts.shape[1], np.int64)
        for row, radix in zip(counts, radices, strict=True):
            keys = keys * radix + row
        counts = counts[:, np.unique(keys, return_index=True)[1]]
    return np.unique(counts.T, axis=0)
