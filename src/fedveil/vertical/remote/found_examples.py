"""The common examples of all parties, saved so that the parties align only once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedveil.base.message import take
from fedveil.errors import MessageInvalid
from fedveil.record.sealed_message import sealed, unsealed
from fedveil.vertical.rows import Ids, Positions
from fedveil.vertical.task import SUBSETS, Subset

NAME_BYTES = 16


@dataclass(frozen=True, eq=False)
class FoundExamples:
    """Positions of the common examples in a party's data, in the order that all parties use.

    `name` identifies the alignment in which all parties found these examples.
    """

    name: bytes
    positions: Mapping[Subset, Positions]

    def to_bytes(self, ids: Mapping[Subset, Ids]) -> bytes:
        """Return the content of a file with these examples and a digest of `ids`.

        `ids` are all ids of this party. `from_bytes` returns the examples only for the same ids.
        """
        rows = {f"rows_{subset}": self.positions[subset] for subset in SUBSETS}
        return sealed({"name": self.name, "ids": _digest(ids), **rows})

    @classmethod
    def from_bytes(cls, raw: bytes, ids: Mapping[Subset, Ids]) -> FoundExamples | None:
        """Decode saved examples. Returns None if the party's `ids` have changed since.

        `raw` is the file's content. Raises `MessageInvalid` if the file is damaged.
        """
        kept = unsealed(raw)
        if take(kept, "ids", bytes) != _digest(ids):
            return None
        positions = {subset: take(kept, f"rows_{subset}", np.ndarray) for subset in SUBSETS}
        for subset, rows in positions.items():
            held = len(ids[subset])
            if rows.dtype != np.int64 or rows.ndim != 1:
                raise MessageInvalid(f"its {subset} rows are not an array of positions")
            if held and len(rows) and not 0 <= rows.min() <= rows.max() < held:
                raise MessageInvalid(f"its {subset} rows are not positions among the {held} here")
        return cls(take(kept, "name", bytes), {s: rows.copy() for s, rows in positions.items()})


def _digest(ids: Mapping[Subset, Ids]) -> bytes:
    digest = hashlib.sha256()
    for subset in SUBSETS:
        digest.update(f"{subset} {ids[subset].dtype} {len(ids[subset])}\n".encode())
        digest.update(np.ascontiguousarray(ids[subset]).view(np.uint8).data)
    return digest.digest()
