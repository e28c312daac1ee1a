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

A run is described by one YAML file, and every key in it may be left out. `fedveil job show` prints
a job with all of its keys. `fedveil run` without a file runs a job of its own, digits under
[distributed noise](mechanisms/distributed_dp.md), which `fedveil job show` without a file prints. A
key that a file leaves out has the value that it has here:

```yaml
{default}```

Everything is checked before anything starts, and every problem is reported at once, each in one
sentence with the key, its value and what is allowed. Unknown keys are errors. Nothing is converted:
`"3"` is text and not a number, `2.0` is no whole number, `true` is not 1. A key that is given twice
is an error; `1e-3` is a number.

## Setting keys from the command line

`--set KEY=VALUE` sets any key by its dotted path, as often as needed; the value is YAML.

- `--set training.lr=0.05 --set simulation.dropouts.masked=0.1` set single keys;
- `--set "training={{lr: 0.05, epochs: 2}}"` sets the keys that it names and keeps the others of the
  block;
- `--set protection=signds` picks a position of the switch with its defaults, and so does
  `protection: signds` in a file. The blocks of other positions stay as they are. `--set
  protection.name=signds` picks it with the block that the file holds.

Settings of whole blocks are applied before those of single keys, wherever they stand; of two for
one key the later one holds.

A file of MindSpore Federated's server can be given instead of a job: see
[mindspore.md](mindspore.md).

## Keys
"""


def reference() -> str:
    """The page, in Markdown."""
    return page(_INTRODUCTION.format(default=Job().to_yaml()), Job, RULES.texts())


if __name__ == "__main__":
    sys.stdout.write(reference())
