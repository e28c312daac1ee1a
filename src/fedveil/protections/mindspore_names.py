"""How MindSpore Federated speaks of a position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """How a MindSpore Federated server's file speaks of a position, where that needs a word.

    `theirs`: whether it is one of their positions; the others are taken in their form too.
    `aliases`: their other names of parameters. `one_server`: why it has one server, where it must.
    `uploads_as_they_are`: their server switches the compression of uploads off by itself.
    `refused`: their further positions of the kind, and why they are not supported.
    """

    theirs: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)
    one_server: str = ""
    uploads_as_they_are: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
