"""How a leader and its followers find the examples that all hold, by ids that are blinded.

For every subset, with the leader's exponent k and a follower's l (`blinding`), in batches:

    blinded   leader -> follower   H(y)^k of the leader's ids, in its order
    raised    follower -> leader   the same to the power of l; and H(x)^l of the follower's ids, in
                                   an order that it draws

The leader raises the latter to the power of k and compares: H(x)^(l k) = H(y)^(k l) where x = y.
It then tells each follower which of its ids, in the drawn order, all parties hold.

What each learns, if both keep to the protocol:

- the leader: how many ids a follower has, and which of its own ids the follower holds;
- a follower: how many ids the leader has, and which of its own ids all parties hold, in the order
  in which the leader has them. Nothing of another follower.

A party that does not keep to it may bring ids that it guesses and learns of each whether the other
has it, a follower only of those that all hold. So many guesses as it brings ids: they are counted
over all attempts of a process, and each party refuses more than its job's `alignment.most_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedveil.entropy import Secure
from fedveil.errors import MessageInvalid, Unfit
from fedveil.link.channel import Exchange, Send, received
from fedveil.message import Message, Value, take, take_array
from fedveil.vertical.apart.blinding import POINT_BYTES, Blinding, Points
from fedveil.vertical.rows import Ids, Positions
from fedveil.vertical.task import SUBSETS, Subset

#: So many ids travel at a time, while as many are raised on either side.
BATCH = 1 << 12

#: By subset.
Counts = Mapping[Subset, int]
Order = Mapping[Subset, Positions]


def lead(
    ids: Mapping[Subset, Ids], counts: Mapping[str, Counts], attempt: int
) -> Exchange[Mapping[Subset, Mapping[str, Positions]]]:
    """Where each follower has each of the leader's ids, in the order that it drew; -1: nowhere.

    `counts` is how many ids each follower has said that it has; where it or the leader has none,
    there is nothing to find. Raises Unfit.
    """
    blinding = Blinding(Secure())
    found: dict[Subset, Mapping[str, Positions]] = {}
    for subset in SUBSETS:
        having = {name: held[subset] for name, held in counts.items() if held[subset]}
        table = _Table(ids[subset], having if len(ids[subset]) else {}, subset)
        found[subset] = yield from table.filled(blinding, attempt)
    return found


def follow(
    ids: Mapping[Subset, Ids], leads: Counts, leader: str, attempt: int, first: Message
) -> Exchange[tuple[Message, Order]]:
    """The leader's next message of another kind, and the order that was drawn.

    `leads` is how many ids the leader has said that it has; `first` its first message. Raises
    `MessageInvalid`.
    """
    blinding, message = Blinding(Secure()), first
    order = {subset: Secure().permutation(len(ids[subset])) for subset in SUBSETS}
    for subset in SUBSETS:
        shuffled = ids[subset][order[subset]]
        both = leads[subset] and len(shuffled)
        for start in range(0, max(leads[subset], len(shuffled)) if both else 0, BATCH):
            if message.get("kind") != "blinded":
                return message, order
            theirs = _points(message, "points", _size(leads[subset], start))
            answer: dict[str, Value] = {
                "kind": "raised",
                "attempt": attempt,
                "raised": blinding.raised(theirs),
                "blinded": blinding.blinded(shuffled[start : start + BATCH], subset),
            }
            yield Send(leader, answer)
            message = yield from received(leader)
    return message, order


@dataclass(frozen=True, eq=False)
class _Table:
    """What the leader makes of one subset; `counts` are those of the followers that take part."""

    ids: Ids
    counts: Mapping[str, int]
    subset: Subset

    def filled(self, blinding: Blinding, attempt: int) -> Exchange[Mapping[str, Positions]]:
        """A batch is on its way to every follower while the one before is raised here."""
        raised = {name: np.empty((len(self.ids), POINT_BYTES), np.uint8) for name in self.counts}
        theirs = {name: np.empty((n, POINT_BYTES), np.uint8) for name, n in self.counts.items()}
        ends = {name: max(len(self.ids), count) for name, count in self.counts.items()}
        last = max(ends.values(), default=0)
        for start in range(0, last + BATCH, BATCH):
            if start < last:
                points = blinding.blinded(self.ids[start : start + BATCH], self.subset)
                message: dict[str, Value] = {"kind": "blinded", "points": points}
                for name in [name for name, end in ends.items() if start < end]:
                    yield Send(name, message)
            before = start - BATCH
            for name in [name for name, end in ends.items() if 0 <= before < end]:
                own, other = yield from self._answered(name, attempt, before, blinding)
                raised[name][before : before + BATCH] = own
                theirs[name][before : before + BATCH] = other
        return {name: self._matched(name, raised[name], theirs[name]) for name in self.counts}

    def _answered(
        self, follower: str, attempt: int, start: int, blinding: Blinding
    ) -> Exchange[tuple[Points, Points]]:
        message = yield from received(follower)
        try:
            if take(message, "kind", str) != "raised":
                raise MessageInvalid(f"it sent {message['kind']!r} where 'raised' was due")
            if (answered := take(message, "attempt", int)) != attempt:
                raise MessageInvalid(f"it answers attempt {answered}, not {attempt}")
            own = _points(message, "raised", _size(len(self.ids), start))
            blinded = _points(message, "blinded", _size(self.counts[follower], start))
            return own, blinding.raised(blinded)
        except MessageInvalid as error:
            raise Unfit(
                follower, f"{follower} does not align as a follower does: {error}"
            ) from None

    def _matched(self, follower: str, own: Points, theirs: Points) -> Positions:
        """Where each of `own` is among `theirs`."""
        mine, others = _as_values(own), _as_values(theirs)
        order = np.argsort(others, kind="stable")
        sorted_others = others[order]
        if (sorted_others[1:] == sorted_others[:-1]).any():
            raise Unfit(follower, f"{follower} has a {self.subset} id twice")
        place = np.minimum(np.searchsorted(sorted_others, mine), len(others) - 1)
        return np.where(sorted_others[place] == mine, order[place], -1)


def _size(count: int, start: int) -> int:
    return max(0, min(BATCH, count - start))


def _points(message: Message, name: str, count: int) -> Points:
    return take_array(message, name, "uint8", (count, POINT_BYTES))


def _as_values(points: Points) -> npt.NDArray[np.bytes_]:
    """The points as values that NumPy can sort: their width is the same, so no two become one."""
    return np.ascontiguousarray(points).view(f"S{POINT_BYTES}").reshape(-1)
