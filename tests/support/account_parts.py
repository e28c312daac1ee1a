"""A site's account with a clock that a test sets, and releases to charge."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.site import account_counter, account_file
from fedveil.site.account import Limits, Release, SiteAccount

KEY = bytes(range(7, 39))
NOON = datetime(2031, 3, 30, 12, tzinfo=UTC)
DELTA = 3e-6
#: About 0.58 at DELTA.
NOISY = PrivacyLoss.of_release(Gaussian(7.5))
FREE = Limits(month=None, delta=DELTA)


class Place:
    """The folder of an account, its counter elsewhere, and a clock."""

    def __init__(self, root: Path, counter: bool = True) -> None:
        self.folder, self.counter = root / "site", root / "elsewhere" / "counter"
        self.counter.parent.mkdir(exist_ok=True)
        self.now = NOON
        self._counter = self.counter if counter else None

    def open(self, name: str = "adult", key: bytes = KEY) -> SiteAccount:
        return SiteAccount.open(
            self.folder, name, key=key, counter=self._counter, clock=lambda: self.now
        )

    def file(self, name: str = "adult") -> Path:
        return self.folder / f"{name}.account"


def release(*losses: PrivacyLoss, job: str = "heart", **changes: Any) -> Release:
    spending = [(loss, 1) for loss in losses or (NOISY,)]
    return Release(job, changes.pop("what", "a report"), "dp_encrypt", spending, **changes)


def in_a_process(work: Callable[[], object]) -> int:
    """Run `work` in a process of its own, and return the process's number."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def killed_at(append: int, share: float) -> None:
    """Make this process kill itself in its nth append, after a share of the bytes is written."""
    calls = iter(range(99))
    real = account_counter.append

    def cut(path: Path, line: bytes) -> None:
        if next(calls) < append:
            real(path, line)
            return
        with path.open("ab") as file:
            file.write(line[: round(share * len(line))])
        os.kill(os.getpid(), signal.SIGKILL)

    account_file.append = account_counter.append = cut  # type: ignore[attr-defined]
