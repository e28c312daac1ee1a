"""The terms in which MindSpore Federated describes a protection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """A protection's description in a MindSpore Federated server's configuration file.

    `theirs`: True if MindSpore Federated has this protection. Other protections may be written in
    the same form. `aliases`: other names of its parameters. `one_server`: why only one server is
    possible, or "". `uploads_as_they_are`: True if MindSpore Federated turns off the compression of
    uploads under this protection. `refused`: related MindSpore Federated protections, and why they
    are not supported.
    """

    theirs: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)
    one_server: str = ""
    uploads_as_they_are: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
