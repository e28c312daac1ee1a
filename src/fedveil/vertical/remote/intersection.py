"""Intersection: a leader and its followers find their common examples by blinded ids.

For every set of examples, such as the training examples, the parties send in batches (k and l are
the exponents of leader and follower, see `blinding`):

    blinded   leader -> follower   H(y)^k of the leader's ids y, in an order that the leader draws
    raised    follower -> leader   H(y)^(k l), a proof of their exponent, and H(x)^l of the
                                   follower's ids x, in an order that the follower draws

The leader raises H(x)^l to the power of k and compares: H(x)^(l k) = H(y)^(k l) if x = y. The
leader then tells each follower which of the follower's ids all parties have. Both sides prove
(`exponent_proof`) that they claim no id which they do not know:

- A follower proves in every message that it raised all of the leader's points to one exponent.
  Otherwise a follower that has guessed one id y and its place could send H(y)^(k a) and H(y)^a for
  many exponents a, and every row of the leader would match.
- The leader proves that it has sent each of the ids that it says all parties have.

The leader's proof shows the follower at which place the leader sent each of these ids. Both sides
draw the order in which they send ids. In the order of a sorted file, the places would reveal how
many other ids the file has between two common ids.

If both follow the protocol, they learn:

- the leader: how many ids a follower has, and which of the leader's own ids it has;
- a follower: how many ids the leader has, and which of the follower's own ids all parties have, in
  the leader's order. It learns nothing else about other followers.

A dishonest party may send guessed ids. A leader learns for each guess if the follower has the id. A
follower learns only which guesses all parties have. So each party accepts at most
`alignment.most_ids` ids from another party, over all attempts and restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fedveil.base.array_types import Array, are_distinct, row_values
from fedveil.base.message import Message, Value, check_kind, take, take_array, text_in
from fedveil.entropy import Secure
from fedveil.errors import MessageInvalid, Unfit
from fedveil.link.channel import Exchange, Send, received
from fedveil.vertical.remote.blinding import Blinding, check_raised
from fedveil.vertical.ristretto.point_batches import POINT_BYTES, Points
from fedveil.vertical.rows import Ids, Positions

#: The number of ids in a message. Both sides can process a batch of this size at the same time.
BATCH = 1 << 12

#: The name of a set of examples: a subset of the task, or the rows to score.
Set: TypeAlias = Any
#: The number of ids, by set.
Counts = Mapping[Set, int]


@dataclass(frozen=True, eq=False)
class Found:
    """The leader's result of the exchange: which of the leader's ids each follower has.

    Each follower sends its own ids in an order that it draws. `places[subset][follower]` has, for
    each of the leader's ids, the id's position in the follower's order, or -1 if the follower does
    not have the id. `subset` names a set of examples, such as "train". The other fields have the
    values from which `proof` computes the leader's proof for a follower.
    """

    places: Mapping[Set, Mapping[str, Positions]]
    _raised: Mapping[Set, Mapping[str, tuple[Points, Points]]]
    _blinding: Blinding

    def proof(self, subset: str, follower: str, rows: Positions) -> dict[str, Value]:
        """Return message fields that prove to `follower` that the leader has certain ids.

        The ids are the follower's, of the set of examples `subset`, such as "train". `rows` are
        their positions in the order in which the follower sent its ids of this set. Returns {} if
        no ids of this set were exchanged with the follower.
        """
        if follower not in self._raised[subset]:
            return {}
        theirs, raised = (points[rows] for points in self._raised[subset][follower])
        return {
            f"shown_{subset}": raised,
            f"proof_{subset}": self._blinding.proved(theirs, raised, subset),
            "commitment": self._blinding.commitment,
        }


@dataclass(frozen=True, eq=False)
class Exchanged:
    """A follower's record of the exchange for one set of examples, such as the training examples.

    `own` are the follower's blinded ids as it sent them, in the order `order`. `raised` are the
    leader's blinded ids to the power of the follower's exponent.
    """

    order: Positions
    own: Points
    raised: Points

    def check(self, subset: str, rows: Positions, agreed: Message) -> None:
        """Check the leader's proof that the leader has sent certain ids of this follower.

        `subset` names the set of examples, such as "train". `rows` are the positions of the ids in
        the order in which the follower sent its ids. `agreed` is the leader's message with the
        proof. Raises `MessageInvalid` if the proof is invalid.
        """
        if len(rows) > len(self.raised):
            raise MessageInvalid(
                f"it claims {len(rows)} {subset} examples, but has brought {len(self.raised)} ids"
            )
        shown = _points(agreed, f"shown_{subset}", len(rows))
        places, _ = _found(shown, self.raised)
        if (places < 0).any() or not are_distinct(places):
            raise MessageInvalid(f"it claims {subset} examples whose ids it has not brought")
        check_raised(
            take(agreed, "commitment", bytes), self.own[rows], shown,
            take(agreed, f"proof_{subset}", bytes), subset,
        )  # fmt: skip


def lead(ids: Mapping[Set, Ids], counts: Mapping[str, Counts], attempt: int) -> Exchange[Found]:
    """Find the leader's ids among each follower's ids, by exchanging blinded ids.

    `ids` has the leader's ids of each set of examples. `counts` has each follower's stated number
    of ids. Answers must repeat the number `attempt`. Raises Unfit for an invalid answer.
    """
    blinding = Blinding(Secure())
    places: dict[Set, Mapping[str, Positions]] = {}
    raised: dict[Set, Mapping[str, tuple[Points, Points]]] = {}
    for subset in ids:
        having = {name: held[subset] for name, held in counts.items() if held[subset]}
        order = Secure().permutation(len(ids[subset]))
        table = _Table(ids[subset][order], having if len(ids[subset]) else {}, subset)
        found, raised[subset] = yield from table.filled(blinding, attempt)
        own = np.argsort(order)  # the place at which each id was sent
        places[subset] = {name: held[own] for name, held in found.items()}
    return Found(places, raised, blinding)


def follow(
    ids: Mapping[Set, Ids], leads: Counts, leader: str, attempt: int, first: Message
) -> Exchange[tuple[Message, Mapping[Set, Exchanged]]]:
    """Run a follower's side of the exchange of blinded ids.

    `ids` has the follower's ids of each set of examples, and `leads` the leader's stated numbers of
    ids. Returns the leader's last message, and a record of the exchange for each set. A set has no
    record if one side has no ids of it, or if the leader breaks off. `first` is the leader's first
    message, and answers repeat the number `attempt`. Raises `MessageInvalid` for an invalid message
    of the leader.
    """
    blinding, message = Blinding(Secure()), first
    done: dict[Set, Exchanged] = {}
    for subset in ids:
        order = Secure().permutation(len(ids[subset]))
        if not (leads[subset] and len(order)):
            continue
        own, raised = _empty(len(order)), _empty(leads[subset])
        for start in range(0, max(leads[subset], len(order)), BATCH):
            if text_in(message, "kind") != "blinded":
                return message, done
            theirs = _points(message, "points", _size(leads[subset], start))
            batch = slice(start, start + BATCH)
            raised[batch] = powers = blinding.raised(theirs)
            own[batch] = blinding.blinded(ids[subset][order[batch]], subset)
            answer: dict[str, Value] = {
                "kind": "raised",
                "attempt": attempt,
                "raised": powers,
                "blinded": own[batch],
                **_shown(blinding, theirs, powers, subset),
            }
            yield Send(leader, answer)
            message = yield from received(leader)
        done[subset] = Exchanged(order, own, raised)
    return message, done


@dataclass(frozen=True, eq=False)
class _Table:
    """Matches the leader's ids with each follower's ids, for one set of examples.

    `ids` are the leader's ids in the order in which they are sent. `subset` is the name of this
    set, such as "train".
    """

    ids: Ids
    counts: Mapping[str, int]
    subset: str

    def filled(
        self, blinding: Blinding, attempt: int
    ) -> Exchange[tuple[Mapping[str, Positions], Mapping[str, tuple[Points, Points]]]]:
        """Exchange blinded ids with all followers. Returns two mappings by follower.

        The first has the position of each of the leader's ids among the follower's ids, or -1. The
        second has the follower's blinded ids as sent, and the same ids raised to the leader's
        exponent. `blinding` has this exponent. Answers must repeat the number `attempt`.
        """
        sent = {name: _empty(count) for name, count in self.counts.items()}
        raised = {name: _empty(len(self.ids)) for name in self.counts}
        theirs = {name: _empty(count) for name, count in self.counts.items()}
        ends = {name: max(len(self.ids), count) for name, count in self.counts.items()}
        last, points = max(ends.values(), default=0), _empty(0)
        for start in range(0, last + BATCH, BATCH):
            asked = points
            if start < last:
                points = blinding.blinded(self.ids[start : start + BATCH], self.subset)
                message: dict[str, Value] = {"kind": "blinded", "points": points}
                for name in [name for name, end in ends.items() if start < end]:
                    yield Send(name, message)
            before = start - BATCH
            for name in [name for name, end in ends.items() if 0 <= before < end]:
                own, theirs_as_sent = yield from self._answered(name, attempt, before, asked)
                raised[name][before : before + BATCH] = own
                sent[name][before : before + BATCH] = theirs_as_sent
                theirs[name][before : before + BATCH] = self._raised(name, blinding, theirs_as_sent)
        places = {name: self._matched(name, raised[name], theirs[name]) for name in self.counts}
        return places, {name: (sent[name], theirs[name]) for name in self.counts}

    def _answered(
        self, follower: str, attempt: int, start: int, asked: Points
    ) -> Exchange[tuple[Points, Points]]:
        """Receive a follower's answer to `asked`, a batch of the leader's blinded ids.

        The batch begins with the id at the position `start`. Returns `asked` raised to the
        follower's exponent, and the follower's own blinded ids from `start` on. Raises Unfit for an
        invalid answer. `attempt` is the number of the attempt.
        """
        message = yield from received(follower)
        try:
            check_kind(message, "raised")
            if (answered := take(message, "attempt", int)) != attempt:
                raise MessageInvalid(f"it answers attempt {answered}, not {attempt}")
            own = _points(message, "raised", len(asked))
            _check_shown(message, asked, own, self.subset)
            return own, _points(message, "blinded", _size(self.counts[follower], start))
        except MessageInvalid as error:
            raise self._unfit(follower, error) from None

    def _raised(self, follower: str, blinding: Blinding, points: Points) -> Points:
        try:
            return blinding.raised(points)
        except MessageInvalid as error:
            raise self._unfit(follower, error) from None

    def _unfit(self, follower: str, error: MessageInvalid) -> Unfit:
        return Unfit(follower, f"{follower} broke the alignment: {error}")

    def _matched(self, follower: str, own: Points, theirs: Points) -> Positions:
        places, repeated = _found(own, theirs)
        if repeated:
            raise Unfit(follower, f"{follower} has a {self.subset} id twice")
        return places


def _shown(blinding: Blinding, points: Points, raised: Points, subset: str) -> dict[str, Value]:
    """Return a follower's proof that `raised` are the leader's `points` to the follower's exponent.

    Returns {} if there are no points.
    """
    if not len(points):
        return {}
    proof = blinding.proved(points, raised, _raising(subset))
    return {"commitment": blinding.commitment, "proof": proof}


def _check_shown(message: Message, points: Points, raised: Points, subset: str) -> None:
    """Raise `MessageInvalid` unless a follower's `message` has the proof that `_shown` makes."""
    if len(points):
        commitment, proof = take(message, "commitment", bytes), take(message, "proof", bytes)
        check_raised(commitment, points, raised, proof, _raising(subset))


