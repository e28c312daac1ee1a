"""What is said by something that takes long, so that nobody takes it for stuck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Where there is no terminal, no more seconds pass without a line.
QUIET_S = 30.0


class Quiet:
    """Says that a run goes on where nothing else was said for so many seconds."""

    def __init__(self, every_s: float, say: Callable[[float], None]) -> None:
        self._every_s, self._say = every_s, say
        self._end = threading.Event()
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._since = time.monotonic()
        self._thread.start()

    def __enter__(self) -> Quiet:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def heard(self) -> None:
        """Something else was said."""
        self._since = time.monotonic()

    def stop(self) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        said = 0
        while not self._end.wait(self._every_s / 8):
            quiet_s = time.monotonic() - self._since
            times = int(quiet_s / self._every_s)
            if times > said:
                self._say(quiet_s)
            said = times
