"""Progress lines for slow steps, so that a user sees that the program is still running."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from fedveil.errors import OutputLost

#: Without a terminal, the longest time in seconds without a line.
QUIET_S = 30.0


class Quiet:
    """Calls `say` each time that a slow step has printed nothing for another `every_s` seconds.

    `say` gets the number of seconds since the last output, and runs in a thread. Put the step into
    a `with` block, and call `heard` after each line that it prints.
    """

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
        """Note that a line was printed, and measure the time without output from now on."""
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
                with suppress(OutputLost):  # the slow step raises it with its own next line
                    self._say(quiet_s)
            said = times
