"""The reference page of a job's keys, generated from the settings classes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedveil.errors import InvalidValue, nearest
from fedveil.settings.allowed import NAME, allowed, block_of, blocks_of, shown

#: A key's name and its table row without the key, for all rows so far -> the block's path.
_Told: TypeAlias = dict[tuple[str, str], str]
#: At least this many rows that already occur in an earlier block are replaced by a reference.
_ALIKE = 3


def page(introduction: str, job: type[BaseModel], rules: Iterable[str]) -> str:
    """Return the page in Markdown: the introduction, every key of `job`, and the rules."""
    # a rule may be registered for several keys
    between = "\n".join(f"- {rule}" for rule in dict.fromkeys(rules))
    return "\n".join([introduction, *_tables(job, "", {}), f"## Between keys\n\n{between}\n"])


def keys(page: str, part: str | None) -> str:
    """Format a reference page's keys for a terminal: all, or only the key or block `part`."""
    return "".join(
        f"{key}: as in {of['as_in']}\n"
        if "as_in" in of
        else f"{key}: {of['default']}\n    {of['allowed']}\n    {of['meaning']}\n"
        for key, of in key_rows(page, part).items()
    )


def key_rows(page: str, part: str | None) -> dict[str, dict[str, str]]:
    """Return the table rows of a reference page, by key. A row maps column names to texts.

    `part` is the key or block to return, or None for all keys. Raises `InvalidValue` if there is
    no such key or block.
    """
    said = dict(_said(page))
    asked = [key for key in said if part is None or f"{key}.".startswith(f"{part}.")]
    if not asked:
        blocks = {key.rpartition(".")[0]: None for key in said if "." in key}
        near = nearest(part or "", [*blocks, *said])
        raise InvalidValue(f"no key or block of a job is {part}{near}")
    return {key: {name: text.replace("`", "") for name, text in said[key].items()} for key in asked}


def _said(page: str) -> Iterator[tuple[str, dict[str, str]]]:
    for line in page.splitlines():
        if row := re.fullmatch(r"\| `(\S+)` \| (.*) \| `(.*)` \| (.*) \|", line):
            key, values, default, meaning = row.groups()
            yield key, {"default": default, "allowed": values, "meaning": meaning}
        elif ": as in `" in line:
            listed, _, block = line.rstrip(".").rpartition(": ")
            block = block.strip("`").removeprefix("as in `")
            yield from ((key.strip("`"), {"as_in": block}) for key in listed.split(", "))


def _tables(model: type[BaseModel], place: str, told: _Told) -> Iterator[str]:
    """Yield a Markdown table of the keys of `model`, then one for each block in it.

    `place` is the path of `model` in the job, or "" for the job itself. `told` maps each row of the
    tables so far to the path of its block, and gets the rows of the new tables. If a table repeats
    at least `_ALIKE` rows, the first of these is looked up in `told`, and all rows that come from
    the same block are replaced by a reference to it.
    """
    blocks = []
    title = f"### `{place}`" if place else "### At the top"
    lines = [title, "", inspect.cleandoc(model.__doc__ or "").partition("\n")[0], ""]
    rows: dict[str, str] = {}
    for name, field in model.model_fields.items():
        key = f"{place}.{name}" if place else name
        block, named = block_of(field), blocks_of(field)
        if block is None and named is None:
            rows[name] = _row(str(allowed(field)), field)
        elif named is not None:
            rows[name] = _row("a mapping of names to blocks", field)
            blocks.append((f"{key}.{NAME}", named))
        elif block is not None:
            if field.get_default(call_default_factory=True) is None:
                rows[name] = _row("a block of keys or null", field)
            blocks.append((key, block))
    before = [told[row] for row in rows.items() if row in told]
    if len(before) >= _ALIKE:
        alike = [name for name, row in rows.items() if told.get((name, row)) == before[0]]
        listed = ", ".join(f"`{place}.{name}`" for name in alike)
        lines += [f"{listed}: as in `{before[0]}`.", ""]
        rows = {name: row for name, row in rows.items() if name not in alike}
    if rows:
        inside = f"{place}." if place else ""
        lines += ["| key | allowed | default | meaning |", "|---|---|---|---|"]
        lines += [*(f"| `{inside}{name}` {row}" for name, row in rows.items()), ""]
    told.update(dict.fromkeys(rows.items(), place))
    yield "\n".join(lines)
    for key, block in blocks:
        yield from _tables(block, key, told)


def _row(values: str, field: FieldInfo) -> str:
    default: object = field.get_default(call_default_factory=True)
    text = default if isinstance(default, str) else shown(default)
    return f"| {values} | `{text}` | {field.description or ''} |"
