"""The client's answer to the request for a report. Under a guarantee a client always answers.

A lying server can choose weights with which the training of one particular client fails. A missing
report would then reveal something that no noise covers. So under a protection with a guarantee, an
unusable update is replaced by an update of zero, and the report is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedveil.base.message import Message
from fedveil.base.own_code import interrupts
from fedveil.errors import ClientWithheld, FedveilError
from fedveil.protections.base import ClientRound, Protection, Update
from fedveil.protections.own_errors import own_errors


class Reply(NamedTuple):
    """A client's answer to the request for a report.

    `message` is the answer, and `half` the `ClientRound` that made it. Without a usable update,
    `unusable` is the error, and `message` reports an update of zero. Otherwise `unusable` is None.
    """

    half: ClientRound
    message: Message
    unusable: BaseException | None = None


def answer_trained(
    protection: Protection,
    half: Callable[[int], ClientRound],
    spare: Callable[[], ClientRound],
    message: Message,
    train: Callable[[], tuple[Update, int]],
    *,
    always: bool = False,
) -> Reply:
    """Train, and return the client's answer to `message`, which asks for the report.

    - `train` returns the update and the client's number of examples.
    - `half` takes that number, and returns the `ClientRound` that makes the report.
    - `spare` is called if training or the report fails. It returns a different `ClientRound` for
      the same client and round, which reports an update of zero. The `Reply` contains the error,
      for the client's own log.

    Under a protection without a guarantee, every error is raised, unless `always` is True.
    Interrupts, such as Ctrl-C, are always raised. If `message` itself causes the error, the report
    of zero fails too, and its error is raised.
    """
    try:
        update, examples = train()
        _check(update, protection.dimension)
        with own_errors(protection):
            mine = half(examples)
            return Reply(mine, mine.respond(message, update))
    except BaseException as error:  # a client's own code may end its process, or panic
        if interrupts(error) or not (always or protection.always_reports):
            raise
        unusable = error
    with own_errors(protection):
        other = spare()
        zero = np.zeros(protection.dimension, np.float32)
        return Reply(other, other.respond(message, zero), unusable)


def reason(unusable: BaseException) -> str:
    """Return one sentence that says why an update is unusable."""
    if isinstance(unusable, FedveilError):
        return str(unusable)
    return f"{type(unusable).__name__}: {unusable}"


def _check(update: Update, dimension: int) -> None:
    if update.shape != (dimension,):
        raise ClientWithheld("the update is not of the model's length")
    # One sum decides: the squared norm is finite if all entries are, unless they are huge.
    with np.errstate(over="ignore", invalid="ignore"):
        if not (np.isfinite(np.dot(update, update)) or np.isfinite(update).all()):
            raise ClientWithheld("the update is not finite")