def _raising(subset: str) -> str:
    """Return the domain of a follower's proof.

    It differs from the domain of a leader's proof, so that a leader cannot pass off a follower's
    proof as its own.
    """
    return f"{subset}, raised by a follower"


def _found(points: Points, among: Points) -> tuple[Positions, bool]:
    """Return each point's position in `among`, or -1 if it is not there.

    The second result is True if `among` has some point twice.
    """
    for keys_of in (_beginnings, row_values):
        keys = keys_of(among)
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        if not (repeated := bool((keys[1:] == keys[:-1]).any())):
            break
    place = order[np.minimum(np.searchsorted(keys, keys_of(points)), len(order) - 1)]
    same = np.ones(len(points), bool)
    for own, other in zip(points.view("<u8").T, among.view("<u8").T, strict=True):
        same &= own == other[place]
    return np.where(same, place, -1), repeated


def _beginnings(points: Points) -> Array:
    beginnings: Array = points.view("<u8")[:, 0]
    return beginnings


def _empty(count: int) -> Points:
    return np.empty((count, POINT_BYTES), np.uint8)


def _size(count: int, start: int) -> int:
    return max(0, min(BATCH, count - start))


def _points(message: Message, name: str, count: int) -> Points:
    return take_array(message, name, "uint8", (count, POINT_BYTES))
