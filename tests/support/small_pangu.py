"""A language model that trains in a second, for the tests of its task and of generation."""

from __future__ import annotations

from pathlib import Path

from fedveil.vertical.job import VerticalJob

SIZES = {"layers": 2, "width": 32, "heads": 2, "context": 16}


def small_job(path: Path, text: bytes, settings: str, *overrides: str) -> VerticalJob:
    """Return a job of such a model. It reads the folder of `path`, to which `text` is written."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    sizes = "".join(f"{key}: {value}, " for key, value in SIZES.items())
    task = f"task.pangu={{{sizes} {settings}, text: '{path.parent}'}}"
    return VerticalJob.load(None, ["task=pangu", task, *overrides])
