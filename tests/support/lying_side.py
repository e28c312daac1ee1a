"""A party that keeps to a protocol, except for the messages that a test changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedveil.base.message import Message
from fedveil.link.channel import Exchange, Send

Change = Callable[[dict[str, Any]], dict[str, Any] | None]


def lying_side(honest: Exchange[Any], change: Mapping[str, Change]) -> Exchange[Any]:
    """Play a side, but change messages by their kind. A change to None drops a message."""
    answer: Message | None = None
    while True:
        try:
            request = honest.send(answer)
        except StopIteration as end:
            return end.value
        answer = None
        if isinstance(request, Send) and request.message["kind"] in change:
            said = change[str(request.message["kind"])](dict(request.message))
            if said is not None:
                answer = yield Send(request.peer, said)
            continue
        answer = yield request
