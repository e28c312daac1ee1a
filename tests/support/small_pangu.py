"""A language model that trains in a second, for the tests of its task and of generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedveil.tasks.pangu import Pangu
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.party import Party
from fedveil.vertical.task_settings import PanguSettings

SIZES = {"layers": 2, "width": 32, "heads": 2, "context": 16}


def small_job(path: Path, text: bytes, settings: str, *overrides: str) -> VerticalJob:
    """Return a job of such a model. It reads the folder of `path`, to which `text` is written."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    sizes = "".join(f"{key}: {value}, " for key, value in SIZES.items())
    task = f"task.pangu={{{sizes} {settings}, text: '{path.parent}'}}"
    return VerticalJob.load(None, ["task=pangu", task, *overrides])


def small_settings(context: int = 16) -> PanguSettings:
    return PanguSettings(**{**SIZES, "context": context, "tokenizer": "bytes"})


def parties(context: int = 16, **privacy: Any) -> tuple[Party, Party]:
    task = Pangu(small_settings(context), seed=5)
    split = task.split_model()
    if privacy:
        split = split.replace("embedding", **privacy)
    return Party("leader", split, loss=task.loss), Party("cloud", split)
