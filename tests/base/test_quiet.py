"""A slow step is heard of after each interval without a line, and a line restarts the interval."""

from __future__ import annotations

import threading
import time

import pytest

from fedveil.base import quiet
from fedveil.base.quiet import Quiet
from fedveil.errors import OutputLost


class Clock:
    """A clock that only a wait moves. It ends the wait at `end_s`, and prints lines on the way."""

    def __init__(self, end_s: float, printed: tuple[float, ...]) -> None:
        self.now_s, self.end_s, self.printed = 100.0, 100.0 + end_s, [100.0 + s for s in printed]
        self.watch: Quiet | None = None

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        if self.printed and self.now_s >= self.printed[0]:
            del self.printed[0]
            assert self.watch is not None
            self.watch.heard()
        return self.now_s >= self.end_s


@pytest.mark.parametrize(
    ("printed", "said"),
    [((), [8.0, 16.0, 24.0]), ((5.0,), [8.0, 16.0]), ((12.0,), [8.0, 8.0]), ((7.0, 14.0), [8.0])],
)
def test_silence_is_told_once_for_each_interval(
    printed: tuple[float, ...], said: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, heard = Clock(25.0, printed), list[float]()
    monkeypatch.setattr(quiet.time, "monotonic", lambda: clock.now_s)
    clock.watch = Quiet(8.0, heard.append)
    monkeypatch.setattr(clock.watch, "_end", clock)
    clock.watch._watch()
    assert heard == said


def test_lost_output_is_left_to_the_step_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread would otherwise print a traceback, and end."""
    clock, tried = Clock(25.0, ()), list[float]()

    def lost(seconds: float) -> None:
        tried.append(seconds)
        raise OutputLost("standard output cannot be written: No space left on device")

    monkeypatch.setattr(quiet.time, "monotonic", lambda: clock.now_s)
    watch = Quiet(8.0, lost)
    monkeypatch.setattr(watch, "_end", clock)
    watch._watch()
    assert tried == [8.0, 16.0, 24.0]


def test_silence_begins_with_the_step_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A display makes its watch before the first step starts."""
    clock, heard = Clock(25.0, ()), list[float]()
    monkeypatch.setattr(quiet.time, "monotonic", lambda: clock.now_s)
    watch = Quiet(8.0, heard.append)
    monkeypatch.setattr(watch, "_end", clock)
    clock.now_s, clock.end_s = 150.0, 175.0
    watch.start()
    watch._thread.join()
    assert heard == [8.0, 16.0, 24.0]


def test_a_line_is_whole_before_the_step_has_ended() -> None:
    begun, ended = threading.Event(), threading.Event()

    def slow(seconds: float) -> None:
        begun.set()
        time.sleep(0.2)
        ended.set()

    with Quiet(0.01, slow):
        assert begun.wait(30)
    assert ended.is_set()
