"""The answers that a client can give to a message, and the reasons for a missing answer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from fedveil.errors import ReportRejected

ClientId: TypeAlias = int

_LONGEST_REASON = 200
#: The most characters of an error in a client's own log, if a server's words may be part of it.
LONGEST_LOGGED = 2000


@dataclass
class Effort:
    """The seconds that a client and the carrier spent on an answer, and the client's warnings.

    An unknown time is 0. If several clients train together, the first client's answer has the
    training time and the warnings of all these clients. In a simulation, `unusable` is the reason
    why an update was replaced by zeros, or None, and `raised` is True if training raised an error.
    """

    training_s: float = 0.0
    protection_s: float = 0.0
    aggregation_s: float = 0.0
    warnings: list[str] = field(default_factory=list)
    #: Known only in a simulation. In a deployment, neither leaves a client.
    unusable: str | None = None
    raised: bool = False


@dataclass
class Answer:
    """Base class: one client's answer to a message."""

    client: ClientId
    effort: Effort = field(default_factory=Effort, kw_only=True)


@dataclass
class Report(Answer):
    """A client's encoded message. Its data is valid until the next answer is requested."""

    data: bytes | memoryview


@dataclass
class Folded(Answer):
    """An answer whose report is already in a sum. `size` is the length of its message in bytes."""

    size: int


@dataclass
class Refused(Answer):
    """An answer that the server refused. `size` is the length of its message in bytes."""

    size: int
    reason: str


@dataclass
class Withheld(Answer):
    """An answer that says that the client sends no report, and why."""

    reason: str


@dataclass
class Failed(Answer):
    """An answer that says that the client's training failed, so there is no report."""

    reason: str


@dataclass
class Unreached(Answer):
    """Stands for the missing answer if the message did not reach the client."""


def short(reason: str, most: int = _LONGEST_REASON) -> str:
    """Return an untrusted peer's text as one printable line of at most `most` characters."""
    text = reason[: most + 1]  # however long it is, no more of it is read
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def check_sender(
    client: ClientId,
    invited: Collection[ClientId],
    asked: Collection[ClientId],
    answered: Collection[ClientId],
) -> None:
    """Raise `ReportRejected` unless an answer of `client` is due.

    It is due if the client was `invited` to the round, is `asked` in this phase, and is not yet
    among those who `answered`.
    """
    if client not in invited:
        raise ReportRejected(client, "unknown sender")
    if client not in asked:
        raise ReportRejected(client, "wrong phase")
    if client in answered:
        raise ReportRejected(client, "repeated sender")
