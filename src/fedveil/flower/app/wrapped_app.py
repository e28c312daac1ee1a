"""Calls a user's app within a time limit. The app's errors go only to the client's log."""

from __future__ import annotations

import copy
import logging

from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.clientapp.typing import ClientAppCallable

from fedveil.base.own_code import interrupts
from fedveil.flower.fixed_time import FixedTime

log = logging.getLogger("flwr.fedveil")


class AppFailed(Exception):
    """Raised if the app raised an exception or answered with an error."""


def ask_in_time(
    time: FixedTime, message: FlowerMessage, context: Context, call_next: ClientAppCallable
) -> RecordDict:
    """Return the content of the app's reply to `message`. `call_next` calls the app.

    Raises `AppFailed` if the app fails. If the app exceeds the limit of `time`, raises
    `ClientWithheld` and discards the app's changes to the state in `context`.
    """
    own = copy.deepcopy(context) if time.is_set else context
    content = time.trained(lambda: _ask_app(message, own, call_next))
    if own is not context:
        context.state.clear()
        context.state.update(own.state)
    return content


def _ask_app(message: FlowerMessage, context: Context, call_next: ClientAppCallable) -> RecordDict:
    try:
        reply = call_next(message, context)
    except BaseException as error:
        if interrupts(error):
            raise
        log.exception("fedveil: the client's app failed")
        raise AppFailed(f"the client's app failed with {type(error).__name__}") from None
    if reply.has_error():
        log.error("fedveil: the client's app answered with an error: %s", reply.error.reason)
        raise AppFailed(f"the client's app answered with an error of code {reply.error.code}")
    return reply.content
