"""A client's answer where its report is asked for: under a promise, there always is one.

A server chooses the weights that a client trains from. It can choose them so that the training of
one client in particular overflows, or raises, and were there no report then, that would tell what
no noise covers. So where a protection promises anything, what cannot be used is replaced by an
update of zero before the protection's half sees it, and a report leaves all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedveil.base.message import Message
from fedveil.errors import ClientWithheld, FedveilError
from fedveil.protections.base import ClientRound, Protection, Update


class Reply(NamedTuple):
    """The half that has answered, its message, and why that is on no update of the client's."""

    half: ClientRound
    message: Message
    unusable: BaseException | None = None


def answer_trained(
    protection: Protection,
    half: Callable[[int], ClientRound],
    message: Message,
    train: Callable[[], tuple[Update, int]],
) -> Reply:
    """The answer to the message that asks for the report.

    `train` gives the update and the number of its examples. `half` gives the client's half for so
    many examples, as it is before this answer; a half that has raised is never asked again.

    Where the protection promises nothing, whatever makes a report impossible is raised. Where it
    promises anything, only what the message alone decides is: what raises for an update of zero
    as well. The reason of anything else is for this client's own log.
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
    """Why an update could not be used: a sentence, or a foreign exception with its kind."""
    if isinstance(unusable, FedveilError):
        return str(unusable)
    return f"{type(unusable).__name__}: {unusable}"


def _check(update: Update, dimension: int) -> None:
    if update.shape != (dimension,):
        raise ClientWithheld("the update is not of the length of the model")
    # The square of the norm is finite where all entries are, unless they are huge: one pass.
    with np.errstate(over="ignore", invalid="ignore"):
        if not (np.isfinite(np.dot(update, update)) or np.isfinite(update).all()):
            raise ClientWithheld("the update is not finite")
