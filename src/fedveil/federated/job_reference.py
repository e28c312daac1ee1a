"""The reference of every key of a job, made from the settings themselves.

`python -m fedveil.federated.job_reference > docs/job.md` writes it anew; a test compares the two.
"""

from __future__ import annotations

import sys

from fedveil.federated.job import Job
from fedveil.federated.job_rules import RULES
from fedveil.settings.reference import page

_INTRODUCTION = """\
# The job

A key that [a job file](job-files.md) leaves out has the default below. `fedveil run` without a file
runs a job of its own, which `fedveil job show` without a file prints.

Everything is checked before anything starts, and every problem is reported at once. Unknown keys,
and keys given twice, are errors. Nothing is converted: `"3"` is no number, `2.0` no whole number,
`true` is not 1.

## Setting keys from the command line

`--set KEY=VALUE` sets any key by its dotted path, as often as needed; the value is YAML.

- `--set training.lr=0.05 --set simulation.dropouts.masked=0.1` set single keys;
- `--set "training={lr: 0.05, epochs: 2}"` sets the keys that it names and keeps the block's others;
- `--set protection=signds` picks a position with its defaults, as does `protection: signds` in a
  file; `--set protection.name=signds` picks it with the block that the file holds.

Whole blocks are set before single keys; of two settings of one key the later one holds.

## Keys
"""


def reference() -> str:
    """The page, in Markdown."""
    return page(_INTRODUCTION, Job, RULES.texts())


if __name__ == "__main__":
    sys.stdout.write(reference())
