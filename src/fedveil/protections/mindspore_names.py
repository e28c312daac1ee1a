"""The names of protections and their parameters in MindSpore Federated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dialect:
    """The description of a protection in configuration files of MindSpore Federated.

    - `theirs` is True if MindSpore Federated has this protection.
    - `aliases` maps names of parameters in MindSpore Federated to their names in fedveil.
    - `one_server` is the reason why only one server is possible, or "".
    - `uploads_as_they_are` is True if MindSpore Federated does not compress uploads under this
      protection.
    - `refused` maps names of related protections in MindSpore Federated to the reason why fedveil
      does not support them.
    """

    theirs: bool = True
    aliases: Mapping[str, str] = field(default_factory=dict)
    one_server: str = ""
    uploads_as_they_are: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
