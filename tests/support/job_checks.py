"""Functions shared by the tests of jobs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fedveil.errors import JobError
from fedveil.federated.job import Job
from folders import DATA

POSITIONS = (
    "not_encrypt", "dp_encrypt", "pw_encrypt", "central_gaussian", "signds", "rr", "oue",
)  # fmt: skip
T = TypeVar("T")


def load(text: str, *overrides: str) -> Job:
    """Load the job from a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_text(text, encoding="utf-8")
        return Job.load(path, overrides)


def problems(text: str, *overrides: str) -> list[str]:
    """Return the errors for a file with this text."""
    with pytest.raises(JobError) as caught:
        load(text, *overrides)
    return list(caught.value.problems)


def attempt(make: Callable[[], T]) -> tuple[T | None, tuple[str, ...]]:
    """Return the result of `make`, or None and the problems of a JobError."""
    try:
        return make(), ()
    except JobError as error:
        return None, error.problems


def at(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return the nested mapping with `value` at `path`."""
    for name in reversed(path):
        value = {name: value}
    return value


def vectors(name: str) -> list[tuple[str, str]]:
    """Return the pairs of lines in a data file."""
    _, *blocks = (DATA / name).read_text(encoding="utf-8").strip().split("\n\n")
    return [(text, sentence) for text, sentence in (block.split("\n") for block in blocks)]
