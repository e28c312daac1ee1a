"""Sends an answer at a fixed time after its request, however long the client works on it.

Otherwise the time of the answer would reveal something about a client's examples.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from fedveil.errors import ClientWithheld

T = TypeVar("T")
#: The share of the time in which training must finish. The rest is for the protection.
_TRAINING = 7 / 8


class FixedTime:
    """A context manager whose block lasts at least `seconds` seconds, even if it raises an error.

    If `seconds` is None, the block ends as soon as its code ends. If the block lasts longer than
    `seconds`, calls `late` at its end.
    """

    def __init__(self, seconds: float | None, late: Callable[[], None] | None = None) -> None:
        self._seconds, self._late = seconds, late
        self._given_up = threading.Event()

    @property
    def is_set(self) -> bool:
        return self._seconds is not None

    def given_up(self) -> bool:
        """Return True once the result of a training is discarded, so that it may end early."""
        return self._given_up.is_set()

    def __enter__(self) -> FixedTime:
        self._asked = time.monotonic()
        return self

    def __exit__(self, *error: object) -> None:
        if self._seconds is None:
            return
        left = self._left(self._seconds)
        if left == 0 and self._late is not None:
            self._late()
        time.sleep(left)

    def trained(self, train: Callable[[], T]) -> T:
        """Return the result of `train`, or raise its exception.

        If a time is fixed, and `train` has not ended after 7/8 of it, raises `ClientWithheld` and
        discards the result.
        """
        if self._seconds is None:
            return train()
        work = _Work(train)
        work.join(self._left(_TRAINING * self._seconds))
        if work.is_alive():
            self._given_up.set()
            raise ClientWithheld(
                f"training was not ready within {_TRAINING:.0%} of answer_after_s = "
                f"{self._seconds:g} s: a longer time is needed"
            )
        return work.result()

    def _left(self, seconds: float) -> float:
        return max(0.0, self._asked + seconds - time.monotonic())


class _Work(threading.Thread, Generic[T]):
    """A function call in a thread of its own. The thread does not keep the process alive."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._given: list[T] = []
        self._raised: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._given.append(self._call())
        except BaseException as error:  # raised again in `result`
            self._raised = error

    def result(self) -> T:
        if self._raised is not None:
            raise self._raised
        return self._given[0]
