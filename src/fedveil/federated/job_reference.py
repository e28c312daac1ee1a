"""The reference of every key of a job, made from the settings themselves.

`python -m fedveil.federated.job_reference > docs/job.md` writes it anew; a test compares the two.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fedveil.federated import job_rules
from fedveil.federated.job import Job
from fedveil.settings.allowed import NAME, allowed, block_of, blocks_of

_INTRODUCTION = """\
# The job

A run is described by one YAML file, and every key in it may be left out. `fedveil job show` prints
a job with all of its keys; `fedveil run` without a file runs the default job:

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

_RULES = """\
## Between keys

"""


def reference() -> str:
    """The page, in Markdown."""
    parts = [_INTRODUCTION.format(default=Job().to_yaml())]
    parts += tables(Job)
    parts.append(rules(job_rules.RULES))
    return "\n".join(parts)


def rules(found: Iterable[Callable[..., Any]]) -> str:
    """What holds between keys, a line for each rule."""
    texts = (inspect.cleandoc(rule.__doc__ or "") for rule in found)
    return _RULES + "\n".join(f"- {' '.join(text.split())}" for text in texts) + "\n"


def tables(model: type[BaseModel], place: str = "") -> Iterator[str]:
    """A table of the values in `model`, then those of the blocks in it."""
    blocks = []
    title = f"### `{place}`" if place else "### At the top"
    lines = [title, "", inspect.cleandoc(model.__doc__ or "").partition("\n")[0], ""]
    lines += ["| key | allowed | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        key = f"{place}.{name}" if place else name
        block, named = block_of(field), blocks_of(field)
        if block is None and named is None:
            lines.append(_row(key, str(allowed(field)), field))
        elif named is not None:
            lines.append(_row(key, "a mapping of names to blocks", field))
            blocks.append((f"{key}.{NAME}", named))
        elif block is not None:
            if field.get_default(call_default_factory=True) is None:
                lines.append(_row(key, "a block of keys or null", field))
            blocks.append((key, block))
    yield "\n".join(lines) + "\n"
    for key, block in blocks:
        yield from tables(block, key)


def _row(key: str, values: str, field: FieldInfo) -> str:
    return f"| `{key}` | {values} | `{_default(field)}` | {field.description or ''} |"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        raise TypeError(f"{field!r} has no default")
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


if __name__ == "__main__":
    sys.stdout.write(reference())
