"""The reference page of all keys of a site's policy, generated from the settings."""

from __future__ import annotations

from fedveil.settings.reference import page
from fedveil.site.policy import RULES, Policy

_INTRODUCTION = """\
# The policy

What [a policy](site.md) leaves out has the default below. NAME is a name of the owner's choice.

## Keys
"""


def reference() -> str:
    """Return the reference page in Markdown."""
    return page(_INTRODUCTION, Policy, RULES.texts())
