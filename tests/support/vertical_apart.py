"""Tasks for the tests of parties on separate machines, simulated by threads or processes."""

from __future__ import annotations

from vertical_parts import Bottoms, UShape

#: The width of each follower's bottom. A test changes it to get another model.
WIDTH = 8


class Wide(Bottoms):
    """`Bottoms` with a width that is not in the job."""

    @property
    def width(self) -> int:  # type: ignore[override]
        return WIDTH


class Plain(UShape):
    """A U-shape without dropout, since parties in threads would share torch's one generator."""

    dropouts = ()


def bottoms(seed: int) -> Wide:
    return Wide(seed)


def u_shape(seed: int) -> Plain:
    return Plain(seed)
