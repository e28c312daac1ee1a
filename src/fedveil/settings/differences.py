"""The differences between two nested mappings of settings, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedveil.settings import allowed

_NOTHING: Any = object()


def differences(these: Any, those: Any, place: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, this value, that value) for each key in which `these` and `those` differ.

    Paths are dotted and begin with `place`. Values are written as YAML.
    """
    if not (isinstance(these, Mapping) and isinstance(those, Mapping)):
        if these != those:
            yield place, _shown(these), _shown(those)
        return
    for key in [*those, *(key for key in these if key not in those)]:
        inner = f"{place}.{key}" if place else str(key)
        yield from differences(these.get(key, _NOTHING), those.get(key, _NOTHING), inner)


def _shown(value: Any) -> str:
    return "nothing" if value is _NOTHING else allowed.shown(value)
