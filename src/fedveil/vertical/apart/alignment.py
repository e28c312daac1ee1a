"""How parties on different machines find the examples that all hold; the leader's order rules.

A follower does not send its ids but a keyed digest of each, under a key that the leader draws
anew every time. What it reveals:

- the leader learns which of its own examples each follower holds, and how many others a follower
  has; an id that it does not hold it learns only by guessing it (ids from a small range, such as
  consecutive numbers, are all guessed at once);
- a follower learns which of its own examples are held by all parties, their order at the leader,
  and nothing of any other id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.vertical.rows import Ids, Positions, align

KEY_BYTES = 32
DIGEST_BYTES = 16

Digests = npt.NDArray[np.uint8]


#: Where each party has the examples of one subset that all hold, and a sentence for every follower
#: whose examples are not the leader's.
Aligned: TypeAlias = tuple[Mapping[str, Positions], list[str]]


def align_digests(held: Mapping[str, Digests], leader: str, subset: str) -> Aligned:
    """The alignment of parties by the digests of their ids, none twice in one party's."""
    ids = {party: _as_ids(rows) for party, rows in held.items()}
    positions = align(ids, leader)
    own, used = ids[leader], len(positions[leader])
    notes = []
    for party, theirs in ids.items():
        if party == leader or not len(theirs):
            continue
        lacks = len(own) - int(np.isin(own, theirs).sum())
        others = len(theirs) - int(np.isin(theirs, own).sum())
        if lacks or others:
            notes.append(
                f"{subset}: {party} lacks {lacks:,} of the {len(own):,} examples of {leader} and "
                f"has {others:,} others; the {used:,} that all hold are used, and no others"
            )
    return positions, notes


def digests(ids: Ids, key: bytes) -> Digests:
    """A row of 16 bytes for each id; whole numbers and texts have nothing in common."""
    texts: Iterable[bytes]
    if ids.dtype.kind == "U":
        texts = (b"text " + text.encode() for text in ids.tolist())
    else:
        texts = (b"number %d" % number for number in ids.tolist())
    joined = b"".join(
        hashlib.blake2b(text, key=key, digest_size=DIGEST_BYTES).digest() for text in texts
    )
    return np.frombuffer(joined, np.uint8).reshape(-1, DIGEST_BYTES)


def holds_twice(rows: Digests) -> bool:
    return len(np.unique(_as_ids(rows))) < len(rows)


def _as_ids(rows: Digests) -> npt.NDArray[np.bytes_]:
    """The digests as values that NumPy can sort: their width is the same, so no two become one."""
    return np.ascontiguousarray(rows).view(f"S{DIGEST_BYTES}").reshape(-1)
