"""A changed key of a job, for the tests that change every key."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Case(NamedTuple):
    """A value that a key is changed to, in a job with these settings on top of the base.

    `refused`: what the refusal says, for a key whose other value cannot be used here.
    """

    value: Any
    under: Mapping[str, Any] = MappingProxyType({})
    refused: str | None = None
