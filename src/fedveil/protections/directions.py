"""Says for each setting if a larger or a smaller value protects less, to check clients' pins.

A pin states a client's own demands on the settings. Each settings class lists its fields in
`WEAKENS`:

    loss        it affects a report's privacy loss: the losses are compared, not the settings
    larger      a value larger than the pin's protects less
    smaller     a value smaller than the pin's protects less; false is smaller than true
    own         the protection's own method `weaker` compares it
    none        it does not affect the guarantee

A setting that is not listed, as in a user's own class, must equal the pin's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import BaseModel

Direction: TypeAlias = Literal["loss", "larger", "smaller", "own", "none"]


def directions(settings: type[BaseModel]) -> dict[str, Direction]:
    """Return, for each field of a settings class, which change weakens the protection."""
    found: dict[str, Direction] = {}
    for kind in reversed(settings.__mro__):
        declared: Mapping[str, Direction] = vars(kind).get("WEAKENS", {})
        found |= declared
    return found


def weakened(asked: BaseModel, demanded: BaseModel) -> str | None:
    """Return why a setting in `asked` protects less than in `demanded`, or None if none does."""
    declared = directions(type(demanded))
    for name in type(demanded).model_fields:
        offered, wanted, direction = (
            getattr(asked, name),
            getattr(demanded, name),
            declared.get(name),
        )
        if direction is None and offered != wanted:
            return f"{name} is {offered}, {wanted} is demanded, and WEAKENS does not list it"
        if direction == "larger" and offered > wanted:
            return f"{name} is {offered}, but at most {wanted} is allowed here"
        if direction == "smaller" and offered < wanted:
            return f"{name} is {offered}, but at least {wanted} is required here"
    return None
