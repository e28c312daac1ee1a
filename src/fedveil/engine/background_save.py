"""Saves a round in a thread, while the next round is trained."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from fedveil.record.run_folder import uninterrupted


class BackgroundSave:
    """Runs one save at a time in a thread. The end of its `with` block waits for the last save."""

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
        """Wait until the running save has ended. Only the first call raises the save's error."""
        with uninterrupted():
            running, self._running = self._running, None
            if running is not None:
                running.result()
