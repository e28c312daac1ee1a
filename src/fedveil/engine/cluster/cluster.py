"""The interface of a cluster: starts remote machines, and calls methods of the `Machine` on each.

Any machine may be lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class MachineLost(Exception):
    """A machine was lost or cannot be reached. The call's result is unknown."""


@dataclass(frozen=True)
class Place:
    """A place where a machine can start: its unique `key`, a `name` for people, and its cores."""

    key: str
    name: str
    cores: int


class Call(ABC):
    """A call of a method of a remote `Machine`. It has ended, or is still running."""

    @abstractmethod
    def result(self) -> Any:
        """Return the result of a finished call. Raises the call's error, or `MachineLost`."""


class Remote(ABC):
    """A started machine. Its calls run one after another."""

    @abstractmethod
    def call(self, method: str, *arguments: Any) -> Call:
        """Start calling the method named `method` on the remote `Machine`.

        The `arguments` can be handles from `Cluster.share`.
        """

    @abstractmethod
    def pulse(self) -> Call:
        """Start a call that shows if the machine still runs. It does not wait for other calls."""

    @abstractmethod
    def end(self) -> None:
        """End the machine, even during a call. Calls that have not ended then fail."""


class Cluster(ABC):
    """Starts remote machines, and waits for the calls that run on them."""

    #: Names the cluster in messages, for example "the Ray cluster at 10.0.0.1:6379".
    name: str

    @abstractmethod
    def places(self) -> Sequence[Place]:
        """Return every place where a machine can run now, even if one already runs there."""

    @abstractmethod
    def start(self, place: Place, setup: Any, name: str) -> Remote:
        """Start a machine. Its first call waits until the machine's resources are free.

        `setup` is the handle that `share` returned for a `PackedSetup`. `name` is the machine's
        name in messages.
        """

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Return a handle of `value` to pass in calls. Each machine receives `value` only once."""

    @abstractmethod
    def wait(self, calls: Sequence[Call], timeout_s: float | None = None) -> Sequence[Call]:
        """Wait until one of `calls` has ended. Returns calls that have ended.

        The result is empty if none has ended after `timeout_s` seconds (None: no limit).
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the cluster, if this object made the connection."""
