"""Alignment: how parties on different machines find their common examples.

There are two methods: `intersection` for secret ids, and `digests` for ids that are not secret.
Under `digests`, a follower sends a keyed digest of each id, with a new key each time. This reveals:

- to the leader: which of its own examples each follower has, how many other examples the follower
  has, and each of their ids that the leader can guess;
- to a follower: which of its own examples all parties have, in the leader's order, and nothing
  about any other id.

If the leader's file is sorted by its labels, the leader's order reveals labels. A leader whose job
protects labels therefore puts the common examples into an order that it draws (`_drawn_order`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import row_values
from fedveil.base.message import Message, quoted, text_in
from fedveil.base.quantity import quantity
from fedveil.base.text_digests import text_digests
from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid, FewCommon, Unfit
from fedveil.link.channel import Exchange, received
from fedveil.vertical.remote.blinding import kind_of
from fedveil.vertical.rows import Ids, Positions, align

KEY_BYTES = 32
DIGEST_BYTES = 16

Digests = npt.NDArray[np.uint8]


#: Each party's positions of the common examples of one subset, and a sentence for every follower
#: whose examples differ from the leader's.
Aligned: TypeAlias = tuple[Mapping[str, Positions], list[str]]


def application(follower: str, attempt: int) -> Exchange[Message]:
    """Receive and return the follower's message of the kind "apply" for attempt `attempt`.

    Attempts are numbered from 1. Skips messages that are left over from earlier attempts. Raises
    Unfit for any other message.
    """
    while True:
        message = yield from received(follower)
        kind, answered = text_in(message, "kind"), message.get("attempt")
        # Not isinstance, which accepts True as a number.
        number = answered if type(answered) is int and kind in ("apply", "raised") else 0
        if kind == "apply" and number == attempt:
            return message
        if attempt == 1 or number >= attempt:
            found = quoted(message.get("kind")) + (f" for attempt {number}" if number else "")
            raise Unfit(
                follower, f"{follower} sent {found} where 'apply' for attempt {attempt} was due"
            )


def align_digests(
    held: Mapping[str, Digests], leader: str, subset: str, order_secret: int | None = None
) -> Aligned:
    """Find the common examples of all parties by `held`, the digests of each party's ids.

    Returns the positions of the common examples in each party's data, and a sentence on each
    follower whose examples differ from the leader's. The sentences name the `subset`. The examples
    are in the leader's order, or in an order drawn from `order_secret`. Raises FewCommon if no
    example is common.
    """
    ids = {party: row_values(rows) for party, rows in held.items()}
    positions = align(ids, leader)
    sizes = {party: len(theirs) for party, theirs in ids.items()}
    shared = {party: int(np.isin(theirs, ids[leader]).sum()) for party, theirs in ids.items()}
    notes = _lacking(sizes, shared, len(positions[leader]), leader, subset)
    return _drawn_order(positions, subset, order_secret), notes


def align_found(
    found: Mapping[str, Positions],
    sizes: Mapping[str, int],
    leader: str,
    subset: str,
    order_secret: int | None = None,
) -> Aligned:
    """Find the common examples of all parties, given which of the leader's ids each follower has.

    `found[follower]` has the position of each of the leader's ids among the follower's examples, or
    -1 for an id that the follower does not have. `sizes` has each party's number of examples. A
    party with 0 examples has no data, and its parts run on all common examples.

    Returns the positions of the common examples in each party's data, and a sentence on each
    follower whose examples differ from the leader's. The sentences name the `subset`. The examples
    are in the leader's order, or in an order drawn from `order_secret`. Raises FewCommon if no
    example is common. Raises DataInvalid if no party has examples, or if only followers have
    examples and there are several of them.
    """
    having = [party for party in sizes if sizes[party]]
    if not having:
        raise DataInvalid("no party has any example")
    if not sizes[leader] and len(having) > 1:
        raise DataInvalid(
            f"{leader} has no {subset} ids, so it can align {', '.join(having)} only by "
            f"alignment.by = digests"
        )
    held = [places >= 0 for places in found.values()]
    used = np.flatnonzero(np.all(held, axis=0)) if held else np.arange(sizes[having[0]])
    if not len(used):
        raise FewCommon(f"no example is common to all of {', '.join(having)}")
    positions = dict.fromkeys(sizes, np.arange(len(used)))
    positions.update({party: places[used] for party, places in found.items()})
    if sizes[leader]:
        positions[leader] = used
    shared = {party: int((places >= 0).sum()) for party, places in found.items()}
    notes = _lacking(sizes, shared, len(used), leader, subset)
    return _drawn_order(positions, subset, order_secret), notes


def _drawn_order(
    positions: Mapping[str, Positions], subset: str, secret: int | None
) -> Mapping[str, Positions]:
    """Return the `positions` in an order that only the holder of `secret` can compute.

    The same number of examples gets the same order again, so that a run can be resumed after its
    parties have aligned anew. If `secret` is None, returns `positions` unchanged.
    """
    if secret is None:
        return positions
    count = len(next(iter(positions.values())))
    drawn = Seeded(secret, "order of examples", subset).permutation(count)
    return {party: rows[drawn] for party, rows in positions.items()}


def _lacking(
    sizes: Mapping[str, int], shared: Mapping[str, int], used: int, leader: str, subset: str
) -> list[str]:
    notes = []
    for party, size in sizes.items():
        if party == leader or not size or not sizes[leader]:
            continue
        lacks, others = sizes[leader] - shared[party], size - shared[party]
        if lacks or others:
            notes.append(
                f"{subset}: {party} lacks {lacks:,} of the {sizes[leader]:,} examples of "
                f"{leader} and has {quantity(others, 'other')}; only the {used:,} that all parties "
                f"have are used"
            )
    return notes


def digests(ids: Ids, key: bytes) -> Digests:
    """Return a digest of 16 bytes for each id, one per row, keyed with `key`."""
    return text_digests(ids.astype(np.str_), DIGEST_BYTES, key, kind_of(ids))


def holds_twice(rows: Digests) -> bool:
    return len(np.unique(row_values(rows))) < len(rows)
