"""The differences between two nested mappings of settings, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedveil.settings import allowed

_NOTHING: Any = object()


def differences(
    these: Any, those: Any, place: str = "", *, exact: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Yield (path, this value, that value) for each key in which `these` and `those` differ.

    Paths are dotted and begin with `place`. Values are written as YAML.

    Two jobs without a difference may still have different digests. If `exact` is True, this
    function also yields what only a digest sees: another order of keys, and equal values of another
    type or sign, such as 0.0 and -0.0. Use it where files are named after digests. Otherwise, a
    server could write an agreed job in another way, and every account of the job would start again.
    """
    if not (isinstance(these, Mapping) and isinstance(those, Mapping)):
        # Unlike ==, repr distinguishes 0.0 from -0.0, 1 from true, and mappings by their order.
        if these != those or (exact and repr(these) != repr(those)):
            yield place, _shown(these), _shown(those)
        return
    if exact and these.keys() == those.keys() and [*these] != [*those]:
        yield place, _order(these), _order(those)
    for key in [*those, *(key for key in these if key not in those)]:
        inner = f"{place}.{key}" if place else str(key)
        mine, other = these.get(key, _NOTHING), those.get(key, _NOTHING)
        yield from differences(mine, other, inner, exact=exact)


def _shown(value: Any) -> str:
    return "nothing" if value is _NOTHING else allowed.shown(value)


def _order(keys: Mapping[Any, Any]) -> str:
    return f"in the order {allowed.shown([*keys])}"
