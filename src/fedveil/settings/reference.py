"""The reference page of a job's keys, made from the settings themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fedveil.settings.allowed import NAME, allowed, block_of, blocks_of, shown


def page(introduction: str, job: type[BaseModel], rules: Iterable[str]) -> str:
    """The page, in Markdown: the introduction, every key of `job`, what holds between them."""
    between = "\n".join(f"- {rule}" for rule in dict.fromkeys(rules))  # some hold in two places
    return "\n".join([introduction, *_tables(job), f"## Between keys\n\n{between}\n"])


def _tables(model: type[BaseModel], place: str = "") -> Iterator[str]:
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
        yield from _tables(block, key)


def _row(key: str, values: str, field: FieldInfo) -> str:
    default: object = field.get_default(call_default_factory=True)
    text = default if isinstance(default, str) else shown(default)
    return f"| `{key}` | {values} | `{text}` | {field.description or ''} |"
