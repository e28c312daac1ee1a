"""Tasks for the tests of parties on machines of their own, here threads or processes."""

from __future__ import annotations

from vertical_parts import Bottoms, UShape

#: How wide each follower's bottom is; a test makes it another where it wants another model.
WIDTH = 8


class Wide(Bottoms):
    """As `Bottoms`, with bottoms of a width that a job does not tell."""

    @property
    def width(self) -> int:  # type: ignore[override]
        return WIDTH


class Plain(UShape):
    """A U-shape without dropout: parties that are threads would share torch's one generator."""

    dropouts = ()


def bottoms(seed: int) -> Wide:
    return Wide(seed)


def u_shape(seed: int) -> Plain:
    return Plain(seed)
