"""Finds the parts of a split model that compute on their owner's own data."""

from __future__ import annotations

from collections.abc import Iterable

from fedveil.vertical.split import Part


def of_own_data(parts: Iterable[Part]) -> frozenset[str]:
    """Return the names of the parts whose output is computed from columns of the part's owner.

    A part is included if it reads such columns, or the output of an included part of the same
    owner. Reading another party's output is no reason, even if that was computed from the owner's
    data.
    """
    by_name = {part.name: part for part in parts}
    found = {name for name, part in by_name.items() if part.columns}
    while True:
        more = {
            name
            for name, part in by_name.items()
            if name not in found
            and any(s in found and by_name[s].owner == part.owner for s in part.sources)
        }
        if not more:
            return frozenset(found)
        found |= more
