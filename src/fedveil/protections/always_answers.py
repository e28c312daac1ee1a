"""A client's answer to the request for its report: under a private protection, it always answers.

A server chooses the weights from which a client trains. It can choose them so that the training of
one particular client overflows or raises. A missing report would then reveal something that no
noise covers. So under a protection with a guarantee, an unusable update is replaced by an update of
zero before the protection sees it, and the client sends a report anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedveil.base.message import Message
from fedveil.errors import ClientWithheld, FedveilError
from fedveil.protections.base import ClientRound, Protection, Update


class Reply(NamedTuple):
    """A client's answer: its half of the round, the message, and why the update was not used.

    `unusable` is None if the message is about the client's own update.
    """

    half: ClientRound
    message: Message
    unusable: BaseException | None = None


def answer_trained(
    protection: Protection,
    half: Callable[[int], ClientRound],
    message: Message,
    train: Callable[[], tuple[Update, int]],
) -> Reply:
    """Return the answer to the message that asks for the report.

    `train` returns the update and the number of its examples. `half` returns the client's half of
    the round for that number of examples, in its state before this answer. A half that has raised
    is never asked again.

    If the protection guarantees nothing, any error that prevents a report is raised. If it
    guarantees something, an error is raised only if the message alone causes it, that is, if an
    update of zero raises as well. Any other error is returned for the client's own log.
    """
    try:
        update, examples = train()
        _check(update, protection.dimension)
        mine = half(examples)
        return Reply(mine, mine.respond(message, update))
    except (Exception, SystemExit) as error:  # a client's own code may try to end its process
        if not protection.always_reports:
            raise
        unusable = error
    other = half(1)
    zero = np.zeros(protection.dimension, np.float32)
    return Reply(other, other.respond(message, zero), unusable)


def reason(unusable: BaseException) -> str:
    """Return why an update could not be used: a sentence, or a foreign exception and its type."""
    if isinstance(unusable, FedveilError):
        return str(unusable)
    return f"{type(unusable).__name__}: {unusable}"


def _check(update: Update, dimension: int) -> None:
    if update.shape != (dimension,):
        raise ClientWithheld("the update is not of the model's length")
    # One pass: the squared norm is finite if all entries are, unless they are huge.
    with np.errstate(over="ignore", invalid="ignore"):
        if not (np.isfinite(np.dot(update, update)) or np.isfinite(update).all()):
            raise ClientWithheld("the update is not finite")
