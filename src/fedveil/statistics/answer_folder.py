"""The folder of an answer: the question file, the answers as JSON, and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedveil.base.plain_text import remark
from fedveil.base.untrusted import MOST_DATA_BYTES, read_text
from fedveil.errors import MissingExtra, RunFolderError
from fedveil.record.recorder import revived, strict
from fedveil.record.run_folder import RunFolder, uninterrupted
from fedveil.statistics.answer_page import page_of
from fedveil.statistics.answers import Answers

QUESTION, ANSWERS, PAGE = "question.yaml", "answers.json", "answers.html"


def keep(answers: Answers, folder: RunFolder) -> str | None:
    """Save the question file, the answers and the page in `folder`.

    Returns a text that says why there is no page, or None if there is one. If the answers cannot be
    saved, they are printed on standard error: their privacy cost is charged already.
    """
    text = json.dumps(strict(answers.data()), indent=2, allow_nan=False) + "\n"
    with uninterrupted():
        try:
            folder.write_atomically(QUESTION, answers.file.to_yaml().encode())
            folder.write_atomically(ANSWERS, text.encode())
        except RunFolderError:
            remark(text)
            raise
    try:
        folder.write_atomically(PAGE, page_of(answers).html().encode(errors="backslashreplace"))
    except MissingExtra as missing:
        return str(missing)
    return None


def saved(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = revived(json.loads(read_text(folder / ANSWERS, MOST_DATA_BYTES)))
    return found


def create(out: Path | None, name: str) -> RunFolder:
    return RunFolder.create(out, name, None)
