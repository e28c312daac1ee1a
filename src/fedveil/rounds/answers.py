"""What comes of asking a client: one of a few plain things."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from fedveil.errors import ReportRejected

ClientId: TypeAlias = int

_LONGEST_REASON = 200


@dataclass
class Effort:
    """What an answer has taken, as far as whoever carries the messages can see it.

    Clients that train together leave the time and the warnings of it with the first of them.
    """

    training_s: float = 0.0
    protection_s: float = 0.0
    aggregation_s: float = 0.0
    warnings: list[str] = field(default_factory=list)
    #: Why a report is on no update of the client's, and whether its training raised. Only a
    #: simulation can see it; nothing of it ever leaves a client.
    unusable: str | None = None
    raised: bool = False


@dataclass
class Answer:
    """An answer of one client."""

    client: ClientId
    effort: Effort = field(default_factory=Effort, kw_only=True)


@dataclass
class Report(Answer):
    """An encoded message, valid until the next answer is asked for."""

    data: bytes | memoryview


@dataclass
class Folded(Answer):
    """A message of so many bytes that has been folded where it was made."""

    size: int


@dataclass
class Refused(Answer):
    """A message of so many bytes that has left the client, and that no server half takes."""

    size: int
    reason: str


@dataclass
class Withheld(Answer):
    """The client answers that it reports nothing."""

    reason: str


@dataclass
class Failed(Answer):
    """The client answers that it cannot report."""

    reason: str


@dataclass
class Unreached(Answer):
    """The message did not get to the client."""


def short(reason: str) -> str:
    """A text that may be an untrusted client's, fit for a log and a record.

    At most 200 characters on one line; where some cannot be printed, all of it is escaped.
    """
    text = reason[: _LONGEST_REASON + 1]  # however long it is, no more of it is read
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 3]}..."


def check_sender(
    client: ClientId,
    invited: Collection[ClientId],
    asked: Collection[ClientId],
    answered: Collection[ClientId],
) -> None:
    """Raise `ReportRejected` unless the client is asked now, and for the first time."""
    if client not in invited:
        raise ReportRejected(client, "unknown sender")
    if client not in asked:
        raise ReportRejected(client, "wrong phase")
    if client in answered:
        raise ReportRejected(client, "repeated sender")
