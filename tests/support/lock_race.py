"""A process that waits for a file's lock while another process changes the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from fedveil.base.files import locked


def overtaken(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, other: Callable[[], object]
) -> None:
    """Play `other`, once, while the next user of a lock in `module` waits for this lock."""

    @contextmanager
    def waits(path: Path) -> Iterator[None]:
        monkeypatch.setattr(module, "locked", locked)
        other()
        with locked(path):
            yield

    monkeypatch.setattr(module, "locked", waits)


def is_locked(path: Path) -> bool:
    try:
        with locked(path, wait=False):
            return False
    except BlockingIOError:
        return True
