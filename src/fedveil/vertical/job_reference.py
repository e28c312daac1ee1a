"""The reference page of all keys of a vertical job, generated from the settings."""

from __future__ import annotations

from fedveil.settings.reference import page
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.rules import RULES

_INTRODUCTION = """\
# The vertical job

A [vertical run](vertical.md) is described by one YAML file, the same for every party. A key that
it omits has the default below. `fedveil vertical show` prints all defaults, and `fedveil vertical
run` without a file uses them. The file is read like [the job of a federation](job.md). NAME below
is the name of a part or of a party: `--set parts.left.optimizer.lr=0.05`.

The parties compare their copies when they connect. All keys must be equal except {own}, and those
by which a task finds a party's own data.

## Keys
"""


def reference() -> str:
    own = [f"`{key}`" for key in VerticalJob.OWN_KEYS]
    introduction = _INTRODUCTION.format(own=f"{', '.join(own[:-1])} and {own[-1]}")
    return page(introduction, VerticalJob, RULES.texts())
