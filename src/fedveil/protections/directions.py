"""Declares in which direction each setting weakens a protection, so that a pin can be enforced.

A pin is a client's own demand on the settings. Every settings class lists its own fields in
`WEAKENS`:

    loss        its effect is in the loss of a report, which a pin compares anyway
    larger      a value larger than the pin's is weaker
    smaller     a value smaller than the pin's is weaker; false is smaller than true
    own         the protection's own `weaker` compares it
    none        no guarantee relies on it

A setting that is not listed, for example in a class of a user's own, must equal the pin's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from pydantic import BaseModel

Direction: TypeAlias = Literal["loss", "larger", "smaller", "own", "none"]


def directions(settings: type[BaseModel]) -> dict[str, Direction]:
    """Return the declared direction of each field, including fields of base classes."""
    found: dict[str, Direction] = {}
    for kind in reversed(settings.__mro__):
        declared: Mapping[str, Direction] = vars(kind).get("WEAKENS", {})
        found |= declared
    return found


def weakened(asked: BaseModel, demanded: BaseModel) -> str | None:
    """Return why `asked` is weaker than `demanded` in one of its settings, or None."""
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
