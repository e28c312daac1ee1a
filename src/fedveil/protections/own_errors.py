"""Reports an exception in a user's own protection as one sentence with its file and line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedveil.base.own_code import described, place_of
from fedveil.errors import FedveilError, ProtectionFailed
from fedveil.protections.base import Protection


@contextmanager
def own_errors(protection: Protection) -> Iterator[None]:
    """Turn an exception of a user's own protection in a `with` block into `ProtectionFailed`."""
    try:
        yield
    except FedveilError:
        raise
    except Exception as raised:
        place = place_of(raised)
        if place is None or type(protection).__module__.startswith("fedveil."):
            raise
        raise ProtectionFailed(
            f"{job_line(protection)}: it raised {described(raised)} ({place})"
        ) from raised


def job_line(protection: Protection) -> str:
    """Return the text "protection.name = MODULE:CLASS", which names the class of `protection`.

    Error messages about a user's own protection start with it.
    """
    kind = type(protection)
    return f"protection.name = {kind.__module__}:{kind.__qualname__}"
