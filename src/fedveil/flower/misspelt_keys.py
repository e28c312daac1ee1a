"""Refuses a node configuration with a misspelt key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from fedveil.errors import DeploymentError, did_you_mean

#: Keys that are less alike than this are not misspelt: they are of another app on the same node.
_ALIKE = 0.8


def refuse_misspelt(keys: Iterable[str], known: Sequence[str]) -> None:
    """Raise `DeploymentError` if one of the `keys` of a node configuration is almost in `known`.

    Without this check, a misspelt key would silently remove what its operator demands.
    """
    for key in keys:
        if key in known:
            continue
        if meant := get_close_matches(key.casefold(), known, 1, _ALIKE):
            raise DeploymentError(
                f"the node configuration has {key}, which is not a known key{did_you_mean(meant)}"
            )
