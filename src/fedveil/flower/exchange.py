"""One exchange over Flower's grid: all messages are sent, then replies are read one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from fedveil.errors import MessageInvalid
from fedveil.flower.records import encoded_message
from fedveil.rounds.outcomes import ClientId, Refused, Report

#: The record of the message that stands for a reply from which Flower cannot make a message.
UNREADABLE = "a reply that cannot be read"
#: The errors that Flower raises while it makes a message from a node's bytes. Errors of the
#: connection to the SuperLink are others.
_OF_A_REPLY = (
    ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError, DecodeError
)  # fmt: skip
#: The errors that the SuperLink makes by itself.
_BY_SUPERLINK = frozenset(
    {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
)
#: The pause between two polls for replies grows from the first to the second.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0


def exchange(
    grid: Grid, messages: Sequence[Message], timeout_s: float
) -> Iterator[tuple[int, Message | None]]:
    """Send the messages. Yields a pair (index in `messages`, reply) for each reply that arrives.

    `grid` is Flower's connection to the clients. Ends when all replies have arrived, or after
    `timeout_s` seconds. If Flower does not accept a message, its index is yielded first, with None
    instead of a reply. Only one reply is in memory at a time. If a node sends bytes from which
    Flower cannot make a message, the reply is a message with the record `UNREADABLE` alone.
    """
    pushed = set(grid.push_messages(messages))
    names = [message.metadata.message_id for message in messages]
    waiting = {name: at for at, name in enumerate(names) if name in pushed}
    for at, name in enumerate(names):
        if name not in pushed:
            yield at, None
    end = time.monotonic() + timeout_s
    pause = FIRST_PAUSE_S
    while waiting:
        heard = False
        for name, at in list(waiting.items()):
            reply = _pulled(grid, name, messages[at])
            if reply is not None:
                heard = True
                del waiting[name]
                yield at, reply
        left = end - time.monotonic()
        if left <= 0 or not waiting:
            return
        pause = FIRST_PAUSE_S if heard else min(2 * pause, LAST_PAUSE_S)
        time.sleep(min(pause, left))


def _pulled(grid: Grid, name: str, message: Message) -> Message | None:
    """Return the reply to `message`, whose id is `name`, or None if it has not arrived.

    Each reply is pulled alone. The SuperLink forgets the replies that it hands over, so a reply
    that cannot be read would otherwise take others with it. A node writes the id in its reply
    itself, so a reply with another id than the one asked for is not used.
    """
    try:
        replies = grid.pull_messages([name])
        return next((r for r in replies if r.metadata.reply_to_message_id == name), None)
    except _OF_A_REPLY:
        return Message(RecordDict({UNREADABLE: ConfigRecord()}), reply_to=message)


def may_have_reported(reply: Message) -> bool:
    """Return True if the client may have sent a report, although its reply is an error.

    This is so if the SuperLink made the error and not the client. The SuperLink says that a node is
    not available, for example, without a look at the replies that it already has from this node.
    """
    return reply.error.code in _BY_SUPERLINK


def reported(client: ClientId, reply: Message) -> Report | Refused:
    """Return the report in `reply`, or `Refused` if `reply` is not exactly one encoded message."""
    try:
        return Report(client, encoded_message(reply.content))
    except MessageInvalid as error:
        size = sum(record.count_bytes() for record in reply.content.values())
        return Refused(client, size, str(error))
