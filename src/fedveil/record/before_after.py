"""Compares a language model before and after its training: a metric, and continued prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedveil.base.untrusted import MOST_LINES_BYTES, read_text
from fedveil.record.run_folder import RunFolder

BEFORE_AFTER = "before-after.jsonl"


@dataclass(frozen=True)
class BeforeAfter:
    """A result before and after training: the value of a metric, or the continuation of a prompt.

    `kind` is "figure" for a metric, and "prompt" for a prompt. `what` is the metric's name, or the
    prompt.
    """

    kind: str
    what: str
    before: str
    after: str


def keep_before_after(folder: RunFolder, lines: Sequence[BeforeAfter]) -> None:
    text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
    folder.write_atomically(BEFORE_AFTER, text.encode())


def read_before_after(path: Path) -> list[BeforeAfter]:
    """Read the comparisons in the run folder `path`. Returns an empty list if none are saved.

    Call it within `sealed_message.intact`, which turns errors in the file into a `RunFolderError`.
    """
    file = path / BEFORE_AFTER
    if not file.exists():
        return []
    found = map(json.loads, read_text(file, MOST_LINES_BYTES).splitlines())
    names = ("kind", "what", "before", "after")
    return [BeforeAfter(*(str(line[name]) for name in names)) for line in found]
