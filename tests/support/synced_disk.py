"""A disk that a power failure may hit: it has only what a process has waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class SyncedDisk:
    """Remembers each content of the file `path` that a process has synchronised with the disk."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents = [b""]
        sync = os.fsync

        def synced(descriptor: int) -> None:
            sync(descriptor)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                self.contents.append(path.read_bytes())

        monkeypatch.setattr(os, "fsync", synced)

    @property
    def content(self) -> bytes:
        """The content of the file after a power failure."""
        return self.contents[-1]
