"""Draws the sum of a whole cohort's reports at once, for simulations of thousands of clients.

A client rounds a parameter to a state, a whole number from -cells to cells. In the state's one-hot
code, its own bit is 1 with probability p, any other with probability q. The client's report is S,
the sum of the states whose bits are 1. Let m(v) of n clients be in state v. The number of codes in
which bit v is 1 is Binomial(m(v), p) + Binomial(n - m(v), q), independently for each v. The sum of
the clients' S is the sum over v of v times that number.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Int64s
from fedveil.base.kernels import compiled
from fedveil.entropy import Entropy
from fedveil.mechanisms.exact.binomial import Binomial
from fedveil.mechanisms.unary.rounding import States

_Counts = npt.NDArray[np.unsignedinteger[Any]]

#: Clients that are counted together. The counts do not fit into a processor's cache, so every pass
#: over them waits for memory.
_TOGETHER = 8


class CohortSum:
    """Counts the clients in each state, for each parameter, and draws the sum of their reports.

    `dimension` is the number of parameters, and `capacity` the largest number of clients. The
    counts are the clients' private data, so only simulations may use this class.
    """

    def __init__(self, dimension: int, cells: int, capacity: int) -> None:
        self.clients = 0
        self._capacity = capacity
        self._cells = cells
        self._counts: _Counts = np.zeros((dimension, 2 * cells + 1), np.min_scalar_type(capacity))
        self._waiting: States = np.empty((_TOGETHER, dimension), np.int16)
        self._uncounted = 0

    def add(self, states: States) -> None:
        """Count one more client.

        `states` has the client's state for each parameter: the parameter's value, rounded to a
        whole number from -cells to cells. `cells` is the number given to the constructor.
        """
        self._claim(1)
        self._waiting[self._uncounted] = states
        self._uncounted += 1
        if self._uncounted == _TOGETHER:
            self._count_waiting()

    def merge(self, other: CohortSum) -> None:
        self._claim(other.clients)
        other._count_waiting()
        self._counts += other._counts

    def _count_waiting(self) -> None:
        _count(self._counts, self._waiting[: self._uncounted], self._cells)
        self._uncounted = 0

    def _claim(self, clients: int) -> None:
        if self.clients + clients > self._capacity:
            raise ValueError(f"more than {self._capacity} clients in one cohort")
        self.clients += clients

    def draw(self, p: Fraction, q: Fraction, entropy: Entropy) -> Int64s:
        """Return an exact draw of the sum of all clients' reports, for every parameter.

        A client's state is a whole number. The client reports the sum of the states whose bits are
        1 in its perturbed one-hot code. The bit of the client's own state is 1 with probability p,
        any other bit with probability q.
        """
        self._count_waiting()
        total = np.zeros(len(self._counts), np.int64)
        own, other = Binomial(p), Binomial(q)
        for column in range(2 * self._cells + 1):
            ones = other.draw(self.clients, len(total), entropy)
            here = np.ascontiguousarray(self._counts[:, column])
            taken = np.flatnonzero(here)
            inside = here[taken].astype(np.int64)
            ones[taken] = other.draw_each(self.clients - inside, entropy)
            ones[taken] += own.draw_each(inside, entropy)
            total += (column - self._cells) * ones
        return total


def _count_numpy(counts: _Counts, clients: States, cells: int) -> None:
    parameters = np.arange(len(counts))
    for states in clients:
        counts[parameters, states.astype(np.int64) + cells] += 1


@compiled(_count_numpy)
def _count(counts: _Counts, clients: States, cells: int) -> None:
    """Count the states of each of the `clients`, a row of states for each of them."""
    for i in range(len(counts)):
        for client in range(len(clients)):
            counts[i, clients[client, i] + cells] += 1
