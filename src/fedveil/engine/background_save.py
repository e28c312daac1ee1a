"""Saves a round in a thread, while the next round is trained."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from fedveil.record.run_folder import uninterrupted


class BackgroundSave:
    """Runs one save at a time. As a context, it ends after the last save."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "save")
        self._running: Future[None] | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self.wait()

    def start(self, save: Callable[[], None]) -> None:
        self.wait()
        self._running = self._pool.submit(save)

    def wait(self) -> None:
        """Wait until the last save has ended. Raises its error, once."""
        with uninterrupted():
            running, self._running = self._running, None
            if running is not None:
                running.result()
